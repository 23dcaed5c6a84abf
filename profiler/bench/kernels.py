"""The cases of `molprof bench sdpa`: shapes of attentions, phases, masks and kernels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from molprof.common.errors import UsageError
from molprof.profiler.bench.cases import SdpaCase

# Of an attention: batch, heads, KV heads, sequence, head size.
Shape = tuple[int, int, int, int, int]
# By whether there is a GPU.
SHAPES = {True: ("4x16x16x2048x64", "16x16x8x1024x128"), False: ("1x16x16x512x64", "4x16x8x256x128")}
PHASES = ("prefill", "decode")


def read_shape(text: str) -> Shape:
    """Parse a shape. Raises UsageError."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){4}", text):
        raise UsageError(
            f"{text!r} is no shape BATCHxHEADSxKVHEADSxSEQUENCExSIZE", hint="five numbers, e.g. 4x16x16x2048x64"
        )
    batch, heads, kv_heads, sequence, head_dim = map(int, text.split("x"))
    return batch, heads, kv_heads, sequence, head_dim


def sdpa_cases(
    shapes: Sequence[Shape], backends: Sequence[str], phases: Sequence[str], masks: Sequence[str], **common: Any
) -> tuple[SdpaCase, ...]:
    """Return every combination; a prefill without a mask is causal, as that of a batch without padding is."""
    cases = []
    for shape, phase, mask, backend in itertools.product(shapes, phases, masks, backends):
        batch, heads, kv_heads, keys, head_dim = shape
        prefill = phase == "prefill"
        queries, masked = keys if prefill else 1, "causal" if prefill and mask == "none" else mask
        cases.append(SdpaCase(backend, batch, heads, kv_heads, queries, keys, head_dim, masked, **common))
    return tuple(dict.fromkeys(cases))
