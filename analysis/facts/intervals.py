"""Intervals by key (a thread, a device, a stream): their unions, running ends, and their overlap with windows.

All times are int64 ns, all keys integers from 0. Nothing here is quadratic, whatever the number of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

# Keys are laid one behind the other on one line of int64 while it is long enough.
_LONGEST_LINE = 2**62
# Numbers up to so many times their count are looked up in a table.
_DENSE = 16
# Intervals that are merged at once.
_PIECE = 1 << 17


class KeyedLine:
    """Moments of several keys on one int64 line: each key has its own range, larger keys later.

    Order and equality of known moments of a key stay; differences do not where the line would be too long for int64.
    """

    def __init__(self, keys: Sequence[np.ndarray], times: Sequence[np.ndarray]) -> None:
        """Place the known moments on the line. keys, times: arrays of any lengths."""
        full = [array for array in times if len(array)]
        self._first = min((int(array.min()) for array in full), default=0)
        self._last = max((int(array.max()) for array in full), default=0)
        self._most = max((int(array.max()) for array in keys if len(array)), default=0) + 1
        self._length, self._values = self._last - self._first + 2, None
        if (self._most + 1) * self._length > _LONGEST_LINE:
            self._values = np.unique(np.concatenate(full))
            self._length = len(self._values) + 1

    def at(self, keys: Any, times: Any) -> Any:
        """Return where moments are, of any shape: int64. An unknown one is no later than the known one after it."""
        if self._values is None:
            positions = np.clip(times, self._first - 1, self._last) - self._first
        else:
            positions = np.searchsorted(self._values, times, side="right") - 1
        return positions + np.minimum(keys, self._most) * self._length


def on_one_line(keys: Sequence[np.ndarray], times: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return each array of times, moved by its keys so that those of a larger key are all larger: arrays of int64.

    Order and equality within a key stay; differences do not where the line would be too long for int64.
    """
    line = KeyedLine(keys, times)
    return [line.at(*pair) for pair in zip(keys, times, strict=True)]


