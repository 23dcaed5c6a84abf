"""Two traces by kernel, operator, module, Python function or phase: medians over their recorded steps, and their noise.

Every nanosecond of a step is of one row: of a piece of work, or of the time before and after it in which none ran,
which by module, function and phase is of what the host was in meanwhile. So the rows of a step add up to the step.
Medians of rows need not add up to the median of the steps: what is missing has a row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np

from molprof.analysis.compare.kernels.host import MODULE, PHASE, SOURCE
from molprof.analysis.compare.kernels.read import RecordedWork, Selection
from molprof.analysis.compare.kernels.sums import what
from molprof.common.values import class_names, short_source

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
class Amounts:
    """Amounts by step of a trace, of which most may be 0."""

    size: int  # number of steps
    known: Counter[int] = field(default_factory=Counter)  # by place of the step; steps without any are left out

    @cached_property
    def _ordered(self) -> list[int]:
        return sorted(value for value in self.known.values() if value)

    def ranked(self, rank: int) -> int:
        """Return the amount of this rank among all steps, in ascending order."""
        zeros = self.size - len(self._ordered)
        return 0 if rank < zeros else self._ordered[rank - zeros]

    @property
    def total(self) -> int:
        """The sum of all amounts."""
        return sum(self._ordered)

    @property
    def median(self) -> float:
        """The median of the amounts."""
        low, high = self.ranked((self.size - 1) // 2), self.ranked(self.size // 2)
        return low if low == high else (low + high) / 2

    @property
    def spread(self) -> tuple[int, int]:
        """The interval that holds the amounts of most steps."""
        if self.size < _MANY_STEPS:
            return self.ranked(0), self.ranked(self.size - 1)
        low, high = (-(-self.size * percent // 100) - 1 for percent in (_LOW, _HIGH))
        return self.ranked(low), self.ranked(high)


@dataclass
class StepDurations:
    """Time and number of pieces of work of one row, or of a whole step, in each step of a trace."""

    times: Amounts
    counts: Amounts

    @property
    def median_ns(self) -> float:
        """The median time of a step, ns."""
        return self.times.median

    @property
    def spread_ns(self) -> tuple[int, int]:
        """The interval of the median time of a step, ns."""
        return self.times.spread

    @property
    def count(self) -> float:
        """Mean number of pieces of work in a step."""
        return self.counts.total / self.times.size

    def add(self, index: int, ns: int, count: int = 0) -> None:
        """Add time and number of pieces of work to the step at `index`."""
        self.times.known[index] += ns
        self.counts.known[index] += count


def _no_steps(size: int) -> StepDurations:
    return StepDurations(Amounts(size), Amounts(size))


def _are_disjoint(first: Amounts, other: Amounts) -> bool:
    """Return True if most steps of one are longer than most steps of the other."""
    (low, high), (other_low, other_high) = first.spread, other.spread
    return low > other_high or other_low > high


@dataclass(frozen=True)
class StepRow:
    """A kernel, operator, module, function or phase in the steps of both traces."""

    name: str
    first: StepDurations
    other: StepDurations

    @property
    def change_ns(self) -> float:
        """Other minus first, of the medians."""
        return self.other.median_ns - self.first.median_ns

    @property
    def noise_ns(self) -> float | None:
        """The largest difference of medians whose steps still overlap; None below LEAST_STEPS of either."""
        if min(self.first.times.size, self.other.times.size) < LEAST_STEPS:
            return None
        low, high = (self.first, self.other) if self.change_ns >= 0 else (self.other, self.first)
        return (low.spread_ns[1] - low.median_ns) + (high.median_ns - high.spread_ns[0])

    @property
    def within_noise(self) -> bool:
        """True if the steps of both overlap, or nothing differs; False where noise is unknown."""
        if not self.change_ns or self.noise_ns is None:
            return not self.change_ns
        # Work that most steps of one trace have, and none of the other, is no noise.
        return abs(self.change_ns) <= self.noise_ns and not (self.is_counted and self.is_of_one)

    @property
    def is_counted(self) -> bool:
        """True if the row counts pieces of work; False if it has time alone."""
        return bool(self.first.counts.total or self.other.counts.total)

    @property
    def is_of_one(self) -> bool:
        """True if only one trace has the row."""
        return bool(self.first.times.total) != bool(self.other.times.total)

    @property
    def is_same_work(self) -> bool:
        """True if both did the same work, equally often per step, as far as counts show."""
        if self.is_of_one:
            return False
        return self.first.count == self.other.count or not _are_disjoint(self.first.counts, self.other.counts)


@dataclass(frozen=True)
class BySteps:
    """Two traces by one of BYS, over their steps of one kind; a whole trace counts as one step."""

    by: str
    kind: str | None
    first: Selection
    other: Selection
    whole: StepRow
    rows: tuple[StepRow, ...]  # the largest change first
    problems: tuple[str, ...] = ()  # sums that do not hold, in words

    @property
    def steps(self) -> tuple[int, int]:
        """The numbers of steps of both traces."""
        return self.whole.first.times.size, self.whole.other.times.size

    @property
    def is_noise_known(self) -> bool:
        """True if the noise of a difference is known."""
        return self.whole.noise_ns is not None

    @property
    def rest_ns(self) -> float:
        """The change of the median step that the changes of the rows' medians do not explain."""
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
class _TraceSteps:
    """The steps of one kind in one trace."""

    whole: StepDurations
    rows: dict[str, StepDurations]
    problems: list[str] = field(default_factory=list)


