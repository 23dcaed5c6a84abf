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
    """What is taken from the times of each rank; the lowest rank's clock is kept."""

    offsets_ns: dict[int, int]  # 0 also for ranks that are not aligned
    unaligned: tuple[int, ...]  # ranks that share no joint collective, directly or not, with the lowest
    recorded: Spread | None  # before; None: no joint collectives
    aligned: Spread | None  # after: the error of all that is read from two clocks


def align(ranks: Sequence[int], exchanges: Sequence[Exchange]) -> Clocks:
    """The clocks of ranks by the median distance of the ends of their joint collectives."""
    joint = [item for item in exchanges if item.one.operation in JOINT]
    offsets = {min(ranks): 0}
    while True:
        known = [
            item for item in joint if item.kernels.keys() & offsets.keys() and item.kernels.keys() - offsets.keys()
        ]
        distances: dict[int, list[float]] = {}
        for item in known:
            here = median(item.kernels[rank].end_ns - offsets[rank] for rank in item.kernels.keys() & offsets.keys())
            for rank in item.kernels.keys() - offsets.keys():
                distances.setdefault(rank, []).append(item.kernels[rank].end_ns - here)
        if not distances:
            break
        offsets |= {rank: round(median(values)) for rank, values in distances.items()}
    unaligned = tuple(sorted(set(ranks) - offsets.keys()))
    told = [item for item in joint if item.kernels.keys() <= offsets.keys()]
    nothing = dict.fromkeys(ranks, 0)
    return Clocks(nothing | offsets, unaligned, _spread(told, nothing), _spread(told, nothing | offsets))


def _spread(exchanges: Sequence[Exchange], offsets: dict[int, int]) -> Spread | None:
    if not exchanges:
        return None
    spreads = []
    for item in exchanges:
        ends = [kernel.end_ns - offsets[rank] for rank, kernel in item.kernels.items()]
        spreads.append(max(ends) - min(ends))
    return Spread(round(median(spreads)), max(spreads), len(spreads))
