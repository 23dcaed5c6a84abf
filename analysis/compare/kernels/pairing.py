"""What of one trace belongs to what of the other, in order: pairs, and what only one of them has.

Kernel names differ between vendors and versions, so they decide only where no operator is recorded. Pairs are found by
levels, the first that tell most apart: LEVELS. What an alignment leaves over on both sides and is the very same work
was moved.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from molprof.analysis.compare.kernels.cut import Item, Part, Strand
from molprof.analysis.compare.kernels.read import Row
from molprof.analysis.figures.sequence.align import Level, align_by, gaps

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
_TELLING = frozenset({
    "attention", "matmul", "norm", "softmax", "sort/top-k", "cat", "embedding/rotary", "cache-write", "collective"
})  # fmt: skip
# What the names of torch's kernels hold of the function that they compute, whatever loop is around it.
_FUNCTION = re.compile(r"\w+(?:Functor|Ops|_cuda)\w*")
_NUMBER = re.compile(r"_\d+(?=/|$)")


@dataclass(frozen=True)
class Change:
    """A pair of pieces of work, or one without a counterpart."""

    kind: str
    first: Item | None
    other: Item | None
    level: int | None = None  # of LEVELS, of what is matched
    hunk: int = -1  # number of the stretch without matches in which it is; -1: matched

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
    """All work of both parts, in order."""

    first: Part
    other: Part
    changes: tuple[Change, ...]
    tail_ns: int  # other minus first, of the time after the last operators of steps


def pair(first: Part, other: Part) -> Pairing:
    """Pair the work of two parts: steps of a kind in their order, in each step device by device."""
    telling = _Telling(first, other)
    changes: list[Change] = []
    tail_ns = 0
    hunks = 0
    for one, two in _strand_pairs(first.strands, other.strands):
        here, there = (strand.items if strand else () for strand in (one, two))
        found = _changes(here, there, telling, hunks)
        hunks = max((change.hunk + 1 for change in found), default=hunks)
        changes += found
        tail_ns += (two.tail_ns if two else 0) - (one.tail_ns if one else 0)
    return Pairing(first, other, tuple(changes), tail_ns)


def classes(module: str | None) -> str | None:
    """A path of modules without their numbers."""
    return None if module is None else _NUMBER.sub("", module)


class _Telling:
    """What both traces record, so that it can tell their work apart."""

    def __init__(self, first: Part, other: Part) -> None:
        rows = [[item.row for strand in part.strands for item in strand.items] for part in (first, other)]
        self.phases = all(any(row.phase for row in side) for side in rows)
        self.modules = all(any(row.module for row in side) for side in rows)
        self.shapes = all(any(row.shape for row in side) for side in rows)
        self.operators = all(any(row.operator for row in side) for side in rows)

    def levels(self, first: Sequence[Row], other: Sequence[Row]) -> list[Level]:
        sides = [[self._keys(row) for row in rows] for rows in (first, other)]
        return [([keys[n] for keys in sides[0]], [keys[n] for keys in sides[1]]) for n in range(len(LEVELS))]

    def _keys(self, row: Row) -> tuple[Hashable | None, ...]:
        phase = row.phase if self.phases else None
        place = (phase, row.layer, classes(row.module)) if self.modules else (phase,)
        asked = row.operator if self.operators else None
        work = (asked, row.cls)
        # Without an operator the name alone tells what it is.
        exact = (place, work, row.shape if self.shapes else None, None if asked else row.name)
        function = tuple(_FUNCTION.findall(row.name)) if row.cls else ()
        by_class = not asked or row.cls in _TELLING or (row.cls or "").startswith("memcpy")
        return (
            exact,
            (place, work) if asked else None,
            (phase, work) if asked else None,
            (phase, row.name),
            (phase, row.cls, function) if function else None,
            (phase, row.cls) if by_class and row.cls else None,
            (phase, asked) if asked else None,
        )


def _strand_pairs(first: Sequence[Strand], other: Sequence[Strand]) -> Iterator[tuple[Strand | None, Strand | None]]:
    """Strands that belong together: of steps of one kind in their order, and of lanes in theirs."""
    kinds = [{strand.kind for strand in strands} for strands in (first, other)]
    by_kind = bool(kinds[0] & kinds[1])
    sides = [_numbered(strands, by_kind) for strands in (first, other)]
    for key in dict.fromkeys((*sides[0], *sides[1])):
        yield sides[0].get(key), sides[1].get(key)


def _numbered(strands: Sequence[Strand], by_kind: bool) -> dict[Hashable, Strand]:
    """Strands by kind of step, number of the step among those of its kind, and number of the lane."""
    lanes = {lane: number for number, lane in enumerate(sorted({strand.lane for strand in strands}, key=_natural))}
    found: dict[Hashable, Strand] = {}
    counts: dict[Hashable, int] = {}
    for strand in strands:
        kind, lane = strand.kind if by_kind else None, lanes[strand.lane]
        number = counts[kind, lane] = counts.get((kind, lane), 0) + 1
        found[kind, lane, number] = strand
    return found


def _natural(lane: str) -> list[tuple[int, str]]:
    """Numbers in text by their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", lane) if part]


def _changes(first: Sequence[Item], other: Sequence[Item], telling: _Telling, hunks: int) -> list[Change]:
    matches = align_by(telling.levels([item.row for item in first], [item.row for item in other]))
    between = list(gaps(matches, len(first), len(other)))
    moved = _moved(first, other, between)
    gone = set(moved.values())
    found: list[Change] = []
    for number, (here, there) in enumerate(between):
        size = len(found)
        found += [Change(DELETED, first[place], None, hunk=hunks) for place in here if place not in gone]
        for place in there:
            origin = moved.get(place)
            if origin is None:
                found.append(Change(INSERTED, None, other[place], hunk=hunks))
            else:
                found.append(Change(MOVED, first[origin], other[place], hunk=hunks))
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
    """Each stretch of changes without matches, and the matches around it."""
    before: Change | None = None
    runs = [(hunk, list(group)) for hunk, group in groupby(changes, key=lambda change: change.hunk)]
    for number, (hunk, group) in enumerate(runs):
        if hunk == -1:
            before = group[-1]
            continue
        following = runs[number + 1 : number + 2]
        yield group, before, next((items[0] for later, items in following if later == -1), None)
