"""A step of `TableBatch` as one kernel, for GPUs: without Triton it takes six."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


# `first` and `last` change at every step, and Triton would compile each of their specializations. It reads annotations
# of arguments as values of its own language, so they have none.
@triton.jit(do_not_specialize=["first", "last"])  # type: ignore[untyped-decorator]
def kernel(  # type: ignore[no-untyped-def]
    ids, ids_stride, first, last, classes, moves, class_count, at, scores, scores_stride, columns, bias, column_count,
    out, out_stride, BLOCK: tl.constexpr,  # noqa: N803  (Triton's spelling of a constant)
):  # fmt: skip
    """One program per row: read columns `first` to `last` of its ids, then write its allowed scores."""
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


def step(input_ids: Tensor, first: int, tables: Sequence[Tensor], at: Tensor, scores: Tensor, out: Tensor) -> None:
    """Advance `at` by the columns of `input_ids` from `first` on, and write the allowed scores into `out`.

    `tables`: classes, moves, columns and bias of `table.Compiled`. `at` is int64 (rows, 2); scores and out are float32
    (rows, logits_width).
    """
    classes, moves, columns, bias = tables
    kernel[(len(at),)](
        input_ids, input_ids.stride(0), first, input_ids.shape[1], classes, moves, moves.shape[1], at,
        scores, scores.stride(0), columns, bias, bias.shape[1], out, out.stride(0), BLOCK=_BLOCK,
    )  # fmt: skip
