"""The critical path over ranks: from the end back, through the rank that each collective waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from molprof.analysis.ranks.exchanges import Cost, RankClocks
from molprof.analysis.ranks.read import RankTrace
from molprof.analysis.ranks.split import Activity, did


@dataclass(frozen=True)
class Crossing:
    """A collective at which a rank waited for another, ns; and the other's activity meanwhile."""

    operation: str
    group: str
    rank: int
    last_rank: int
    waited_ns: int  # by the rank, until the last one began
    kernels: tuple[tuple[str, int], ...]  # of the last one, longest, with their time
    causes: tuple[tuple[str, int], ...]  # of its idle time, with their time
    host: tuple[tuple[str, int], ...]  # what its host did in most of that


@dataclass(frozen=True)
class PathSpan:
    """A part of the path on one rank, ns on the aligned clock: its time = compute + exposed + waiting + idle."""

    rank: int
    start_ns: int
    end_ns: int
    compute_ns: int
    exposed_ns: int  # moving data with nothing else running
    waiting_ns: int  # for another rank, where the path goes on here all the same
    idle_ns: int
    crossing: Crossing | None  # how the path came here from the rank before; None: it begins here

    @property
    def wall_ns(self) -> int:
        """The length of the span, ns."""
        return self.end_ns - self.start_ns


def critical_spans(
    ranks: Sequence[RankTrace], costs: Sequence[Cost], clocks: RankClocks, done: Mapping[int, Activity]
) -> tuple[PathSpan, ...]:
    """Return the path in order of time; its spans add up to the time from the first work of all ranks to the last.

    A rank goes on when a collective has ended, and that when its last rank has begun: there the path goes over to that
    one. Not if the rank waited no longer than the clocks are sure of, or had other work then. Empty without collectives
    that all their ranks wait for.
    """
    traces = {item.rank: item for item in ranks if item.rank not in clocks.unaligned}
    if clocks.aligned is None or len(traces) < 2:
        return ()
    offsets, least_ns = clocks.offsets_ns, clocks.aligned.most_ns
    joint: dict[int, list[Cost]] = {rank: [] for rank in traces}
    for cost in costs:
        for rank in cost.parts.keys() & traces.keys():
            if cost.last_rank not in (None, rank) and cost.parts[rank].waiting_ns > least_ns:
                joint[rank].append(cost)
    for rank, rank_costs in joint.items():
        rank_costs.sort(key=lambda cost: cost.parts[rank].end_ns)
    begin = min(item.start_ns - offsets[rank] for rank, item in traces.items())
    rank = max(traces, key=lambda rank: (traces[rank].end_ns - offsets[rank], -rank))
    at = traces[rank].end_ns - offsets[rank]
    path: list[PathSpan] = []
    while True:
        waited = _last(joint[rank], rank, at, done[rank], offsets[rank])
        start = begin if waited is None else waited.parts[_last_rank(waited)].start_ns
        compute, exposed, waiting, idle = map(int, done[rank].times_ns(start + offsets[rank], at + offsets[rank]))
        crossing = None if waited is None else _crossing(waited, rank, traces, offsets)
        path.append(PathSpan(rank, start, at, compute, exposed, waiting, idle, crossing))
        if waited is None:
            return tuple(reversed(path))
        rank, at = _last_rank(waited), start


def _last_rank(cost: Cost) -> int:
    assert cost.last_rank is not None
    return cost.last_rank


def _last(costs: Sequence[Cost], rank: int, at: int, done: Activity, offset: int) -> Cost | None:
    """Return the last collective before a moment that delayed the rank."""
    for cost in reversed(costs):
        begun = cost.parts[_last_rank(cost)].start_ns
        if cost.parts[rank].end_ns <= at and begun < at:
            moment = begun + offset
            if not int(done.compute.covered(moment - 1, moment)):
                return cost
    return None


def _crossing(cost: Cost, rank: int, traces: Mapping[int, RankTrace], offsets: Mapping[int, int]) -> Crossing:
    last, waited = _last_rank(cost), cost.parts[rank].waiting_ns
    end = cost.parts[last].start_ns + offsets[last]
    kernels, causes, host = did(traces[last], [(end - waited, end)])
    return Crossing(cost.exchange.one.operation, cost.exchange.group, rank, last, waited, kernels, causes, host)
