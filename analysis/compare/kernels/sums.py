"""Pairs the work of two traces in order, and splits their difference into a sum.

Every nanosecond is of a pair, of work that one lacks, or of a gap. Kernel names differ between vendors and versions, so
they decide only where no operator is recorded. Pairs are found by levels, the first that tell most apart: LEVELS. What
an alignment leaves over on both sides and is the very same work was moved. The sum is folded by location (phase and
modules without their numbers), by layer, and by hunks that differ in the same way.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from molprof.analysis.compare.kernels.read import Lane, RecordedWork, Selection
from molprof.analysis.figures.sequence import SPECIFIC, align_by, functions_in, gaps
from molprof.common.values import class_names, signed_time_text

MATCHED, INSERTED, DELETED, MOVED = "matched", "inserted", "deleted", "moved"
LEVELS = (
    "module, operator, class and shape",
    "module, operator and class",
    "operator and class",
    "name",
    "function of the name",
    "class",
    "operator",
)
# In order of display. slower and faster are of matched work.
PARTS = ("slower", "faster", "inserted", "deleted", "moved", "idle")
EQUAL = "equal"  # of matched work that takes the same time, which is in no part
PART_WORDS = {
    "slower": "matched and slower",
    "faster": "matched and faster",
    "equal": "matched and equal",
    "inserted": "only in the second",
    "deleted": "only in the first",
    "moved": "moved",
    "idle": "idle between",
}
NOWHERE = "(no module)"
NO_LAYER = "outside layers"


@dataclass(frozen=True)
class FoldedLocation:
    """A location whose layers are folded into one; work that only one trace has keeps that trace's location."""

    phase: str | None
    module: str | None  # classes of modules

    @property
    def text(self) -> str:
        """The location as text."""
        return " ".join(filter(None, (self.phase, self.module))) or NOWHERE

    @property
    def short(self) -> str:
        """The same with the last two modules alone."""
        return FoldedLocation(self.phase, self.inner).text

    @property
    def inner(self) -> str:
        """The last two modules."""
        names = (self.module or "").split("/")
        return "/".join(names if len(names) <= 2 else ["…", *names[-2:]])


class Split(NamedTuple):
    """The difference of a pair of matched work, split in two, ns; the parts add up to it."""

    work_ns: float  # by more FLOPs or bytes, at the mean of both rates
    rate_ns: float  # by another rate, for the mean of both amounts


@dataclass(frozen=True)
class WorkChange:
    """A pair of pieces of work, or one without a counterpart."""

    kind: str
    first: RecordedWork | None
    other: RecordedWork | None
    level: int | None = None  # of LEVELS, of what is matched
    hunk: int = -1  # number of the run of changes without a match in which it is; -1: matched

    @property
    def time_ns(self) -> int:
        """Other minus first, of the work alone."""
        return (self.other.own_ns if self.other else 0) - (self.first.own_ns if self.first else 0)

    @property
    def split(self) -> Split | None:
        """The time difference as more work and another rate; None without a counterpart or a known amount."""
        first, other = self.first, self.other
        if first is None or other is None or not first.amount or not other.amount or first.operator != other.operator:
            return None
        rates = first.own_ns / first.amount, other.own_ns / other.amount
        mean_rate, mean_amount = sum(rates) / 2, (first.amount + other.amount) / 2
        return Split((other.amount - first.amount) * mean_rate, (rates[1] - rates[0]) * mean_amount)

    @property
    def idle_ns(self) -> int:
        """Other minus first, of the gaps before the work."""
        return (self.other.gap_ns if self.other else 0) - (self.first.gap_ns if self.first else 0)

    @property
    def work(self) -> RecordedWork:
        """The work of the other trace; of deleted work, that of the first."""
        work = self.other or self.first
        assert work is not None
        return work


@dataclass
class SideSum:
    """The sums over the work of one trace."""

    count: int = 0
    time_ns: int = 0
    idle_ns: int = 0  # the gaps before it

    @property
    def span_ns(self) -> int:
        """Time of work and idle time together, ns."""
        return self.time_ns + self.idle_ns


