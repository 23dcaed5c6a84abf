"""What is around what: slices of threads inside each other, and the time of each that is in none of those it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from molprof.analysis.facts.intervals import last_begun, on_one_line
from molprof.analysis.facts.lanes import assign_lanes

# Of nested slices that are placed all at once.
_LEVELS = 256


def ancestors(item: int | None, parents: Mapping[int, int | None]) -> Iterator[int]:
    """Return an item and all that are around it, the innermost first; nothing for None.

    parents: the one around each; None: nothing is. Raises KeyError for an item that is not among them.
    """
    while item is not None:
        parent = parents[item]
        yield item
        item = parent


class Nested(NamedTuple):
    """The slice around each slice, and its path: its name and those of all slices around it. -1: none."""

    parent: np.ndarray  # of each slice, the index of the one around it; one more entry, -1, is that of slice -1
    path: np.ndarray  # of each slice, the index of its path; one more entry, -1, is that of slice -1
    outer: np.ndarray  # of each path the one around it, which stands before it
    name: np.ndarray  # of each path the innermost name


class Segments(NamedTuple):
    """Time of threads, cut where slices start and end: arrays of int64."""

    threads: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    owners: np.ndarray  # index of the innermost slice


class Nesting:
    """Slices by thread, start, and the latest end first, without those that partly overlap an earlier one."""

    def __init__(self, threads: np.ndarray, starts: np.ndarray, ends: np.ndarray, names: np.ndarray) -> None:
        """threads, names: numbers from 0. starts, ends: ns."""
        order = np.lexsort((-ends, starts, threads))
        lanes = np.zeros(len(order), dtype=np.int32)
        assign_lanes(lanes, order, threads, starts, ends, deepest=2 * len(order) + 2)
        order = order[lanes[order] == 0]
        self.threads, self.starts, self.ends, self.names = threads[order], starts[order], ends[order], names[order]

    @cached_property
    def nested(self) -> Nested:
        """What is around each slice."""
        # One thread behind the other, so that all are nested at once.
        starts, ends = on_one_line([self.threads, self.threads], [self.starts, self.ends])
        parent, path = (np.full(len(starts) + 1, -1) for _ in range(2))
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
            keys, numbers = np.unique((path[parent[level]] + 1) * most + self.names[level], return_inverse=True)
            path[level] = known + numbers
            known += len(keys)
            paths.append(keys)
            holders = left[np.maximum.accumulate(np.where(inner, 0, np.arange(len(left))))]
            parent[left[inner]] = holders[inner]
            left = left[inner]
        # What is deeper still, one by one: a level of each would take the square of their number.
        deeper: dict[int, int] = {}
        opened: list[int] = []
        for place, start in zip(left.tolist(), starts[left].tolist(), strict=True):
            while opened and ends[opened[-1]] <= start:
                opened.pop()
            parent[place] = opened[-1] if opened else parent[place]
            opened.append(place)
            key = int((path[parent[place]] + 1) * most + self.names[place])
            path[place] = deeper.setdefault(key, known + len(deeper))
        paths.append(np.array(list(deeper), dtype=np.int64))
        outer, name = np.divmod(np.concatenate(paths), most)
        return Nested(parent, path, outer - 1, name)

    @cached_property
    def segments(self) -> Segments:
        """The time of each thread that is in any slice, by the innermost of them, in order of thread and start."""
        index = np.flatnonzero(self.ends > self.starts)
        thread = np.concatenate([self.threads[index]] * 2)
        moment = np.concatenate([self.ends[index], self.starts[index]])
        # At one moment slices end first, the inner before the outer, then others start, the outer before the inner.
        order = np.lexsort((np.concatenate([-1 - index, index]), moment, thread))
        thread, moment = thread[order], moment[order]
        owner = np.concatenate([self.nested.parent[index], index])[order]
        some = np.append((thread[1:] == thread[:-1]) & (moment[1:] > moment[:-1]), False)[: len(order)] & (owner >= 0)
        first = np.flatnonzero(some)
        return Segments(thread[first], moment[first], moment[first + 1], owner[first])

    def around(self, threads: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the index of the innermost slice around each of others; -1 for none."""
        found = last_begun(self.threads, self.starts, threads, starts)
        while len(self.starts):
            wrong = np.flatnonzero((found >= 0) & ((self.ends[found] < ends) | (self.ends[found] <= starts)))
            if not len(wrong):
                break
            found[wrong] = self.nested.parent[found[wrong]]
        return found
