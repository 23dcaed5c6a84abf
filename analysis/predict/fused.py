"""Fusion as torch.compile does it in a forward: adjacent elementwise operators, norms and copies become one kernel.

Inductor fuses what computes over the same elements with nothing between it that it cannot fuse: products, attention,
convolutions, sorts. A trace does not tell which tensor goes where, so the order of calls stands for it, and the bytes
of a fused kernel are what its first call reads, its last writes, and what calls between read more than the one before
wrote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from molprof.analysis.predict.run import OperatorCall
from molprof.analysis.predict.table import CostTable, Estimate
from molprof.analysis.roofline.formulas import COPY, LOOKUP, NORM, POINTWISE, REDUCTION, SOFTMAX

# One recorded pair checks it: fused kernels may take half or twice as long.
FUSED_ERROR = 2.0
_FUSIBLE = (POINTWISE, NORM, REDUCTION, SOFTMAX, COPY, LOOKUP)
Pair = tuple[OperatorCall, Estimate]


class FusedCalls(NamedTuple):
    """Calls that remain, and one for each fused kernel. kernels: of the forwards, before and after."""

    kept: Sequence[Pair]
    fused: Sequence[Pair]
    kernels: tuple[int, int]


def compiled(pairs: Sequence[Pair], table: CostTable, forward: Sequence[tuple[int, int]]) -> FusedCalls | None:
    """Return the calls after fusion; None where nothing is fused. forward: starts and ends, in order."""
    kept: list[Pair] = []
    fused: list[Pair] = []
    groups: list[tuple[int, list[Pair]]] = []  # elements of the largest tensor, and calls over as many or a divisor
    before = after = at = 0
    for call, one in pairs:
        while at < len(forward) and call.start_ns >= forward[at][1]:
            at += 1
            after += _flush(groups, table, kept, fused)
        inside = at < len(forward) and call.start_ns >= forward[at][0]
        before += inside * one.kernels
        if inside and call.work is not None and call.work.family in _FUSIBLE:
            elements = _elements(call)
            fitting = [group for size, group in groups if not size % elements]
            if not fitting:
                fitting = [[]]
                groups.append((elements, fitting[0]))
            fitting[-1].append((call, one))
        else:
            after += _flush(groups, table, kept, fused) + inside * one.kernels
            kept.append((call, one))
    after += _flush(groups, table, kept, fused)
    return FusedCalls(kept, fused, (before, after)) if after < before else None


def _flush(groups: list[tuple[int, list[Pair]]], table: CostTable, kept: list[Pair], fused: list[Pair]) -> int:
    """Empty the groups and return the number of their kernels."""
    kernels = 0
    for _, group in groups:
        if sum(one.kernels for _, one in group) < 2:
            kept += group
            kernels += sum(one.kernels for _, one in group)
            continue
        works = [call.work for call, _ in group if call.work is not None]
        more = sum(max(work.read_bytes - last.written_bytes, 0) for last, work in pairwise(works))
        call, one = group[0]
        time = table.fused_ns(works[0].read_bytes + more + works[-1].written_bytes)
        fused.append((call, one._replace(kernels=1, gpu_ns=time)))
        kernels += 1
    groups.clear()
    return kernels


def _elements(call: OperatorCall) -> int:
    """Return the elements of the largest tensor that a call reads or writes."""
    tensors = [item.elements for item in call.operands if item.is_tensor]
    lists = [sum(map(math.prod, item.parts)) for item in call.operands if item.parts]
    return max([1, *tensors, *lists])