@dataclass
class RowSum:
    """The differences of matched work by part, ns, and how many changes there are of each kind."""

    parts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))  # ns, other minus first
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((MATCHED, INSERTED, DELETED, MOVED), 0))
    first: SideSum = field(default_factory=SideSum)
    other: SideSum = field(default_factory=SideSum)
    # Of matched work: by more work, by another rate, and where amounts are not known; ns. Together slower and faster.
    split: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    @property
    def total_ns(self) -> int:
        """The sum of all parts, ns."""
        return sum(self.parts.values())

    @property
    def matched(self) -> dict[str, float]:
        """`split` by name."""
        return dict(zip(("work_ns", "rate_ns", "not_known_ns"), self.split, strict=True))

    @property
    def split_text(self) -> str:
        """The difference of matched work in words; empty where no amount of work is known."""
        more, rate, rest = self.split
        if not (more or rate):
            return ""
        unknown = f", {signed_time_text(rest)} where the work is not known" if round(rest) else ""
        return (
            f"{signed_time_text(more)} by more work (FLOPs of products and attention, bytes of others), "
            f"{signed_time_text(rate)} by another time per FLOP or byte{unknown}"
        )

    def add(self, change: WorkChange) -> None:
        """Add a change to its part."""
        if change.time_ns:
            self.parts[part_of(change)] += change.time_ns
        self.parts["idle"] += change.idle_ns
        self.counts[change.kind] += 1
        if change.kind == MATCHED:
            split = change.split
            for index, ns in enumerate((0.0, 0.0, float(change.time_ns)) if split is None else (*split, 0.0)):
                self.split[index] += ns
        for side, item in ((self.first, change.first), (self.other, change.other)):
            if item is not None:
                side.count += 1
                side.time_ns += item.own_ns
                side.idle_ns += item.gap_ns


@dataclass
class Hunk:
    """Consecutive changes without a match between them, and all others that differ in the same way."""

    location: FoldedLocation
    first: tuple[str, ...]  # what each of them was
    other: tuple[str, ...]
    moved: tuple[str, ...]
    around: tuple[WorkChange | None, WorkChange | None]  # what is matched before and after the first of them
    example: list[WorkChange]
    count: int = 0
    sum: RowSum = field(default_factory=RowSum)

    @property
    def between(self) -> tuple[str | None, str | None]:
        """The work before and after, as text; None at an end."""
        before, after = (None if change is None else what(change.work) for change in self.around)
        return before, after


@dataclass(frozen=True)
class Summed:
    """All work of both selections in order, and the sums over it."""

    first: Selection
    other: Selection
    changes: tuple[WorkChange, ...]
    tail_ns: int  # other minus first, of the time after the last operators of steps
    whole: RowSum
    locations: dict[FoldedLocation, RowSum]
    layers: dict[int | None, RowSum]
    hunks: list[Hunk]

    @property
    def span_ns(self) -> int:
        """Other minus first, from the ends of the traces or steps."""
        return self.other.span_ns - self.first.span_ns

    @property
    def residual_ns(self) -> int:
        """The time that the parts do not explain; other than 0, the sum does not hold."""
        return self.span_ns - self.whole.total_ns

    @property
    def problems(self) -> tuple[str, ...]:
        """Sums that do not hold, in words."""
        problems = []
        if self.residual_ns:
            problems.append(f"the parts add up to {self.whole.total_ns} ns, the difference is {self.span_ns} ns")
        for side, added in ((self.first, self.whole.first), (self.other, self.whole.other)):
            if added.count != (count := len(side.items)):
                problems.append(f"{side.trace.info.path} has {count} pieces of work, {added.count} are in the sum")
        for name, sums in (("locations", self.locations.values()), ("layers", self.layers.values())):
            folded_ns = sum(item.total_ns for item in sums) + self.tail_ns
            if folded_ns != self.whole.total_ns:
                problems.append(f"the {name} add up to {folded_ns} ns, the whole to {self.whole.total_ns} ns")
        return tuple(problems)


def part_of(change: WorkChange) -> str:
    """Return the one of PARTS that a change counts in, or EQUAL."""
    if change.kind == MATCHED:
        return "slower" if change.time_ns > 0 else "faster" if change.time_ns else EQUAL
    return change.kind


def location_of(row: RecordedWork) -> FoldedLocation:
    """Return the location of a piece of work."""
    return FoldedLocation(row.phase, row.module and class_names(row.module))


def what(row: RecordedWork) -> str:
    """Return the operator and class of a piece of work; its name if it has no operator."""
    if row.operator is None:
        return row.name
    return row.operator if row.cls is None else f"{row.operator} ({row.cls})"


def summed(first: Selection, other: Selection) -> Summed:
    """Return the work of two selections paired and added up.

    Steps of a kind in their order, in each step device by device.
    """
    keys_of = _keys(first, other)
    changes: list[WorkChange] = []
    tail_ns = hunks = 0
    # What belongs together: of steps of one kind in their order, and of devices in theirs.
    by_kind = bool({lane.kind for lane in first.lanes} & {lane.kind for lane in other.lanes})
    lanes = _numbered(first.lanes, by_kind), _numbered(other.lanes, by_kind)
    for key in dict.fromkeys(itertools.chain(*lanes)):
        one, two = (side.get(key) for side in lanes)
        paired = _changes(one.items if one else (), two.items if two else (), keys_of, hunks)
        hunks = max((change.hunk + 1 for change in paired), default=hunks)
        changes += paired
        tail_ns += (two.tail_ns if two else 0) - (one.tail_ns if one else 0)
    whole = RowSum()
    whole.parts["idle"] += tail_ns
    locations: defaultdict[FoldedLocation, RowSum] = defaultdict(RowSum)
    layers: defaultdict[int | None, RowSum] = defaultdict(RowSum)
    for change in changes:
        for item in (whole, locations[location_of(change.work)], layers[change.work.layer]):
            item.add(change)
    return Summed(first, other, tuple(changes), tail_ns, whole, locations, layers, _hunks(changes))


