"""A step of the token automata as one kernel, for GPUs: `AutomatonBatch` without it takes six."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


# Both change at every step: without this, each of their specializations would be compiled.
@triton.jit(do_not_specialize=["first", "last"])  # type: ignore[untyped-decorator]
def _step(
    ids: Any,
    ids_stride: Any,
    first: Any,
    last: Any,
    classes: Any,
    moves: Any,
    class_count: Any,
    at: Any,
    scores: Any,
    scores_stride: Any,
    columns: Any,
    bias: Any,
    column_count: Any,
    out: Any,
    out_stride: Any,
    BLOCK: tl.constexpr,  # noqa: N803  (Triton: what is known when it compiles)
) -> None:
    """One program per row: reads columns `first` to `last` of its ids, then writes its allowed scores."""
    row = tl.program_id(0).to(tl.int64)
    state = tl.load(at + row * 2)
    mask = tl.load(at + row * 2 + 1)
    for column in range(first, last):
        kind = tl.load(classes + tl.load(ids + row * ids_stride + column))
        place = (state * class_count + kind) * 2
        state = tl.load(moves + place)
        mask = tl.load(moves + place + 1)
    tl.store(at + row * 2, state)
    tl.store(at + row * 2 + 1, mask)
    for begin in range(0, column_count, BLOCK):
        offsets = begin + tl.arange(0, BLOCK)
        inside = offsets < column_count
        tokens = tl.load(columns + offsets, mask=inside, other=0)
        kept = tl.load(scores + row * scores_stride + tokens, mask=inside, other=0.0)
        kept += tl.load(bias + mask * column_count + offsets, mask=inside, other=0.0)
        tl.store(out + row * out_stride + tokens, kept, mask=inside)


def step(
    input_ids: Tensor,
    first: int,
    classes: Tensor,
    moves: Tensor,
    at: Tensor,
    scores: Tensor,
    columns: Tensor,
    bias: Tensor,
    out: Tensor,
) -> None:
    """Advances `at` by the columns of `input_ids` from `first` on, and writes the allowed scores into `out`.

    Shapes and dtypes as in `automaton.Tables`; `at` int64 (rows, 2), scores and out float32 (rows, logits_width).
    """
    _step[(len(at),)](
        input_ids,
        input_ids.stride(0),
        first,
        input_ids.shape[1],
        classes,
        moves,
        moves.shape[1],
        at,
        scores,
        scores.stride(0),
        columns,
        bias,
        bias.shape[1],
        out,
        out.stride(0),
        BLOCK=_BLOCK,
    )
