"""Deterministic, minimal automata over bytes, made of parts: texts, characters, choices, repetitions.

A `Part` adds to a net the paths of its texts from a given state, and returns the state in which they end. Characters
are written in UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

Ranges = tuple[tuple[int, int], ...]  # of numbers, ascending, apart from each other; both ends are included
EVERY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # code points that UTF-8 can write
MOST_STATES = 200_000  # of a net


class NoText(ValueError):  # noqa: N818  (says what the automaton is)
    """No text leads to an end."""


class TooLarge(ValueError):  # noqa: N818  (says what the automaton is)
    """The automaton has more states than `MOST_STATES`."""


class Net:
    """An automaton under construction: edges of bytes (from, to, next state), and empty edges."""

    def __init__(self) -> None:
        self.edges: list[list[tuple[int, int, int]]] = []
        self.empty: list[list[int]] = []

    def state(self) -> int:
        """Add a state and return its number. Raises TooLarge."""
        if len(self.edges) == MOST_STATES:
            raise TooLarge(f"its automaton has more than {MOST_STATES:,} states")
        self.edges.append([])
        self.empty.append([])
        return len(self.edges) - 1

    def closure(self, state: int) -> frozenset[int]:
        """Return the states that empty edges lead to, without those that have no byte edge and end no text."""
        if not self.empty[state]:
            return frozenset((state,))
        states, waiting = {state}, [state]
        while waiting:
            new = set(self.empty[waiting.pop()]) - states
            states |= new
            waiting += new
        return frozenset(item for item in states if self.edges[item] or not self.empty[item])


Part = Callable[[Net, int], int]


def nothing(net: Net, at: int) -> int:
    """Return the automaton of no text, not even an empty one."""
    return net.state()


def symbol(low: int, high: int) -> Part:
    """Return the automaton of one byte from `low` to `high`."""

    def add(net: Net, at: int) -> int:
        end = net.state()
        net.edges[at].append((low, high, end))
        return end

    return add


def sequence(*parts: Part) -> Part:
    """Return the automaton of parts that follow each other."""

    def add(net: Net, at: int) -> int:
        for part in parts:
            at = part(net, at)
        return at

    return add


def text(written: str) -> Part:
    """Return the automaton of a text. Raises UnicodeEncodeError for half of a surrogate pair."""
    return sequence(*(symbol(byte, byte) for byte in written.encode()))


def either(*parts: Part) -> Part:
    """Return the automaton of any of the parts."""

    def add(net: Net, at: int) -> int:
        end = net.state()
        for part in parts:
            net.empty[part(net, at)].append(end)
        return end

    return add


def repeated(part: Part, least: int, most: int | None) -> Part:
    """Return the automaton of `part` from `least` to `most` times; None: any number of times."""
    if most is not None and most < least:
        return nothing

    def add(net: Net, at: int) -> int:
        for _ in range(least):
            at = part(net, at)
        if most is None:
            loop = net.state()
            net.empty[at].append(loop)
            net.empty[part(net, loop)].append(loop)
            at = loop
        end = net.state()
        net.empty[at].append(end)
        for _ in range(0 if most is None else most - least):
            at = part(net, at)
            net.empty[at].append(end)
        return end

    return add


def optional(part: Part) -> Part:
    """Return the automaton of a part or the empty text."""
    return repeated(part, 0, 1)


def between(low: bytes, high: bytes, least: int, most: int) -> Part:
    """Return the automaton of texts of equal length from `low` to `high`, with later bytes from `least` to `most`."""
    if not low:
        return sequence()
    first, last, rest = low[0], high[0], len(low) - 1
    if first == last:
        return sequence(symbol(first, first), between(low[1:], high[1:], least, most))
    parts = []
    if low[1:] != bytes([least]) * rest:
        parts.append(sequence(symbol(first, first), between(low[1:], bytes([most]) * rest, least, most)))
        first += 1
    if high[1:] != bytes([most]) * rest:
        parts.append(sequence(symbol(last, last), between(bytes([least]) * rest, high[1:], least, most)))
        last -= 1
    if first <= last:
        parts.append(sequence(symbol(first, last), *[symbol(least, most)] * rest))
    return either(*parts)


@lru_cache(maxsize=256)
def characters(ranges: Ranges) -> Part:
    """Return the automaton of one character with a code point in `ranges`."""
    parts = []
    for low, high in intersect(ranges, EVERY):
        for least, most in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF)):
            if (begin := max(low, least)) <= (end := min(high, most)):
                parts.append(between(chr(begin).encode(), chr(end).encode(), 0x80, 0xBF))
    return determinize(either(*parts)).part if parts else nothing


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of ranges in any order: ascending, those that touch as one."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """Return the code points that are not in `ranges`."""
    edges = [0, *(edge for low, high in ranges for edge in (low, high + 1)), 0x110000]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return intersect(tuple((low, high - 1) for low, high in pairs if low < high), EVERY)


def intersect(one: Ranges, other: Ranges) -> Ranges:
    """Return the code points that are in both."""
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return union((low, high) for low, high in pairs if low <= high)


@dataclass(frozen=True, eq=False)
class Automaton:
    """S states, of which the first is 0, and K classes of bytes. Some text leads from every state to an end."""

    kinds: np.ndarray[Any, Any]  # of each byte, int64 (256,)
    moves: np.ndarray[Any, Any]  # next state, -1: none, int64 (S, K)
    ends: np.ndarray[Any, Any]  # whether a text may end there, bool (S,)

    @cached_property
    def _runs(self) -> list[list[tuple[int, int, int]]]:
        """Return the edges of each state: first byte, last byte, next state."""
        edges = []
        for following in self.moves[:, self.kinds]:
            cuts = [0, *(np.flatnonzero(np.diff(following)) + 1).tolist(), 256]
            runs = ((low, high - 1, int(following[low])) for low, high in pairwise(cuts))
            edges.append([run for run in runs if run[2] >= 0])
        return edges

    def part(self, net: Net, at: int) -> int:
        """Return the texts of equal length from `low` to `high`, whose later bytes are from `least` to `most`."""
        states, end = [net.state() for _ in self._runs], net.state()
        net.empty[at].append(states[0])
        for number, runs in enumerate(self._runs):
            net.edges[states[number]] += [(low, high, states[to]) for low, high, to in runs]
            if self.ends[number]:
                net.empty[states[number]].append(end)
        return end

    def accepts(self, written: str) -> bool:
        """Return True if the automaton accepts the text."""
        state = 0
        for byte in written.encode():
            state = int(self.moves[state, self.kinds[byte]])
            if state < 0:
                return False
        return bool(self.ends[state])


def determinize(part: Part) -> Automaton:
    """Return the deterministic automaton of a part's texts. Raises TooLarge, and NoText if there are none."""
    net = Net()
    first = net.state()
    last = part(net, first)
    cuts = sorted({0, 256}.union(*({low, high + 1} for edges in net.edges for low, high, _ in edges)))
    kinds = np.searchsorted(cuts, np.arange(256), side="right") - 1
    kind_of = kinds.tolist()
    closures = lru_cache(maxsize=None)(net.closure)
    numbers = {closures(first): 0}
    waiting = [closures(first)]
    rows: list[dict[int, int]] = []
    reached: dict[frozenset[int], int] = {}  # numbers of what edges lead to, before its closure
    for states in waiting:  # grows
        targets: dict[int, set[int]] = {}
        for state in states:
            for low, high, to in net.edges[state]:
                for kind in range(kind_of[low], kind_of[high] + 1):
                    targets.setdefault(kind, set()).add(to)
        row = {}
        for kind, tos in targets.items():
            key = frozenset(tos)
            if key not in reached:
                whole = frozenset[int]().union(*map(closures, key))
                if (number := numbers.setdefault(whole, len(waiting))) == len(waiting):
                    if number == MOST_STATES:
                        raise TooLarge(f"its automaton has more than {MOST_STATES:,} states")
                    waiting.append(whole)
                reached[key] = number
            row[kind] = reached[key]
        rows.append(row)
    moves = np.full((len(rows), len(cuts) - 1), -1, dtype=np.int64)
    for number, row in enumerate(rows):
        moves[number, list(row)] = list(row.values())
    return minimize(kinds, moves, np.asarray([last in states for states in waiting]))