def by_steps(first: Selection, other: Selection, by: str) -> tuple[BySteps, ...]:
    """Return the difference of two selections for each common kind of step, the kind with most steps first."""
    counts = [Counter(step.kind for step in side.steps) for side in (first, other)]
    kinds = sorted(counts[0].keys() & counts[1].keys(), key=lambda kind: -min(count[kind] for count in counts))
    differences = []
    for kind in kinds or [None]:
        # Without a common kind, all steps, or the whole traces.
        sides = [_summed(side, by, kind if kinds else None, of_all=not kinds) for side in (first, other)]
        names = dict.fromkeys(name for side in sides for name in side.rows)
        rows = [StepRow(name, *(_row(side, name) for side in sides)) for name in names]
        rows.sort(key=lambda row: (-abs(row.change_ns), -row.first.median_ns))
        whole = StepRow("", sides[0].whole, sides[1].whole)
        problems = (*sides[0].problems, *sides[1].problems)
        differences.append(BySteps(by, kind, first, other, whole, tuple(rows), problems))
    return tuple(differences)


def _row(side: _TraceSteps, name: str) -> StepDurations:
    """Return the durations of a row; zeros if the trace lacks it."""
    return side.rows.get(name) or _no_steps(side.whole.times.size)


def _summed(side: Selection, by: str, kind: str | None, of_all: bool) -> _TraceSteps:
    """Return the time of each row in each step of a kind; of_all: in all steps, or in the whole trace as one."""
    steps: list[int | None] = [step.id for step in side.steps if of_all or step.kind == kind] or [None]
    index_of = {step: index for index, step in enumerate(steps)}
    rows: defaultdict[str, StepDurations] = defaultdict(lambda: _no_steps(len(steps)))
    trace_steps = _TraceSteps(_no_steps(len(steps)), rows)
    name_of = _names(side, by)
    for lane in side.lanes:
        if (index := index_of.get(lane.step_id)) is None:
            continue
        trace_steps.whole.add(index, lane.span_ns, len(lane.items))
        for item in lane.items:
            rows[name_of(item)].add(index, item.own_ns, 1)
    for step_id, name, ns in _gaps(side, by):
        if ns and (index := index_of.get(step_id)) is not None:
            rows[name].add(index, ns)
    added: Counter[int] = Counter()
    for row in rows.values():
        added.update(row.times.known)
    for index in range(len(steps)):
        if added[index] != (whole_ns := trace_steps.whole.times.known[index]):
            text = f"{side.trace.info.path}: the rows by {by} of step {index}"
            trace_steps.problems.append(f"{text} add up to {added[index]} ns, it takes {whole_ns} ns")
    return trace_steps


def _names(side: Selection, by: str) -> Callable[[RecordedWork], str]:
    """Return a function that names the row of a piece of work."""
    if by == KERNEL:
        return what
    if by == OPERATOR:
        return lambda item: item.operator or NOWHERE[by]
    place_of = _places(by)
    return lambda item: place_of(getattr(item, by))


def _places(by: str) -> Callable[[str | None], str]:
    """Return a function that names the row of a module, function or phase."""
    shown: dict[str, Callable[[str], str]] = {MODULE: class_names, PHASE: str, SOURCE: short_source}
    return cache(lambda name: NOWHERE[by] if name is None else shown[by](name))


def _gaps(side: Selection, by: str) -> Iterable[tuple[int | None, str, int]]:
    """Yield the time in which none of the compared work ran: step, row and ns."""
    host = side.trace.host.get(by)
    idle = IDLE_GPU if side.trace.has_gpu else IDLE_CPU
    if host is None:
        for lane in side.lanes:
            yield lane.step_id, idle, lane.tail_ns + sum(item.gap_ns for item in lane.items)
        return
    threads = {step.id: (step.upid, step.tid) for step in side.steps}
    main = host.main_thread
    place_of = _places(by)
    spans: defaultdict[tuple[int, int] | None, list[tuple[int, int, int | None]]] = defaultdict(list)
    for lane in side.lanes:
        thread = threads.get(lane.step_id, main) if lane.step_id is not None else main
        for item in lane.items:
            if item.gap_ns:
                end = item.ts if lane.end is None else min(item.ts, lane.end)
                spans[thread].append((end - item.gap_ns, end, lane.step_id))
        if lane.tail_ns and lane.end is not None:
            spans[thread].append((lane.end - lane.tail_ns, lane.end, lane.step_id))
    for thread, idle_spans in spans.items():
        starts, ends = (np.array([span[column] for span in idle_spans], dtype=np.int64) for column in (0, 1))
        for index, name, ns in host.shares(thread, starts, ends):
            yield idle_spans[index][2], place_of(name), ns
