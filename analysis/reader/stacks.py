"""Python stacks beside the trace processor: which functions and modules are around a moment of a thread.

Most events of many traces are Python stacks. A report only asks which are around calls and in gaps: to nest them here
takes a fraction of the time and memory that the trace processor takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from molprof.analysis.reader.survey import assign_lanes

# With more of them, or in a longer trace, none are kept: to decode them takes 3 s per million.
MOST_STACK_EVENTS = 250_000
MOST_TEXT_BYTES = 100_000_000
# Of nested slices that are placed all at once.
_LEVELS = 256


class Segments(NamedTuple):
    """Time of threads, cut where slices start and end: arrays of int64."""

    threads: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    owners: np.ndarray  # index of the innermost slice


class Nest:
    """Slices by thread, start, and the latest end first, without those that partly overlap an earlier one."""

    def __init__(self, threads: np.ndarray, starts: np.ndarray, ends: np.ndarray, names: np.ndarray) -> None:
        """threads, names: numbers from 0. starts, ends: ns."""
        order = np.lexsort((-ends, starts, threads))
        lanes = np.zeros(len(order), dtype=np.int32)
        assign_lanes(lanes, order, threads, starts, ends, deepest=2 * len(order) + 2)
        order = order[lanes[order] == 0]
        self.threads, self.starts, self.ends, self.names = threads[order], starts[order], ends[order], names[order]
        # One thread behind the other, so that all are searched at once.
        self._first, self._last = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
        self._shift = self.threads * (self._last - self._first + 1) - self._first

    @cached_property
    def nested(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of each slice the one around it, and its path: its name and those of all slices around it. Of each path the
        one around it, and its own name. -1: none.
        """
        starts, ends = self.starts + self._shift, self.ends + self._shift
        around, path = (np.full(len(starts) + 1, -1) for _ in range(2))  # the last one is that of -1
        most = int(self.names.max(initial=0)) + 1
        paths: list[np.ndarray] = [np.empty(0, dtype=np.int64)]
        known = 0
        left = np.arange(len(starts))
        for _ in range(_LEVELS):
            if not len(left):
                break
            # The outermost of those left are followed by what they hold.
            inner = np.append(False, starts[left][1:] < np.maximum.accumulate(ends[left])[:-1])
            level = left[~inner]
            keys, numbers = np.unique((path[around[level]] + 1) * most + self.names[level], return_inverse=True)
            path[level] = known + numbers
            known += len(keys)
            paths.append(keys)
            holders = left[np.maximum.accumulate(np.where(inner, 0, np.arange(len(left))))]
            around[left[inner]] = holders[inner]
            left = left[inner]
        # What is deeper still, one by one: a level of each would take the square of their number.
        deeper: dict[int, int] = {}
        opened: list[int] = []
        for place, start in zip(left.tolist(), starts[left].tolist(), strict=True):
            while opened and ends[opened[-1]] <= start:
                opened.pop()
            around[place] = opened[-1] if opened else around[place]
            opened.append(place)
            key = int((path[around[place]] + 1) * most + self.names[place])
            path[place] = deeper.setdefault(key, known + len(deeper))
        paths.append(np.array(list(deeper), dtype=np.int64))
        outer, name = np.divmod(np.concatenate(paths), most)
        return around, path, outer - 1, name

    @cached_property
    def segments(self) -> Segments:
        """The time of each thread that is in any slice, by the innermost of them, in order of thread and start."""
        index = np.flatnonzero(self.ends > self.starts)
        thread = np.concatenate([self.threads[index]] * 2)
        moment = np.concatenate([self.ends[index], self.starts[index]])
        # At one moment slices end first, the inner before the outer, then others start, the outer before the inner.
        order = np.lexsort((np.concatenate([-1 - index, index]), moment, thread))
        thread, moment = thread[order], moment[order]
        owner = np.concatenate([self.nested[0][index], index])[order]
        some = np.append((thread[1:] == thread[:-1]) & (moment[1:] > moment[:-1]), False)[: len(order)] & (owner >= 0)
        first = np.flatnonzero(some)
        return Segments(thread[first], moment[first], moment[first + 1], owner[first])

    def around(self, threads: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The innermost slice around each of others; -1 for none."""
        if not len(self.starts):
            return np.full(len(starts), -1)
        around = self.nested[0]
        shift = threads * (self._last - self._first + 1) - self._first
        found: np.ndarray = np.searchsorted(self.starts + self._shift, starts + shift, side="right") - 1
        found[(threads < 0) | (starts < self._first) | (ends > self._last)] = -1
        while True:
            its_ends = self.ends[found] + self._shift[found] - shift
            wrong = np.flatnonzero((found >= 0) & ((its_ends < ends) | (its_ends <= starts)))
            if not len(wrong):
                return found
            found[wrong] = around[found[wrong]]

    def during(self, threads: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slices that share time with each of some stretches: numbers of stretches, and of slices."""
        place = self.starts + self._shift
        shift = threads * (self._last - self._first + 1) - self._first
        limits = [np.clip(times, self._first, self._last + 1) + shift for times in (starts, ends)]
        begins, stops = (np.searchsorted(place, times) for times in limits)
        counts = np.where(threads < 0, 0, stops - begins)
        stretches = np.repeat(np.arange(len(counts)), counts)
        found = [np.arange(len(stretches)) + np.repeat(begins - (np.cumsum(counts) - counts), counts)]
        numbers = [stretches]
        # Those that were open when the stretch began.
        opened, stretches = self.around(threads, starts, np.minimum(starts + 1, ends)), np.arange(len(starts))
        while (is_open := opened >= 0).any():
            opened, stretches = opened[is_open], stretches[is_open]
            earlier = self.starts[opened] < starts[stretches]
            found.append(opened[earlier])
            numbers.append(stretches[earlier])
            opened = self.nested[0][opened]
        return np.concatenate(numbers), np.concatenate(found)


class Stacks(Nest):
    """Calls of Python functions."""

    def __init__(
        self,
        texts: Sequence[str],
        numbers: dict[tuple[int, int], int],
        threads: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        names: np.ndarray,
    ) -> None:
        """texts: what `names` are numbers of. numbers: those of threads, by pid and tid as in the trace processor."""
        super().__init__(threads, starts, ends, names)
        self.texts, self.numbers = texts, numbers
