"""The time of each rank and step, split: compute, exposed communication, waiting, idle. The parts add up to the ns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from molprof.analysis.figures.union import Union
from molprof.analysis.ranks.exchanges import Cost
from molprof.analysis.ranks.model import RankTrace

OUTSIDE = "before the first step"


@dataclass(frozen=True)
class Activity:
    """What a rank did when, on the clock of its file: computing; computing or moving data; any work at all."""

    compute: Union
    compute_or_moving: Union
    busy: Union
    communication: Union


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
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Check:
    """Two figures of a rank that must be equal: one from Python, one from SQL."""

    rank: int
    text: str
    left_ns: int
    right_ns: int

    @property
    def holds(self) -> bool:
        return self.left_ns == self.right_ns


def computing(rank: RankTrace) -> Union:
    """When a rank ran anything but collectives."""
    return Union(rank.work.starts_ns, rank.work.ends_ns)


def activity(rank: RankTrace, compute: Union, costs: Sequence[Cost]) -> Activity:
    """What a rank did when. Collectives that are not matched count as moving data."""
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
    """The steps of a rank, and what lies before the first: together all of its span."""
    spans = [(step.name, step.start_ns, step.end_ns) for step in rank.steps]
    if spans[0][1] > rank.start_ns:
        spans.insert(0, (OUTSIDE, rank.start_ns, spans[0][1]))
    seen: Counter[str] = Counter()
    for name, start, end in spans:
        compute = int(done.compute.covered(start, end))
        moving = int(done.compute_or_moving.covered(start, end))
        busy = int(done.busy.covered(start, end))
        communication = int(done.communication.covered(start, end))
        yield StepTimes(
            rank=rank.rank,
            name=name,
            number=seen[name],
            start_ns=start,
            end_ns=end,
            compute_ns=compute,
            exposed_ns=moving - compute,
            waiting_ns=busy - moving,
            idle_ns=end - start - busy,
            hidden_ns=communication + compute - busy,
        )
        seen[name] += 1


def checks(rank: RankTrace, steps: Sequence[StepTimes]) -> Iterator[Check]:
    """Sums over the steps of a rank against what SQL counted for its device."""
    if len(rank.times) != 1:
        return
    (times,) = rank.times
    total = {
        "span": (sum(step.wall_ns for step in steps), times.span_ns),
        "compute": (sum(step.compute_ns for step in steps), times.compute_ns),
        "exposed communication and waiting": (
            sum(step.exposed_ns + step.waiting_ns for step in steps),
            times.exposed_ns,
        ),
        "idle": (sum(step.idle_ns for step in steps), times.idle_ns),
        "hidden communication": (sum(step.hidden_ns for step in steps), times.hidden_ns),
    }
    for text, (left, right) in total.items():
        yield Check(rank.rank, f"{text}, summed over steps and as SQL counts it", left, right)
    for step in steps:
        parts = step.compute_ns + step.exposed_ns + step.waiting_ns + step.idle_ns
        yield Check(rank.rank, f"{step.name}: wall time and its parts", step.wall_ns, parts)


def by_step(times: Mapping[int, Sequence[StepTimes]]) -> dict[tuple[str, int], list[StepTimes]]:
    """The same step of all ranks that have it, in the order of the lowest rank."""
    found: dict[tuple[str, int], list[StepTimes]] = {}
    for rank in sorted(times):
        for step in times[rank]:
            found.setdefault((step.name, step.number), []).append(step)
    return found