def _keys(*sides: Selection) -> Callable[[RecordedWork], tuple[Hashable | None, ...]]:
    """Return a function for the keys by which work is paired, one per level, as far as both traces record them."""
    items = [side.items for side in sides]
    has_phases, has_modules, has_shapes, has_operators = (
        all(any(getattr(item, name) for item in each) for each in items)
        for name in ("phase", "module", "shape", "operator")
    )

    def keys(row: RecordedWork) -> tuple[Hashable | None, ...]:
        phase = row.phase if has_phases else None
        location = (phase, row.layer, row.module and class_names(row.module)) if has_modules else (phase,)
        operator = row.operator if has_operators else None
        work = (operator, row.cls)
        function = functions_in(row.name) if row.cls else ()
        by_class = not operator or row.cls in SPECIFIC or (row.cls or "").startswith("memcpy")
        return (
            # Without an operator the name alone tells what it is.
            (location, work, row.shape if has_shapes else None, None if operator else row.name),
            (location, work) if operator else None,
            (phase, work) if operator else None,
            (phase, row.name),
            (phase, row.cls, function) if function else None,
            (phase, row.cls) if by_class and row.cls else None,
            (phase, operator) if operator else None,
        )

    return keys


def _numbered(lanes: Sequence[Lane], by_kind: bool) -> dict[Hashable, Lane]:
    """Return sub-tracks by kind of step, number of the step among those of its kind, and number of the device."""
    devices = {name: number for number, name in enumerate(sorted({lane.name for lane in lanes}, key=_natural))}
    numbered: dict[Hashable, Lane] = {}
    counts: Counter[Hashable] = Counter()
    for lane in lanes:
        key = lane.kind if by_kind else None, devices[lane.name]
        counts[key] += 1
        numbered[key, counts[key]] = lane
    return numbered


def _natural(lane: str) -> list[tuple[int, str]]:
    """Return the sort key of a text that orders its numbers by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", lane) if part]


def _changes(
    first: Sequence[RecordedWork],
    other: Sequence[RecordedWork],
    keys_of: Callable[[RecordedWork], tuple[Hashable | None, ...]],
    hunks: int,
) -> list[WorkChange]:
    columns = (list(zip(*map(keys_of, items), strict=True)) or [()] * len(LEVELS) for items in (first, other))
    matches = align_by(list(zip(*columns, strict=True)))
    between = list(gaps(matches, len(first), len(other)))

    def same(row: RecordedWork) -> Hashable:
        """Return a key that is equal for the same work, wherever it ran in a layer."""
        return row.name, row.cls, row.operator, row.shape, row.layer

    left: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for index in itertools.chain(*(here for here, _ in between)):
        left[same(first[index])].append(index)
    # For each index of the other sequence that holds moved work, its index in the first one.
    origins: dict[int, int] = {}
    for index in itertools.chain(*(there for _, there in between)):
        if origin_indices := left.get(same(other[index])):
            origins[index] = origin_indices.popleft()
    gone = set(origins.values())
    work_changes: list[WorkChange] = []
    for number, (here, there) in enumerate(between):
        size = len(work_changes)
        work_changes += [WorkChange(DELETED, first[index], None, hunk=hunks) for index in here if index not in gone]
        for index in there:
            moved = index in origins
            before = first[origins[index]] if moved else None
            work_changes.append(WorkChange(MOVED if moved else INSERTED, before, other[index], hunk=hunks))
        hunks += len(work_changes) > size
        if number < len(matches):
            match = matches[number]
            work_changes.append(WorkChange(MATCHED, first[match.first], other[match.other], match.level))
    return work_changes


def _hunks(changes: Sequence[WorkChange]) -> list[Hunk]:
    """Return consecutive changes without a match, similar ones merged, the largest difference first."""
    hunks: dict[Hashable, Hunk] = {}
    before: WorkChange | None = None
    runs = [(number, list(group)) for number, group in itertools.groupby(changes, key=lambda change: change.hunk)]
    for (number, group), (following, later) in zip(runs, [*runs, (0, [])][1:], strict=True):
        if number == -1:
            before = group[-1]
            continue
        gone, new, moved = (
            tuple(what(change.work) for change in group if change.kind == kind) for kind in (DELETED, INSERTED, MOVED)
        )
        key = location_of(group[0].work), gone, new, moved
        around = before, later[0] if following == -1 else None
        hunk = hunks.setdefault(key, Hunk(*key, around, group))
        hunk.count += 1
        for change in group:
            hunk.sum.add(change)
    return sorted(hunks.values(), key=lambda hunk: (-abs(hunk.sum.total_ns), -hunk.count))
