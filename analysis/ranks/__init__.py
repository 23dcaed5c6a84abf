"""The ranks of one job side by side: their files found, read, aligned by collectives, and their time split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from molprof.analysis.ranks.clocks import Clocks, align
from molprof.analysis.ranks.exchanges import Cost, cost_of
from molprof.analysis.ranks.find import checked
from molprof.analysis.ranks.match import match
from molprof.analysis.ranks.model import RankTrace
from molprof.analysis.ranks.split import Activity, Check, StepTimes, activity, by_step, checks, computing, step_times
from molprof.analysis.ranks.stragglers import Straggler, straggler

__all__ = ["Job", "RankTrace", "job_of_files"]


@dataclass(frozen=True)
class Job:
    """The ranks that are here, in order, and what they show together."""

    ranks: tuple[RankTrace, ...]
    world_size: int | None  # None: not recorded
    remarks: tuple[str, ...]  # what a reader must know of the set
    left_out: tuple[str, ...]  # which files of the folders were not read
    clocks: Clocks
    costs: tuple[Cost, ...]  # of the exchanges of two ranks or more that are here
    activities: dict[int, Activity]  # by rank
    steps: dict[tuple[str, int], list[StepTimes]]  # by name and number; each of the ranks that have it
    stragglers: tuple[Straggler, ...]
    checks: tuple[Check, ...]


def job_of_files(read: Sequence[RankTrace], left_out: Sequence[str] = ()) -> Job:
    """The job of the ranks that were read from files. Raises TraceError where they are not the ranks of one job."""
    ranks, wrong = checked(read)
    what = "is damaged, and only its whole part was read"
    damaged = [f"{item.path} {what}: {item.problem}" for item in ranks if item.problem]
    return job_of(ranks, (*damaged, *wrong), tuple(left_out))


def job_of(ranks: Sequence[RankTrace], remarks: tuple[str, ...], left_out: tuple[str, ...]) -> Job:
    """The job of ranks that are in order."""
    world_size = next((item.world_size for item in ranks if item.world_size is not None), None)
    exchanges, differing = match(ranks)
    clocks = align([item.rank for item in ranks], exchanges)
    compute = {item.rank: computing(item) for item in ranks}
    paid = [cost_of(item, clocks, compute, world_size) for item in exchanges]
    done = {item.rank: activity(item, compute[item.rank], paid) for item in ranks}
    times = {item.rank: tuple(step_times(item, done[item.rank])) for item in ranks}
    steps = by_step(times)
    traces = {item.rank: (item, done[item.rank]) for item in ranks}
    found = [straggler(step, paid, traces) for step in steps.values()]
    return Job(
        ranks=tuple(ranks),
        world_size=world_size,
        remarks=(*remarks, *differing),
        left_out=left_out,
        clocks=clocks,
        costs=tuple(paid),
        activities=done,
        steps=steps,
        stragglers=tuple(item for item in found if item is not None),
        checks=tuple(check for item in ranks for check in checks(item, times[item.rank])),
    )
