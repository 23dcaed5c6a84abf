"""The difference between two traces as a sum: every nanosecond is of a pair, of work that one lacks, or of a gap.

Folded by location (phase and modules without their numbers), by layer, and by hunks that differ in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from molprof.analysis.compare.kernels.pairing import (
    DELETED,
    INSERTED,
    MATCHED,
    MOVED,
    Change,
    Pairing,
    hunks_of,
)
from molprof.analysis.compare.kernels.read import Row
from molprof.common.values import class_names

# In order of display. slower and faster are of matched work.
PARTS = ("slower", "faster", "inserted", "deleted", "moved", "idle")
EQUAL = "equal"  # of matched work that takes the same time, which is in no part
NOWHERE = "(no module)"
NO_LAYER = "outside layers"


def part_of(change: Change) -> str:
    """Which of PARTS its time is, or EQUAL."""
    if change.kind == MATCHED:
        return "slower" if change.time_ns > 0 else "faster" if change.time_ns else EQUAL
    return change.kind


@dataclass
class Sum:
    parts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))  # ns, other minus first
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((MATCHED, INSERTED, DELETED, MOVED), 0))
    first: list[int] = field(default_factory=lambda: [0, 0, 0])  # pieces of work, their time, the gaps before them
    other: list[int] = field(default_factory=lambda: [0, 0, 0])

    @property
    def total_ns(self) -> int:
        return sum(self.parts.values())

    def add(self, change: Change) -> None:
        if change.time_ns:
            self.parts[part_of(change)] += change.time_ns
        self.parts["idle"] += change.idle_ns
        self.counts[change.kind] += 1
        for amounts, item in ((self.first, change.first), (self.other, change.other)):
            if item is not None:
                for place, amount in enumerate((1, item.own_ns, item.gap_ns)):
                    amounts[place] += amount

    def to_json(self) -> dict[str, Any]:
        sides = {
            name: dict(zip(("count", "time_ns", "idle_ns"), amounts, strict=True))
            for name, amounts in (("first", self.first), ("other", self.other))
        }
        return {"difference_ns": self.total_ns, "parts": self.parts, "counts": self.counts, **sides}


@dataclass(frozen=True)
class Location:
    """Where work is, its layers folded: as the other trace says, for what it lacks as the first one does."""

    phase: str | None
    module: str | None  # classes of modules

    @property
    def text(self) -> str:
        return " ".join(filter(None, (self.phase, self.module))) or NOWHERE

    @property
    def short(self) -> str:
        """The same with the last two modules alone."""
        return " ".join(filter(None, (self.phase, self.inner))) or NOWHERE

    @property
    def inner(self) -> str:
        """The last two modules."""
        names = (self.module or "").split("/")
        return "/".join(names if len(names) <= 2 else ["…", *names[-2:]])


@dataclass
class Hunk:
    """Changes without a match between them, and all others that differ in the same way."""

    location: Location
    first: tuple[str, ...]  # what each of them was
    other: tuple[str, ...]
    moved: tuple[str, ...]
    around: tuple[Change | None, Change | None]  # what is matched before and after the first of them
    example: list[Change]
    count: int = 0
    sum: Sum = field(default_factory=Sum)

    @property
    def between(self) -> tuple[str | None, str | None]:
        before, after = (None if change is None else what(change.row) for change in self.around)
        return before, after


@dataclass(frozen=True)
class Summed:
    pairing: Pairing
    whole: Sum
    locations: dict[Location, Sum]
    layers: dict[int | None, Sum]
    hunks: list[Hunk]

    @property
    def span_ns(self) -> int:
        """Other minus first, from the ends of the traces or steps."""
        return self.pairing.other.span_ns - self.pairing.first.span_ns

    @property
    def residual_ns(self) -> int:
        """What the parts do not explain: 0, or the sum does not hold."""
        return self.span_ns - self.whole.total_ns

    @property
    def problems(self) -> tuple[str, ...]:
        """Sums that do not hold, in words."""
        found = []
        if self.residual_ns:
            found.append(f"the parts add up to {self.whole.total_ns} ns, the difference is {self.span_ns} ns")
        for side, amounts in ((self.pairing.first, self.whole.first), (self.pairing.other, self.whole.other)):
            if amounts[0] != len(side.items):
                found.append(
                    f"{side.trace.info.path} has {len(side.items)} pieces of work, {amounts[0]} are in the sum"
                )
        for name, sums in (("places", self.locations.values()), ("layers", self.layers.values())):
            folded_ns = sum(item.total_ns for item in sums) + self.pairing.tail_ns
            if folded_ns != self.whole.total_ns:
                found.append(f"the {name} add up to {folded_ns} ns, the whole to {self.whole.total_ns} ns")
        return tuple(found)


def summed(pairing: Pairing) -> Summed:
    whole = Sum()
    whole.parts["idle"] += pairing.tail_ns
    locations: defaultdict[Location, Sum] = defaultdict(Sum)
    layers: defaultdict[int | None, Sum] = defaultdict(Sum)
    for change in pairing.changes:
        for item in (whole, locations[location_of(change.row)], layers[change.row.layer]):
            item.add(change)
    return Summed(pairing, whole, locations, layers, _hunks(pairing.changes))


def location_of(row: Row) -> Location:
    return Location(row.phase, row.module and class_names(row.module))


def what(row: Row) -> str:
    """What a piece of work is: its operator and class; without an operator its name."""
    if row.operator is None:
        return row.name
    return row.operator if row.cls is None else f"{row.operator} ({row.cls})"


def _hunks(changes: Sequence[Change]) -> list[Hunk]:
    """Those that differ in the same way together, the largest difference first."""
    found: dict[Hashable, Hunk] = {}
    for group, before, after in hunks_of(changes):
        gone, new, moved = (
            tuple(what(change.row) for change in group if change.kind == kind) for kind in (DELETED, INSERTED, MOVED)
        )
        key = location_of(group[0].row), gone, new, moved
        hunk = found.setdefault(key, Hunk(*key, (before, after), group))
        hunk.count += 1
        for change in group:
            hunk.sum.add(change)
    return sorted(found.values(), key=lambda hunk: (-abs(hunk.sum.total_ns), -hunk.count))
