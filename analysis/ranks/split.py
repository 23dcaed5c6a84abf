"""The time of each rank and step, split: compute, exposed communication, waiting, idle. The parts add up to the ns.

Which rank the others waited for in a step, and what it did instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from molprof.analysis.ranks.exchanges import Cost
from molprof.analysis.ranks.read import RankTrace
from molprof.analysis.union import Union

OUTSIDE = "before the first step"
# Of all time that ranks waited in a step: for whom they waited so long is worth a word.
LEAST_WAITED = 0.05
_NAMED = 3


@dataclass(frozen=True)
class Activity:
    """Intervals of a rank's activity, on the clock of its file: computing; computing or moving data; any work."""

    compute: Union
    compute_or_moving: Union
    busy: Union
    communication: Union

    def times_ns(self, start: Any, end: Any) -> tuple[Any, Any, Any, Any]:
        """Return the parts of a span, or of arrays of them: computing, exposed data movement, waiting, idle."""
        compute, moving, busy = (item.covered(start, end) for item in (self.compute, self.compute_or_moving, self.busy))
        return compute, moving - compute, busy - moving, end - start - busy


@dataclass(frozen=True)
class StepTimes:
    """A step of a rank, ns: wall = compute + exposed + waiting + idle."""

    rank: int
    name: str
    number: int  # of the step of this name in the rank, from 0: names may repeat
    start_ns: int  # on the clock of the file
    end_ns: int
    compute_ns: int
    exposed_ns: int  # moving data with nothing else running
    waiting_ns: int  # for the last rank of a collective, with nothing else running
    idle_ns: int
    hidden_ns: int  # communication behind compute, which is part of compute_ns

    @property
    def wall_ns(self) -> int:
        """The length of the step, ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class RankCheck:
    """Two figures of a rank that must be equal: one from Python, one from SQL."""

    rank: int
    text: str
    left_ns: int
    right_ns: int

    @property
    def holds(self) -> bool:
        """True if both figures are equal."""
        return self.left_ns == self.right_ns


@dataclass(frozen=True)
class Straggler:
    """A rank that came last to collectives of a step, ns."""

    step: str
    number: int
    rank: int
    late_ns: int  # sum over the collectives to which it came last, of the time after the median of the others
    error_ns: int  # of late_ns, as the clocks of the ranks are this far apart
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

    @property
    def is_sure(self) -> bool:
        """True if it was later than the possible error of the ranks' clocks."""
        return self.late_ns > self.error_ns


def activity(rank: RankTrace, compute: Union, costs: Sequence[Cost]) -> Activity:
    """Return the activity of a rank. Collectives that are not matched count as moving data."""
    waits = {
        id(cost.exchange.kernels[rank.rank]): cost.parts[rank.rank].waiting_ns
        for cost in costs
        if rank.rank in cost.parts
    }
    kernels = rank.collectives
    ends = [kernel.end_ns for kernel in kernels]
    moving = Union([kernel.start_ns + waits.get(id(kernel), 0) for kernel in kernels], ends)
    communication = Union([kernel.start_ns for kernel in kernels], ends)
    return Activity(compute, compute | moving, compute | communication, communication)


def step_times(rank: RankTrace, done: Activity) -> Iterator[StepTimes]:
    """Yield the steps of a rank, and the time before the first: together all of its span."""
    spans = [(step.name, step.start_ns, step.end_ns) for step in rank.steps]
    if spans[0][1] > rank.start_ns:
        spans.insert(0, (OUTSIDE, rank.start_ns, spans[0][1]))
    seen: Counter[str] = Counter()
    for name, start, end in spans:
        compute, exposed, waiting, idle = map(int, done.times_ns(start, end))
        yield StepTimes(
            rank=rank.rank,
            name=name,
            number=seen[name],
            start_ns=start,
            end_ns=end,
            compute_ns=compute,
            exposed_ns=exposed,
            waiting_ns=waiting,
            idle_ns=idle,
            hidden_ns=int(done.communication.covered(start, end)) - exposed - waiting,
        )
        seen[name] += 1


