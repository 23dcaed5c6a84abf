"""What of one trace belongs to what of the other, in order: pairs, and what only one of them has.

Kernel names differ between vendors and versions, so they decide only where no operator is recorded. Pairs are found by
levels, the first that tell most apart: LEVELS. What an alignment leaves over on both sides and is the very same work
was moved.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from molprof.analysis.compare.kernels.cut import Item, Lane, Selection
from molprof.analysis.compare.kernels.read import Row
from molprof.analysis.figures.sequence import Level, align_by, gaps
from molprof.common.values import class_names

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
# Classes of which two kernels between the same neighbours do the same, whatever operator asked for them.
_SPECIFIC = frozenset({
    "attention", "matmul", "norm", "softmax", "sort/top-k", "cat", "embedding/rotary", "cache-write", "collective"
})  # fmt: skip
# What the names of torch's kernels hold of the function that they compute, whatever loop is around it.
_FUNCTION = re.compile(r"\w+(?:Functor|Ops|_cuda)\w*")


@dataclass(frozen=True)
class Change:
    """A pair of pieces of work, or one without a counterpart."""

    kind: str
    first: Item | None
    other: Item | None
    level: int | None = None  # of LEVELS, of what is matched
    hunk: int = -1  # number of the run of changes without a match in which it is; -1: matched

    @property
    def time_ns(self) -> int:
        """Other minus first, of the work alone."""
        return (self.other.own_ns if self.other else 0) - (self.first.own_ns if self.first else 0)

    @property
    def idle_ns(self) -> int:
        """Other minus first, of the gaps before the work."""
        return (self.other.gap_ns if self.other else 0) - (self.first.gap_ns if self.first else 0)

    @property
    def row(self) -> Row:
        """The work of the other trace, of what is deleted that of the first."""
        item = self.other or self.first
        assert item is not None
        return item.row


@dataclass(frozen=True)
class Pairing:
    """All work of both selections, in order."""

    first: Selection
    other: Selection
    changes: tuple[Change, ...]
    tail_ns: int  # other minus first, of the time after the last operators of steps


def pair(first: Selection, other: Selection) -> Pairing:
    """Pair the work of two selections: steps of a kind in their order, in each step device by device."""
    keys = _Keys(first, other)
    changes: list[Change] = []
    tail_ns = hunks = 0
    for one, two in _lane_pairs(first.lanes, other.lanes):
        found = _changes(one.items if one else (), two.items if two else (), keys, hunks)
        hunks = max((change.hunk + 1 for change in found), default=hunks)
        changes += found
        tail_ns += (two.tail_ns if two else 0) - (one.tail_ns if one else 0)
    return Pairing(first, other, tuple(changes), tail_ns)


class _Keys:
    """What work is paired by, level by level, of what both traces record."""

    def __init__(self, *sides: Selection) -> None:
        rows = [[item.row for item in side.items] for side in sides]
        self.phases, self.modules, self.shapes, self.operators = (
            all(any(getattr(row, name) for row in side) for side in rows)
            for name in ("phase", "module", "shape", "operator")
        )

    def levels(self, *sides: Sequence[Item]) -> list[Level]:
        first, other = ([self._of(item.row) for item in items] for items in sides)
        return [([keys[n] for keys in first], [keys[n] for keys in other]) for n in range(len(LEVELS))]

    def _of(self, row: Row) -> tuple[Hashable | None, ...]:
        phase = row.phase if self.phases else None
        place = (phase, row.layer, row.module and class_names(row.module)) if self.modules else (phase,)
        asked = row.operator if self.operators else None
        work = (asked, row.cls)
        # Without an operator the name alone tells what it is.
        exact = (place, work, row.shape if self.shapes else None, None if asked else row.name)
        function = tuple(_FUNCTION.findall(row.name)) if row.cls else ()
        by_class = not asked or row.cls in _SPECIFIC or (row.cls or "").startswith("memcpy")
        return (
            exact,
            (place, work) if asked else None,
            (phase, work) if asked else None,
            (phase, row.name),
            (phase, row.cls, function) if function else None,
            (phase, row.cls) if by_class and row.cls else None,
            (phase, asked) if asked else None,
        )


def _lane_pairs(first: Sequence[Lane], other: Sequence[Lane]) -> Iterator[tuple[Lane | None, Lane | None]]:
    """What belongs together: of steps of one kind in their order, and of devices in theirs."""
    by_kind = bool({lane.kind for lane in first} & {lane.kind for lane in other})
    one, two = (_numbered(lanes, by_kind) for lanes in (first, other))
    for key in dict.fromkeys((*one, *two)):
        yield one.get(key), two.get(key)


def _numbered(lanes: Sequence[Lane], by_kind: bool) -> dict[Hashable, Lane]:
    """Lanes by kind of step, number of the step among those of its kind, and number of the device."""
    devices = {name: number for number, name in enumerate(sorted({lane.name for lane in lanes}, key=_natural))}
    found: dict[Hashable, Lane] = {}
    counts: Counter[Hashable] = Counter()
    for lane in lanes:
        key = lane.kind if by_kind else None, devices[lane.name]
        counts[key] += 1
        found[key, counts[key]] = lane
    return found


def _natural(lane: str) -> list[tuple[int, str]]:
    """Numbers in text by their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", lane) if part]


def _changes(first: Sequence[Item], other: Sequence[Item], keys: _Keys, hunks: int) -> list[Change]:
    matches = align_by(keys.levels(first, other))
    between = list(gaps(matches, len(first), len(other)))
    origins = _moved(first, other, between)
    gone = set(origins.values())
    found: list[Change] = []
    for number, (here, there) in enumerate(between):
        size = len(found)
        found += [Change(DELETED, first[place], None, hunk=hunks) for place in here if place not in gone]
        for place in there:
            moved = place in origins
            before = first[origins[place]] if moved else None
            found.append(Change(MOVED if moved else INSERTED, before, other[place], hunk=hunks))
        hunks += len(found) > size
        if number < len(matches):
            match = matches[number]
            found.append(Change(MATCHED, first[match.first], other[match.other], match.level))
    return found


def _moved(first: Sequence[Item], other: Sequence[Item], between: Sequence[tuple[range, range]]) -> dict[int, int]:
    """Of each place of the other sequence that holds moved work, where it was in the first one."""
    left: dict[Hashable, deque[int]] = {}
    for here, _ in between:
        for place in here:
            left.setdefault(_same(first[place].row), deque()).append(place)
    found = {}
    for _, there in between:
        for place in there:
            places = left.get(_same(other[place].row))
            if places:
                found[place] = places.popleft()
    return found


def _same(row: Row) -> Hashable:
    """Equal for the same work, wherever it ran in a layer."""
    return row.name, row.cls, row.operator, row.shape, row.layer


def hunks_of(changes: Sequence[Change]) -> Iterator[tuple[list[Change], Change | None, Change | None]]:
    """Each run of changes without a match, and the matches around it."""
    before: Change | None = None
    runs = [(hunk, list(group)) for hunk, group in groupby(changes, key=lambda change: change.hunk)]
    for number, (hunk, group) in enumerate(runs):
        if hunk == -1:
            before = group[-1]
            continue
        following = runs[number + 1 : number + 2]
        yield group, before, next((items[0] for later, items in following if later == -1), None)
