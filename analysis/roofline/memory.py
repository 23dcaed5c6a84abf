"""What a run needs of memory by its model: weights, KV cache and logits, for any number of rows and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_WIDE_BYTES = 4  # generation takes logits as float32, beside those of the model


class Needs(NamedTuple):
    """Bytes. A token's cache is that of all layers."""

    weights: int
    cache_of_token: int
    logits_of_row: int

    def of(self, rows: int, tokens: int) -> int:
        """With so many sequences of so many tokens, padding included."""
        return self.weights + rows * (tokens * self.cache_of_token + self.logits_of_row)


def needs_of(resolved: Mapping[str, object]) -> Needs | None:
    """Of a manifest's `resolved`; None where it lacks the model's sizes, or numbers of another type."""
    size = _BYTES.get(str(resolved.get("dtype")))
    names = ("parameters", "layers", "kv_heads", "head_dim", "logits_width")
    each = [resolved.get(name) for name in names]
    if size is None or not all(isinstance(item, int) for item in each):
        return None
    parameters, layers, kv_heads, head_dim, width = (int(str(item)) for item in each)
    return Needs(parameters * size, 2 * layers * kv_heads * head_dim * size, width * (size + _WIDE_BYTES))