def checks(rank: RankTrace, steps: Sequence[StepTimes]) -> Iterator[RankCheck]:
    """Yield the sums over the steps of a rank against what SQL counted for its device."""
    if len(rank.times) != 1:
        return
    (times,) = rank.times
    for text, right, *names in (
        ("span", times.span_ns, "wall_ns"),
        ("compute", times.compute_ns, "compute_ns"),
        ("exposed communication and waiting", times.exposed_ns, "exposed_ns", "waiting_ns"),
        ("idle", times.idle_ns, "idle_ns"),
        ("hidden communication", times.hidden_ns, "hidden_ns"),
    ):
        left = sum(getattr(step, name) for step in steps for name in names)
        yield RankCheck(rank.rank, f"{text}, summed over steps and as SQL counts it", left, right)
    for step in steps:
        parts = step.compute_ns + step.exposed_ns + step.waiting_ns + step.idle_ns
        yield RankCheck(rank.rank, f"{step.name}: wall time and its parts", step.wall_ns, parts)


def stragglers(
    step: Sequence[StepTimes], costs: Sequence[Cost], traces: Mapping[int, RankTrace], done: Mapping[int, Activity]
) -> Iterator[Straggler]:
    """Yield the ranks for which the others waited in a step, the latest first.

    That one, and each of LEAST_WAITED or more.
    """
    spans = {item.rank: item for item in step}

    def is_inside(cost: Cost) -> bool:
        """Return True if the lowest participating rank began it in the step."""
        rank, kernel = min(cost.exchange.kernels), cost.exchange.one
        return rank in spans and spans[rank].start_ns <= kernel.start_ns < spans[rank].end_ns

    inside = [cost for cost in costs if cost.last_rank is not None and is_inside(cost)]
    late: Counter[int] = Counter()
    waited: Counter[int] = Counter()
    for cost in inside:
        if cost.last_rank is not None:
            late[cost.last_rank] += cost.late_ns
            waited[cost.last_rank] += sum(
                part.waiting_ns for rank, part in cost.parts.items() if rank != cost.last_rank
            )
    ranks = sorted((rank for rank in late if late[rank]), key=lambda rank: (-late[rank], rank))
    for rank in ranks:
        if rank == ranks[0] or waited[rank] >= LEAST_WAITED * waited.total():
            yield _straggler(rank, step[0], inside, waited[rank], traces[rank], done[rank])


def _straggler(
    rank: int, step: StepTimes, inside: Sequence[Cost], waited_ns: int, trace: RankTrace, done: Activity
) -> Straggler:
    mine = [cost for cost in inside if cost.last_rank == rank]
    # From the median start of the others to its own, on the clock of the rank's file.
    ends = [cost.exchange.kernels[rank].start_ns for cost in mine]
    windows = [(end - cost.late_ns, end) for cost, end in zip(mine, ends, strict=True)]
    busy, compute = (sum(int(item.covered(*window)) for window in windows) for item in (done.busy, done.compute))
    kernels, causes, host = did(trace, windows)
    return Straggler(
        step=step.name,
        number=step.number,
        rank=rank,
        late_ns=sum(cost.late_ns for cost in mine),
        error_ns=len(mine) * max(cost.apart_ns for cost in inside),
        collectives=len(mine),
        of_collectives=len(inside),
        waited_ns=waited_ns,
        compute_ns=compute,
        exposed_ns=busy - compute,
        idle_ns=sum(end - start for start, end in windows) - busy,
        kernels=kernels,
        causes=causes,
        host=host,
    )


def did(trace: RankTrace, windows: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield the largest kernels, causes of gaps, and host activities in them, each with its time in the windows."""
    kernels: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    host: Counter[str] = Counter()
    steps = {step.name for step in trace.steps}
    for index, shared_ns in _shared(trace.work.starts_ns, trace.work.ends_ns, windows):
        kernels[trace.work.names[trace.work.name_of[index]]] += shared_ns
    for index, shared_ns in _shared([gap.start_ns for gap in trace.gaps], [gap.end_ns for gap in trace.gaps], windows):
        gap = trace.gaps[index]
        causes[gap.cause] += shared_ns
        host["outside operators" if gap.host is None or gap.host in steps else gap.host] += shared_ns
    for times in (kernels, causes, host):
        yield tuple(sorted(times.items(), key=lambda item: (-item[1], item[0]))[:_NAMED])


def _shared(
    starts_ns: Sequence[int], ends_ns: Sequence[int], windows: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the index of each interval that overlaps a window, with its time in the window."""
    starts, ends = np.array(starts_ns, dtype=np.int64), np.array(ends_ns, dtype=np.int64)
    for begin, end in windows:
        for index in np.flatnonzero((starts < end) & (ends > begin)).tolist():
            yield index, int(min(ends[index], end) - max(starts[index], begin))
