"""Two traces by kernel, operator, module, Python function or phase: medians over their recorded steps, and their noise.

Every nanosecond of a step is of one row: of a piece of work, or of the time before and after it in which none ran,
which by module, function and phase is of what the host was in meanwhile. So the rows of a step add up to the step.
Medians of rows need not add up to the median of the steps: what is missing has a row.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from molprof.analysis.compare.kernels.host import MODULE, PHASE, SOURCE
from molprof.analysis.compare.kernels.read import Selection, Work
from molprof.analysis.compare.kernels.sums import what
from molprof.common.values import class_names, percentile, short_source

KERNEL, OPERATOR = "kernel", "operator"
BYS = (KERNEL, OPERATOR, MODULE, SOURCE, PHASE)
NOWHERE = {OPERATOR: "(no operator)", MODULE: "(no module)", SOURCE: "(no function)", PHASE: "(outside phases)"}
IDLE_GPU, IDLE_CPU = "(GPU idle)", "(outside operators)"
# With fewer steps of either trace, noise is unknown.
LEAST_STEPS = 3
# The spread of steps is from one percentile to the other; of fewer steps than tell these, from the least to the most.
_LOW, _HIGH, _MANY_STEPS = 10, 90, 10
# Rows that change by less, as a share of the first trace's step, are no cause.
_LEAST_RATIO = 0.001
# Nor are functions that only one trace has and that take a smaller share of its step.
_LEAST_ALONE = 0.01


@dataclass
class Steps:
    """What one row, or a whole step, took in each step of a trace."""

    times_ns: list[int]
    counts: list[int]

    @property
    def median_ns(self) -> float:
        return statistics.median(self.times_ns)

    @property
    def count(self) -> float:
        """Mean number of pieces of work in a step."""
        return statistics.fmean(self.counts)


def spread(values: Sequence[int]) -> tuple[int, int]:
    """Between which values most steps are."""
    ordered = sorted(values)
    if len(ordered) < _MANY_STEPS:
        return ordered[0], ordered[-1]
    low, high = percentile(ordered, _LOW), percentile(ordered, _HIGH)
    assert low is not None
    assert high is not None
    return low, high


def _apart(first: Sequence[int], other: Sequence[int]) -> bool:
    """Whether most steps of the one are beyond most of the other."""
    (low, high), (other_low, other_high) = spread(first), spread(other)
    return low > other_high or other_low > high


@dataclass(frozen=True)
class StepRow:
    """A kernel, operator, module, function or phase in the steps of both traces."""

    name: str
    first: Steps
    other: Steps

    @property
    def change_ns(self) -> float:
        """Other minus first, of the medians."""
        return self.other.median_ns - self.first.median_ns

    @property
    def noise_ns(self) -> float | None:
        """How far apart medians may be whose steps still overlap; None with fewer than LEAST_STEPS of either."""
        if min(len(self.first.times_ns), len(self.other.times_ns)) < LEAST_STEPS:
            return None
        low, high = (self.first, self.other) if self.change_ns >= 0 else (self.other, self.first)
        return (spread(low.times_ns)[1] - low.median_ns) + (high.median_ns - spread(high.times_ns)[0])

    @property
    def within_noise(self) -> bool:
        """The steps of both overlap, or nothing differs; False where noise is unknown."""
        if not self.change_ns or self.noise_ns is None:
            return not self.change_ns
        # Work that most steps of one trace have, and none of the other, is no noise.
        return abs(self.change_ns) <= self.noise_ns and not (self.is_counted and self.is_of_one)

    @property
    def is_counted(self) -> bool:
        """It has pieces of work, not time alone."""
        return any(self.first.counts) or any(self.other.counts)

    @property
    def is_of_one(self) -> bool:
        """Only one trace has it."""
        return any(self.first.times_ns) != any(self.other.times_ns)

    @property
    def is_same_work(self) -> bool:
        """Both did it, as often per step, as far as counts tell."""
        if self.is_of_one:
            return False
        return self.first.count == self.other.count or not _apart(self.first.counts, self.other.counts)


@dataclass(frozen=True)
class BySteps:
    """Two traces by one of BYS, over their steps of one kind; of whole traces each is one step."""

    by: str
    kind: str | None
    first: Selection
    other: Selection
    whole: StepRow
    rows: tuple[StepRow, ...]  # the largest change first
    problems: tuple[str, ...] = ()  # sums that do not hold, in words

    @property
    def steps(self) -> tuple[int, int]:
        return len(self.whole.first.times_ns), len(self.whole.other.times_ns)

    @property
    def is_noise_known(self) -> bool:
        return self.whole.noise_ns is not None

    @property
    def rest_ns(self) -> float:
        """What the changes of medians leave of the change of the step's median."""
        return self.whole.change_ns - sum(row.change_ns for row in self.rows)

    @property
    def unlike(self) -> tuple[StepRow, ...]:
        """Rows of unequal work, beyond the noise as far as it is known: what may be named as a cause."""
        return tuple(row for row in self._beyond if self._is_unlike(row))

    @property
    def uneven(self) -> tuple[StepRow, ...]:
        """Rows of unequal work whose time is within the noise."""
        return tuple(row for row in self.rows if row.within_noise and row.is_counted and not row.is_same_work)

    @property
    def slower(self) -> tuple[StepRow, ...]:
        """Rows of equal work that takes another time, beyond the noise as far as it is known."""
        return tuple(row for row in self._beyond if row.is_same_work)

    @property
    def _beyond(self) -> list[StepRow]:
        least_ns = _LEAST_RATIO * self.whole.first.median_ns
        return [row for row in self.rows if not row.within_noise and abs(row.change_ns) >= least_ns]

    def _is_unlike(self, row: StepRow) -> bool:
        if row.is_same_work or row.is_counted:
            return not row.is_same_work
        # Time alone: a long trace leaves out short functions, and of unknown noise it tells nothing.
        most = max(
            row.first.median_ns / (self.whole.first.median_ns or 1),
            row.other.median_ns / (self.whole.other.median_ns or 1),
        )
        return self.is_noise_known and most >= _LEAST_ALONE


