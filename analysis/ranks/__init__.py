"""The ranks of one job side by side: finding and reading their files, aligned clocks, and the parts of their time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from molprof.analysis.ranks.exchanges import Cost, RankClocks, align, cost_of, match
from molprof.analysis.ranks.files import checked
from molprof.analysis.ranks.path import PathSpan, critical_spans
from molprof.analysis.ranks.read import RankTrace, unknown_kernels
from molprof.analysis.ranks.split import (
    Activity,
    RankCheck,
    StepTimes,
    Straggler,
    activity,
    checks,
    step_times,
    stragglers,
)
from molprof.analysis.reader.parts import reading_summary, reason_of
from molprof.analysis.union import Union

__all__ = ["RankTrace", "RankedJob", "Unread", "job_of_files"]


@dataclass(frozen=True)
class Unread:
    """A file of the job that could not be read, and why."""

    path: str
    problem: str


@dataclass(frozen=True)
class RankedJob:
    """The ranks with files, in order, and their common figures."""

    ranks: tuple[RankTrace, ...]
    world_size: int | None  # None: not recorded
    remarks: tuple[str, ...]  # what a reader must know of the set
    left_out: tuple[str, ...]  # which files of the folders are no traces
    unread: tuple[Unread, ...]  # files that could not be read
    clocks: RankClocks
    costs: tuple[Cost, ...]  # of the exchanges of two ranks or more that are here
    activities: dict[int, Activity]  # by rank
    steps: dict[tuple[str, int], list[StepTimes]]  # by name and number; each of the ranks that have it
    stragglers: tuple[Straggler, ...]
    checks: tuple[RankCheck, ...]
    path: tuple[PathSpan, ...]  # the critical path over ranks; empty without joint collectives


def job_of_files(
    read: Sequence[RankTrace], left_out: Sequence[str] = (), unread: Sequence[Unread] = (), files: int = 0
) -> RankedJob:
    """Return the job of the ranks that were read from so many files.

    Raises TraceError where they are not the ranks of one job.
    """
    ranks, wrong = checked(read)
    failed = [(reason_of(item.path, item.problem), item.problem) for item in unread]
    how_many = [reading_summary(files, failed, "file")] if failed else []
    what = "is damaged, and only its whole part was read"
    damaged = [f"{item.path} {what}: {item.problem}" for item in ranks if item.problem]
    world_size = next((item.world_size for item in ranks if item.world_size is not None), None)
    exchanges, differing = match(ranks)
    clocks = align([item.rank for item in ranks], exchanges)
    compute = {item.rank: Union(item.work.starts_ns, item.work.ends_ns) for item in ranks}  # all but collectives
    costs = [cost_of(item, clocks, compute, world_size) for item in exchanges]
    done = {item.rank: activity(item, compute[item.rank], costs) for item in ranks}
    times = {item.rank: tuple(step_times(item, done[item.rank])) for item in ranks}
    steps: dict[tuple[str, int], list[StepTimes]] = {}
    for each in times.values():
        for step in each:
            steps.setdefault((step.name, step.number), []).append(step)
    traces = {item.rank: item for item in ranks}
    return RankedJob(
        ranks=tuple(ranks),
        world_size=world_size,
        remarks=(*how_many, *damaged, *wrong, *differing, *unknown_kernels(ranks)),
        left_out=tuple(left_out),
        unread=tuple(unread),
        clocks=clocks,
        costs=tuple(costs),
        activities=done,
        steps=steps,
        stragglers=tuple(item for step in steps.values() for item in stragglers(step, costs, traces, done)),
        path=critical_spans(ranks, costs, clocks, done),
        checks=tuple(check for item in ranks for check in checks(item, times[item.rank])),
    )
