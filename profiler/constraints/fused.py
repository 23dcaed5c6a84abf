"""A step of `TableBatch` or `WholeBatch` as one kernel, for GPUs: without Triton it takes six."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256
WHOLE_BLOCK = 1024  # scores of a program of `whole_kernel`


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


@triton.jit(do_not_specialize=["last"])  # type: ignore[untyped-decorator]
def whole_kernel(  # type: ignore[no-untyped-def]
    ids, ids_stride, last, kinds, which, moves, forbidden, at, scores, scores_stride, width,
    BLOCK: tl.constexpr,  # noqa: N803  (Triton's spelling of a constant)
):  # fmt: skip
    """A program for each row and block of scores: read columns 0 to `last` of the row's tokens, then mask the block.

    Each has the row's state for itself, so that none waits for another.
    """
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    own = kinds + tl.load(which + row) * width
    mine = at + row * tl.num_programs(1) + part
    place = tl.load(mine)
    for column in range(0, last):
        place = tl.load(moves + place + tl.load(own + tl.load(ids + row * ids_stride + column)))
    tl.store(mine, place)
    tokens = part * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < width
    kind = tl.load(own + tokens, mask=inside, other=0)
    hidden = tl.load(forbidden + place + kind, mask=inside, other=0) != 0
    tl.store(scores + row * scores_stride + tokens, float("-inf"), mask=inside & hidden)


def whole_step(tokens: Tensor, tables: Sequence[Tensor], at: Tensor, scores: Tensor) -> None:
    """Move each row past its tokens, int64 (rows, n), and mask its scores, float32 (rows, logits_width), in place.

    `tables`: those of `WholeBatch`. `at` is int32 (rows, blocks of `WHOLE_BLOCK` scores), the same in each row.
    """
    width = tables[0].shape[1]
    whole_kernel[at.shape](
        tokens, tokens.stride(0), tokens.shape[1], *tables, at, scores, scores.stride(0), width, BLOCK=WHOLE_BLOCK
    )
