"""Memory of a run by its model: weights, KV cache and logits, for any number of rows and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from molprof.analysis.roofline.operands import TYPES

_ITEM_BYTES = dict(TYPES.values())
# Generation takes logits as float32, in a copy beside those of the model; the copy of the step before lives until then
# (transformers/generation/utils.py, `_sample`). A processor may make more.
_WIDE_BYTES = 4


class Needs(NamedTuple):
    """Memory needs, bytes. A token's cache is that of all layers; None where its shape is not recorded."""

    weights: int
    cache_of_token: int | None
    logits_of_row: tuple[int, int, int]  # in the model's type, and the copies of this step and of the one before

    def of(self, rows: int, tokens: int) -> int | None:
        """Return the bytes for so many sequences of so many tokens, padding included."""
        if self.cache_of_token is None:
            return None
        return self.weights + rows * (tokens * self.cache_of_token + sum(self.logits_of_row))


def needs_of(resolved: Mapping[str, object]) -> Needs | None:
    """Return the memory needs by a manifest's `resolved`; None without the model's size, or with wrong types."""

    def number(name: str) -> int | None:
        return value if isinstance(value := resolved.get(name), int) else None

    size = _ITEM_BYTES.get(str(resolved.get("dtype")).removeprefix("torch."))
    parameters, width = number("parameters"), number("logits_width")
    if size is None or parameters is None or width is None:
        return None
    layers, kv_heads, head_dim = number("layers"), number("kv_heads"), number("head_dim")
    token = 2 * layers * kv_heads * head_dim * size if layers and kv_heads and head_dim else None
    return Needs(parameters * size, token, (width * size, width * _WIDE_BYTES, width * _WIDE_BYTES))
