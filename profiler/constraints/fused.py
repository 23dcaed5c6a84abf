"""One GPU kernel in Triton for a step of `TokenDfaBatch`, which takes six without."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # scores of a program


# `last` changes at every step, and Triton would compile each of its specializations. It reads annotations of arguments
# as values of its own language, so they have none.
@triton.jit(do_not_specialize=["last"])  # type: ignore[untyped-decorator]
def kernel(  # type: ignore[no-untyped-def]
    ids, ids_stride, last, kinds, which, moves, forbidden, at, scores, scores_stride, width,
    BLOCK: tl.constexpr,  # noqa: N803  (Triton's spelling of a constant)
):  # fmt: skip
    """Read columns 0 to `last` of the row's tokens, then mask the block: one program per row and block of scores.

    Each has the row's state for itself, so that none waits for another.
    """
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    row_kinds = kinds + tl.load(which + row) * width
    mine = at + row * tl.num_programs(1) + part
    state = tl.load(mine)
    for column in range(0, last):
        state = tl.load(moves + state + tl.load(row_kinds + tl.load(ids + row * ids_stride + column)))
    tl.store(mine, state)
    tokens = part * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < width
    kind = tl.load(row_kinds + tokens, mask=inside, other=0)
    hidden = tl.load(forbidden + state + kind, mask=inside, other=0) != 0
    tl.store(scores + row * scores_stride + tokens, float("-inf"), mask=inside & hidden)


def step(tokens: Tensor, tables: Sequence[Tensor], at: Tensor, scores: Tensor) -> None:
    """Move each row past its tokens, int64 (rows, n), and mask its scores, float32 (rows, logits_width), in place.

    `tables`: those of `TokenDfaBatch`. `at` is int32 (rows, blocks of `BLOCK` scores), the same in each row.
    """
    width = tables[0].shape[1]
    kernel[at.shape](
        tokens, tokens.stride(0), tokens.shape[1], *tables, at, scores, scores.stride(0), width, BLOCK=BLOCK
    )