def intersection(one: Automaton, other: Automaton) -> Automaton:
    """Return the automaton of the common texts. Raises TooLarge, and NoText if there are none."""
    pairs, kinds = np.unique(np.stack([one.kinds, other.kinds]), axis=1, return_inverse=True)
    numbers, waiting = {(0, 0): 0}, [(0, 0)]
    rows: list[list[int]] = []
    for a, b in waiting:  # grows
        row = []
        for to in zip(one.moves[a, pairs[0]].tolist(), other.moves[b, pairs[1]].tolist(), strict=True):
            if min(to) < 0:
                row.append(-1)
                continue
            if (number := numbers.setdefault(to, len(waiting))) == len(waiting):
                if number == MOST_STATES:
                    raise TooLarge(f"its automaton has more than {MOST_STATES:,} states")
                waiting.append(to)
            row.append(number)
        rows.append(row)
    ends = np.asarray([one.ends[a] and other.ends[b] for a, b in waiting])
    return minimize(kinds.reshape(256), np.asarray(rows, dtype=np.int64), ends)


def group_equal_rows(rows: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Group equal rows of an integer matrix (R, C): return one row index per group, and each row's group.

    Two unlike ones of R rows have the same sum, and so are taken for equal, with a probability of R * R / 2 ** 63.
    """
    scale = np.random.default_rng(0).integers(2**63, size=rows.shape[1], dtype=np.int64) | 1
    return np.unique(rows @ scale, return_index=True, return_inverse=True)[1:]


def coaccessible(moves: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return True for states that lead to an end, bool (S,). A next state below 0 is none."""
    before = Before(moves)
    reached: np.ndarray[Any, Any] = ends.copy()
    new = np.flatnonzero(ends)
    while len(new):
        new = before.of(new)
        new = new[~reached[new]]
        reached[new] = True
    return reached


class Before:
    """Predecessors: the states from which a byte, or a token, leads to given ones."""

    def __init__(self, moves: np.ndarray[Any, Any]) -> None:
        states, columns = np.nonzero(moves >= 0)
        to = moves[states, columns]
        order = np.argsort(to, kind="stable")
        self._states, self._starts = states[order], np.searchsorted(to[order], np.arange(len(moves) + 1))

    def of(self, states: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the predecessors of states, each once, ascending."""
        first, counts = self._starts[states], self._starts[states + 1] - self._starts[states]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.unique(self._states[np.repeat(first, counts) + within])


def minimize(kinds: np.ndarray[Any, Any], moves: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> Automaton:
    """Return the automaton with equivalent states merged, and bytes with the same transitions too.

    Raises NoText where no text leads from state 0 to an end.
    """
    living = coaccessible(moves, ends)
    if not living[0]:
        raise NoText("it allows no text")
    moves = np.where((moves >= 0) & living[moves], moves, -1)
    classes = _futures(moves, ends)
    _, at, classes = np.unique(classes, return_index=True, return_inverse=True)
    order = np.argsort(at)  # states in the order in which they were found, 0 first
    renumbered = np.append(np.argsort(order), -1)
    following = renumbered[np.append(classes, -1)[moves[at[order]]]]
    columns, merged = np.unique(following, axis=1, return_inverse=True)
    return Automaton(merged.reshape(-1)[kinds], columns, ends[at[order]])


def _futures(moves: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a number for each state, equal for equivalent states, int64 (S,).

    Hopcroft's way: of a class that splits one part keeps its number, and only what leads to the others is looked at
    again.
    """
    before = Before(moves)
    # Two unlike rows of R have the same sum with a probability of R * R / 2 ** 63.
    scale = np.random.default_rng(0).integers(2**63, size=moves.shape[1] + 1, dtype=np.int64) | 1
    classes = np.append(ends.astype(np.int64), -1)  # of no state too, which next states of -1 name
    sizes = np.append(np.bincount(classes[:-1], minlength=2), np.zeros(len(moves), dtype=np.int64))
    count, seen = 2, np.arange(len(moves))
    while len(seen):
        sums = classes[moves[seen]] @ scale[1:] + classes[seen] * scale[0]
        _, at, groups, parts = np.unique(sums, return_index=True, return_inverse=True, return_counts=True)
        owns = classes[seen[at]]
        order = np.lexsort((parts, owns))  # the largest part of each class is its last one
        first = np.flatnonzero(np.diff(owns[order], prepend=-2))
        looked = np.add.reduceat(parts[order], first)
        largest = order[np.append(first[1:], len(order)) - 1]
        # What is not looked at again is a part too, unlike all others of its class: it keeps the number.
        keeps = np.zeros(len(parts), dtype=bool)
        keeps[largest] = sizes[owns[largest]] == looked
        new = np.flatnonzero(~keeps)
        np.subtract.at(sizes, owns[new], parts[new])
        owns[new] = count + np.arange(len(new))
        sizes[owns[new]] = parts[new]
        count += len(new)
        classes[seen] = owns[groups]
        seen = before.of(seen[~keeps[groups]])
    return classes[:-1]