@dataclass
class _Trace:
    """The steps of a kind of one trace."""

    whole: Steps
    rows: defaultdict[str, Steps] = field(default_factory=lambda: defaultdict(lambda: Steps([], [])))
    problems: list[str] = field(default_factory=list)


def by_steps(first: Selection, other: Selection, by: str) -> tuple[BySteps, ...]:
    """The difference of two selections, for each kind of step that both have; that with most steps first."""
    counts = [Counter(step.kind for step in side.steps) for side in (first, other)]
    kinds = sorted(counts[0].keys() & counts[1].keys(), key=lambda kind: -min(count[kind] for count in counts))
    found = []
    for kind in kinds or [None]:
        # Without a common kind, all steps, or the whole traces.
        sides = [_summed(side, by, kind if kinds else None, of_all=not kinds) for side in (first, other)]
        names = dict.fromkeys(name for side in sides for name in side.rows)
        rows = [StepRow(name, *(_row(side, name) for side in sides)) for name in names]
        rows.sort(key=lambda row: (-abs(row.change_ns), -row.first.median_ns))
        whole = StepRow("", sides[0].whole, sides[1].whole)
        problems = (*sides[0].problems, *sides[1].problems)
        found.append(BySteps(by, kind, first, other, whole, tuple(rows), problems))
    return tuple(found)


def _row(side: _Trace, name: str) -> Steps:
    """Zeros for what a trace does not have."""
    nothing = [0] * len(side.whole.times_ns)
    return side.rows[name] if name in side.rows else Steps(nothing, nothing)


def _summed(side: Selection, by: str, kind: str | None, of_all: bool) -> _Trace:
    """Each row in each step of a kind; of_all: in all steps, or in the whole trace as one."""
    steps: list[int | None] = [step.id for step in side.steps if of_all or step.kind == kind] or [None]
    places = {step: place for place, step in enumerate(steps)}
    found = _Trace(Steps([0] * len(steps), [0] * len(steps)))
    found.rows.default_factory = lambda: Steps([0] * len(steps), [0] * len(steps))
    name_of = _names(side, by)
    for lane in side.lanes:
        if (place := places.get(lane.step_id)) is None:
            continue
        found.whole.times_ns[place] += lane.span_ns
        found.whole.counts[place] += len(lane.items)
        for item in lane.items:
            row = found.rows[name_of(item)]
            row.times_ns[place] += item.own_ns
            row.counts[place] += 1
    for step_id, name, ns in _gaps(side, by):
        if (place := places.get(step_id)) is not None:
            found.rows[name].times_ns[place] += ns
    for place, whole_ns in enumerate(found.whole.times_ns):
        added_ns = sum(row.times_ns[place] for row in found.rows.values())
        if added_ns != whole_ns:
            rows = f"{side.trace.info.path}: the rows by {by} of step {place}"
            found.problems.append(f"{rows} add up to {added_ns} ns, it takes {whole_ns} ns")
    return found


def _names(side: Selection, by: str) -> Callable[[Work], str]:
    """The row of a piece of work."""
    if by == KERNEL:
        return what
    if by == OPERATOR:
        return lambda item: item.operator or NOWHERE[by]
    place = _places(side, by)
    return lambda item: place(getattr(item, by))


def _places(side: Selection, by: str) -> Callable[[str | None], str]:
    """The row of a module, function or phase; functions without their line where their name tells them apart."""
    if by == MODULE:
        return lambda name: NOWHERE[by] if name is None else class_names(name)
    if by == PHASE:
        return lambda name: NOWHERE[by] if name is None else name
    return lambda name: NOWHERE[by] if name is None else short_source(name)


def _gaps(side: Selection, by: str) -> Iterable[tuple[int | None, str, int]]:
    """The time in which none of the compared work ran: step, row and ns."""
    host = side.trace.host.get(by)
    idle = IDLE_GPU if side.trace.has_gpu else IDLE_CPU
    if host is None:
        for lane in side.lanes:
            yield lane.step_id, idle, lane.tail_ns + sum(item.gap_ns for item in lane.items)
        return
    threads = {step.id: (step.upid, step.tid) for step in side.steps}
    main = host.main_thread
    place = _places(side, by)
    spans: defaultdict[tuple[int, int] | None, list[tuple[int, int, int | None]]] = defaultdict(list)
    for lane in side.lanes:
        thread = threads.get(lane.step_id, main) if lane.step_id is not None else main
        for item in lane.items:
            if item.gap_ns:
                end = item.ts if lane.end is None else min(item.ts, lane.end)
                spans[thread].append((end - item.gap_ns, end, lane.step_id))
        if lane.tail_ns and lane.end is not None:
            spans[thread].append((lane.end - lane.tail_ns, lane.end, lane.step_id))
    for thread, found in spans.items():
        starts, ends = (np.array([span[column] for span in found], dtype=np.int64) for column in (0, 1))
        for index, name, ns in host.shares(thread, starts, ends):
            yield found[index][2], place(name), ns