def distinct_of(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct numbers in order, and the index of each number among them.

    They are no less than 0. Where they lie close together, nothing is sorted, which takes longest in `numpy.unique`.
    """
    most = int(numbers.max(initial=-1)) + 1
    if most > _DENSE * len(numbers):
        distinct, which = np.unique(numbers, return_inverse=True)
        return distinct, which.reshape(-1)
    is_there = np.zeros(most, dtype=bool)
    is_there[numbers] = True
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[numbers]


def key_sums(keys: np.ndarray, amounts: np.ndarray | int, size: int) -> np.ndarray:
    """Return the sum of the amounts of each key below `size`: int64."""
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, keys, amounts)
    return sums


def ends_before(keys: np.ndarray, starts: np.ndarray, ends: np.ndarray, some: np.ndarray | None = None) -> np.ndarray:
    """Return the index of the interval that ends last of those before each one with the same key; -1 for none.

    The intervals stand in order of key and start. Of equal ends the earlier interval counts. some: whether each
    interval is one of those that count; None: all are.
    """
    if some is not None and len(ends):
        ends = np.where(some, ends, ends.min() - 1)
    (line,) = on_one_line([keys], [ends])
    index = np.arange(len(line))
    latest = np.maximum.accumulate(line) if len(line) else line
    rises = np.append(True, latest[1:] > latest[:-1]) if len(line) else np.empty(0, dtype=bool)
    holder = np.maximum.accumulate(np.where(rises, index, 0)) if len(line) else index
    before = np.append(-1, holder[:-1])[: len(line)]
    before[np.append(True, keys[1:] != keys[:-1])[: len(line)]] = -1
    if some is not None:
        before[(before >= 0) & ~some[before]] = -1
    return before


def begins_inside(keys: np.ndarray, starts: np.ndarray, ends: np.ndarray, some: np.ndarray | None = None) -> np.ndarray:
    """Return True for each interval that begins before the end of an earlier one with the same key.

    Order of the intervals and `some` are as in `ends_before`.
    """
    before = ends_before(keys, starts, ends, some)
    inside: np.ndarray = (before >= 0) & (starts < ends[before])
    return inside


def last_begun(keys: np.ndarray, starts: np.ndarray, other_keys: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Return the index of the last interval that begins no later than each moment of its key; -1 for none.

    The intervals stand in order of key and start.
    """
    if not len(starts):
        return np.full(len(moments), -1)
    begins, others = on_one_line([keys, other_keys], [starts, moments])
    last: np.ndarray = np.searchsorted(begins, others, side="right") - 1
    last[keys[last] != other_keys] = -1
    return last


Keyed = tuple[np.ndarray, np.ndarray, np.ndarray]  # keys, starts, ends


def overlaps(one: Keyed, other: Keyed) -> tuple[np.ndarray, np.ndarray]:
    """Return each pair of intervals of the same key that overlap: indices into `one` and into `other`.

    Intervals of no length share none. What this takes grows with the number of pairs.
    """
    keys, starts, ends = one
    other_keys, other_starts, other_ends = other
    lines = on_one_line([keys, keys, other_keys, other_keys], [starts, ends, other_starts, other_ends])
    begins, stops, other_begins, other_stops = lines
    # Of two that share time, one begins in the other: the other in this one, or this one, later, in the other.
    mine, others = _starting_in(begins, stops, other_begins, "left")
    more_others, more_mine = _starting_in(other_begins, other_stops, begins, "right")
    mine, others = np.append(mine, more_mine), np.append(others, more_others)
    some = np.minimum(ends[mine], other_ends[others]) > np.maximum(starts[mine], other_starts[others])
    return mine[some], others[some]


def shared(one: Keyed, other: Keyed) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the pairs of `overlaps`, with start and end of the time that both share."""
    mine, others = overlaps(one, other)
    return mine, others, np.maximum(one[1][mine], other[1][others]), np.minimum(one[2][mine], other[2][others])


def _starting_in(
    begins: np.ndarray, stops: np.ndarray, moments: np.ndarray, side: Literal["left", "right"]
) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of windows and of the moments in them. side: right leaves out those at the start of a window."""
    order = np.argsort(moments, kind="stable")
    ordered = moments[order]
    first, last = np.searchsorted(ordered, begins, side=side), np.searchsorted(ordered, stops, side="left")
    counts = np.maximum(last - first, 0)
    windows = np.repeat(np.arange(len(begins)), counts)
    positions = np.arange(len(windows)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    return windows, order[positions]


def _order(keys: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the intervals in order of key and start."""
    if len(keys) and (starts[1:] >= starts[:-1]).all():  # as slices are; numpy sorts 16-bit numbers in linear time
        is_small = keys.min() >= 0 and keys.max() < 1 << 16
        return np.argsort(keys.astype(np.uint16) if is_small else keys, kind="stable")
    # As one number, of which a stable sort takes what already stands in order as it is.
    return np.argsort(on_one_line([keys], [starts])[0], kind="stable")


def _merged(keys: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Keyed:
    """Return the union of the intervals of each key, in order of key and start."""
    some = ends > starts
    keys, starts, ends = keys[some], starts[some], ends[some]
    order = _order(keys, starts)
    keys, starts, ends = keys[order], starts[order], ends[order]
    before = ends_before(keys, starts, ends)
    first = np.flatnonzero((before < 0) | (starts > ends[before]))
    return keys[first], starts[first], np.maximum.reduceat(ends, first) if len(first) else ends


class Coverage:
    """The union of intervals of each key, and how much of a window it covers.

    Touching intervals are one. Attributes, arrays of the merged intervals in order of key and start: `keys`, `starts`,
    `ends`. Windows are arrays of any shape, or numbers, and end no earlier than they start.
    """

    def __init__(self, keys: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
        # Most slices lie in others: merged in pieces first, they take a tenth of the memory.
        pieces = [slice(at, at + _PIECE) for at in range(0, len(starts), _PIECE)]
        if len(pieces) > 1:
            merged = [_merged(keys[piece], starts[piece], ends[piece]) for piece in pieces]
            keys, starts, ends = (np.concatenate(columns) for columns in zip(*merged, strict=True))
        self.keys, self.starts, self.ends = _merged(keys, starts, ends)
        # Covered before each of them, over all keys.
        self._before = np.append(0, np.cumsum(self.ends - self.starts))
        self._line = KeyedLine([self.keys], [self.starts])
        self._begins = self._line.at(self.keys, self.starts)

    @property
    def length_ns(self) -> int:
        """The covered time of all keys."""
        return int(self._before[-1])

    @property
    def of_any_key(self) -> tuple[np.ndarray, np.ndarray]:
        """Starts and ends of the union over all keys, in order."""
        return _merged(np.zeros(len(self.keys), dtype=np.int64), self.starts, self.ends)[1:]

    def covered(self, keys: Any, starts: Any, ends: Any) -> Any:
        """Return the covered time of each window, ns."""
        return self._until(keys, ends) - self._until(keys, starts)

    def holds(self, keys: np.ndarray, moments: np.ndarray) -> np.ndarray:
        """Return True for each moment that is covered; the end of an interval is not in it."""
        if not len(self.keys):
            return np.zeros(len(moments), dtype=bool)
        last = np.maximum(self._next(keys, moments), 1) - 1
        held: np.ndarray = (self.keys[last] == keys) & (self.starts[last] <= moments) & (moments < self.ends[last])
        return held

    def first(self, keys: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the first covered moment of each window; its end where nothing covers it."""
        if not len(self.keys):
            return ends
        number = self._next(keys, starts)
        inside = np.maximum(number - 1, 0)
        is_inside = (number > 0) & (self.keys[inside] == keys) & (self.ends[inside] > starts)
        following = np.minimum(number, len(self.keys) - 1)
        has_next = (number < len(self.keys)) & (self.keys[following] == keys)
        later = np.where(has_next, np.minimum(self.starts[following], ends), ends)
        first_covered: np.ndarray = np.where(is_inside, starts, later)
        return first_covered

    def _next(self, keys: Any, moments: Any) -> Any:
        """Return the number of merged intervals, over all keys, that begin no later than each moment of its key."""
        return np.searchsorted(self._begins, self._line.at(keys, moments), side="right")

    def _until(self, keys: Any, moments: Any) -> Any:
        number = self._next(keys, moments)
        if not len(self.keys):
            return number
        last = np.maximum(number, 1) - 1
        # Of another key, all is behind.
        left = np.where((number > 0) & (self.keys[last] == keys), np.maximum(self.ends[last] - moments, 0), 0)
        return self._before[number] - left


class Depth:
    """The time that windows share with intervals of their key that may overlap each other: each of these counts."""

    def __init__(self, keys: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
        self._sides = [self._side(keys, moments) for moments in (starts, ends)]

    def time(self, keys: Any, starts: Any, ends: Any) -> Any:
        """Return the time that each window shares with all intervals of its key together, ns."""
        return self._until(keys, ends) - self._until(keys, starts)

    @staticmethod
    def _side(keys: np.ndarray, moments: np.ndarray) -> tuple[KeyedLine, np.ndarray, np.ndarray]:
        """Return the line of starts or ends, these in order on it, and the running sums of their times."""
        order = np.lexsort((moments, keys))
        line = KeyedLine([keys], [moments])
        return line, line.at(keys, moments)[order], np.append(0, np.cumsum(moments[order]))

    def _until(self, keys: Any, moments: Any) -> Any:
        """Return the shared time until each moment, plus a constant of each key."""
        begun, ended = (np.searchsorted(edges, line.at(keys, moments), side="right") for line, edges, _ in self._sides)
        begun_ns, ended_ns = (sums for *_, sums in self._sides)
        return (begun - ended) * moments - begun_ns[begun] + ended_ns[ended]
