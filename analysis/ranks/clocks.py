"""The clocks of ranks, aligned: a collective that needs all its ranks ends on all of them at nearly the same moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from molprof.analysis.ranks.match import Exchange

# No rank can end before every rank has begun. Of a broadcast or reduce the root may be long gone.
JOINT = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")


@dataclass(frozen=True)
class Spread:
    """How far the ends of one collective are apart on its ranks, over collectives, ns."""

    median_ns: int
    most_ns: int
    collectives: int


@dataclass(frozen=True)
class Clocks:
    """What is taken from the times of each rank; the clock of the lowest rank is kept, also among the unaligned."""

    offsets_ns: dict[int, int]
    unaligned: tuple[int, ...]  # ranks that share no joint collective, directly or not, with the lowest
    recorded: Spread | None  # before; None: no joint collectives
    aligned: Spread | None  # after: the error of all that is read from two clocks


def align(ranks: Sequence[int], exchanges: Sequence[Exchange]) -> Clocks:
    """The clocks of ranks by the median distance of the ends of their joint collectives.

    Ranks that share none with the lowest are aligned with each other, as far as they share some.
    """
    joint = [item for item in exchanges if item.one.operation in JOINT]
    first = offsets = _connected(min(ranks), joint)
    while left := set(ranks) - offsets.keys():
        offsets = offsets | _connected(min(left), joint)
    nothing = dict.fromkeys(ranks, 0)
    unaligned = tuple(sorted(set(ranks) - first.keys()))
    return Clocks(offsets, unaligned, _spread(joint, nothing), _spread(joint, offsets))


def _connected(rank: int, joint: Sequence[Exchange]) -> dict[int, int]:
    """What is taken from the times of the ranks that share a joint collective with a rank, directly or not; of it 0."""
    offsets = {rank: 0}
    while True:
        edge = [item for item in joint if item.kernels.keys() & offsets.keys() and item.kernels.keys() - offsets.keys()]
        distances: dict[int, list[float]] = {}
        for item in edge:
            here = median(item.kernels[known].end_ns - offsets[known] for known in item.kernels.keys() & offsets.keys())
            for other in item.kernels.keys() - offsets.keys():
                distances.setdefault(other, []).append(item.kernels[other].end_ns - here)
        if not distances:
            return offsets
        offsets |= {rank: round(median(values)) for rank, values in distances.items()}


def _spread(exchanges: Sequence[Exchange], offsets: dict[int, int]) -> Spread | None:
    if not exchanges:
        return None
    spreads = []
    for item in exchanges:
        ends = [kernel.end_ns - offsets[rank] for rank, kernel in item.kernels.items()]
        spreads.append(max(ends) - min(ends))
    return Spread(round(median(spreads)), max(spreads), len(spreads))
