"""Which rank the others waited for in a step, and what it did instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from molprof.analysis.ranks.exchanges import Cost
from molprof.analysis.ranks.model import RankTrace
from molprof.analysis.ranks.split import Activity, StepTimes

_NAMED = 3


@dataclass(frozen=True)
class Straggler:
    """The rank that came last to the collectives of a step, by the most time, ns."""

    step: str
    number: int
    rank: int
    late_ns: int  # sum over the collectives to which it came last, of the time after the median of the others
    collectives: int  # to which it came last
    of_collectives: int  # of the step
    waited_ns: int  # what the other ranks waited in these, summed over ranks
    # What it did while it was late: the parts add up to late_ns where collectives do not overlap.
    compute_ns: int
    exposed_ns: int
    idle_ns: int
    kernels: tuple[tuple[str, int], ...]  # longest, with their time
    causes: tuple[tuple[str, int], ...]  # of its idle time, with their time
    host: tuple[tuple[str, int], ...]  # what its host did in most of that: operators and calls


def straggler(
    step: Sequence[StepTimes],
    costs: Sequence[Cost],
    ranks: Mapping[int, tuple[RankTrace, Activity]],
) -> Straggler | None:
    """The straggler of a step of all its ranks; None where no rank was late."""
    spans = {item.rank: item for item in step}
    inside = [cost for cost in costs if cost.last_rank is not None and _is_inside(cost, spans)]
    late: Counter[int] = Counter()
    for cost in inside:
        if cost.last_rank is not None:
            late[cost.last_rank] += cost.late_ns
    rank = min(late, key=lambda item: (-late[item], item), default=None)
    if rank is None or not late[rank]:
        return None
    mine = [cost for cost in inside if cost.last_rank == rank]
    windows = [_window(cost, rank) for cost in mine]
    trace, done = ranks[rank]
    busy = sum(int(done.busy.covered(*window)) for window in windows)
    compute = sum(int(done.compute.covered(*window)) for window in windows)
    kernels, causes, host = _did(trace, windows)
    return Straggler(
        step=step[0].name,
        number=step[0].number,
        rank=rank,
        late_ns=late[rank],
        collectives=len(mine),
        of_collectives=len(inside),
        waited_ns=sum(part.waiting_ns for cost in mine for other, part in cost.parts.items() if other != rank),
        compute_ns=compute,
        exposed_ns=busy - compute,
        idle_ns=sum(end - start for start, end in windows) - busy,
        kernels=kernels,
        causes=causes,
        host=host,
    )


def _is_inside(cost: Cost, spans: Mapping[int, StepTimes]) -> bool:
    """Whether the lowest rank that is in the step began the collective in it."""
    rank = min(cost.exchange.kernels)
    kernel = cost.exchange.kernels[rank]
    return rank in spans and spans[rank].start_ns <= kernel.start_ns < spans[rank].end_ns


def _window(cost: Cost, rank: int) -> tuple[int, int]:
    """From the median start of the others to its own, on the clock of the rank's file."""
    own = cost.exchange.kernels[rank].start_ns
    return own - cost.late_ns, own


def _did(trace: RankTrace, windows: Sequence[tuple[int, int]]) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Kernels, causes of gaps, and what the host did in them, each with its time in the windows."""
    kernels: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    host: Counter[str] = Counter()
    steps = {step.name for step in trace.steps}
    starts, ends = np.array(trace.work.starts_ns), np.array(trace.work.ends_ns)
    gap_starts = np.array([gap.start_ns for gap in trace.gaps], dtype=np.int64)
    gap_ends = np.array([gap.end_ns for gap in trace.gaps], dtype=np.int64)
    for begin, end in windows:
        for place in np.flatnonzero((starts < end) & (ends > begin)).tolist():
            shared = int(min(ends[place], end) - max(starts[place], begin))
            kernels[trace.work.names[trace.work.name_of[place]]] += shared
        for place in np.flatnonzero((gap_starts < end) & (gap_ends > begin)).tolist():
            gap = trace.gaps[place]
            shared = min(gap.end_ns, end) - max(gap.start_ns, begin)
            causes[gap.cause] += shared
            host["outside operators" if gap.host is None or gap.host in steps else gap.host] += shared
    return tuple(_longest(found) for found in (kernels, causes, host))


def _longest(found: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_NAMED])
