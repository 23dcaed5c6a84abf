"""Nesting of slices: enclosing slices, paths, and self time.

Where items are given as an array of parents, that is the index of the item around each, or -1; none is around itself,
by way of others too. No function recurses, whatever the depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from molprof.analysis.facts.intervals import last_begun, on_one_line
from molprof.analysis.facts.lanes import assign_lanes

NONE = -1
# Levels of nested items that are placed level by level; all deeper ones together, which takes longer for each.
_LEVELS = 256


def ancestors(item: int | None, parents: Mapping[int, int | None]) -> Iterator[int]:
    """Return an item and its ancestors, the innermost first; nothing for None.

    parents: the one around each; None: nothing is. Raises KeyError for an item that is not among them.
    """
    while item is not None:
        parent = parents[item]
        yield item
        item = parent


def depths(parent: np.ndarray) -> np.ndarray:
    """Return the number of ancestors of each item."""
    up = np.append(parent, NONE)
    depth: np.ndarray = (up != NONE).astype(np.int64)
    while len(inner := np.flatnonzero(up != NONE)):
        depth[inner] += depth[up[inner]]
        up[inner] = up[up[inner]]
    return depth[:-1]


def nearest(parent: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the innermost chosen item among each item and its ancestors; -1 for none. chosen: bool."""
    chosen_around = np.append(np.where(chosen, np.arange(len(parent)), parent), NONE)
    while True:
        further = chosen_around[chosen_around]
        if np.array_equal(further, chosen_around):
            return chosen_around[:-1]
        chosen_around = further


def with_ancestors(parent: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return True for items that are chosen, or enclose a chosen one: bool."""
    is_kept: np.ndarray = chosen.copy()
    around = np.unique(parent[chosen])
    while len(around):
        around = around[around != NONE]
        around = around[~is_kept[around]]
        is_kept[around] = True
        around = np.unique(parent[around])
    return is_kept


class Paths(NamedTuple):
    """Distinct paths: the name of an item and those of its ancestors."""

    path: np.ndarray  # of each item, the index of its path
    outer: np.ndarray  # of each path the one around it, which stands before it; -1: none
    name: np.ndarray  # of each path the innermost name


def nested_paths(parent: np.ndarray, names: np.ndarray, depth: np.ndarray | None = None) -> Paths:
    """Return the paths of items. names: numbers from 0. depth: the number of ancestors of each, if known."""
    depth = depths(parent) if depth is None else depth
    order = np.argsort(depth, kind="stable")
    bounds = np.flatnonzero(np.diff(depth[order])) + 1
    levels = np.split(order, bounds[:_LEVELS])
    deepest = levels.pop() if len(levels) > _LEVELS else order[:0]
    path = np.full(len(parent) + 1, NONE)  # the last is that of no item
    most = int(names.max(initial=0)) + 1
    paths: list[np.ndarray] = []
    count = 0
    for level in levels:
        keys, numbers = np.unique((path[parent[level]] + 1) * most + names[level], return_inverse=True)
        path[level] = count + numbers.reshape(-1)
        count += len(keys)
        paths.append(keys)
    # What is deeper still, one by one: a level of each would take the square of their number.
    deeper: dict[int, int] = {}
    for item, around, name in zip(deepest.tolist(), parent[deepest].tolist(), names[deepest].tolist(), strict=True):
        key = (int(path[around]) + 1) * most + name
        path[item] = deeper.setdefault(key, count + len(deeper))
    paths.append(np.array(list(deeper), dtype=np.int64))
    outer, name_of = np.divmod(np.concatenate(paths), most)
    return Paths(path[:-1], outer - 1, name_of)


class Nested(NamedTuple):
    """The parent of each slice, and its path: its name and those of its ancestors. -1: none."""

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
        """Set slices in any order. threads, names: numbers from 0. starts, ends: ns."""
        order = np.lexsort((-ends, starts, threads))
        lanes = np.zeros(len(order), dtype=np.int32)
        assign_lanes(lanes, order, threads, starts, ends, deepest=2 * len(order) + 2)
        order = order[lanes[order] == 0]
        self.threads, self.starts, self.ends, self.names = threads[order], starts[order], ends[order], names[order]

    @cached_property
    def nested(self) -> Nested:
        """The parent and the path of each slice."""
        # One thread behind the other, so that all are nested at once.
        starts, ends = on_one_line([self.threads, self.threads], [self.starts, self.ends])
        index = np.arange(len(starts))
        # Around a slice are those before it that have not ended. Of those that end no later than it starts, the only
        # ones that do not stand before it are empty ones of its moment.
        empty = np.append(0, np.cumsum(ends == starts))
        behind = empty[np.searchsorted(starts, starts, side="right")] - empty[:-1]
        depth = index - (np.searchsorted(np.sort(ends), starts, side="right") - behind)
        # The one around it is the last before it that is a level less deep.
        width = len(starts) + 1
        line = np.sort(depth * width + index)
        last = np.searchsorted(line, (depth - 1) * width + index) - 1
        parent = np.where(depth > 0, np.append(line, 0)[last] % width, NONE)
        path, outer, name = nested_paths(parent, self.names, depth)
        return Nested(np.append(parent, NONE), np.append(path, NONE), outer, name)

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
        """Return the index of the innermost slice that encloses each of other slices; -1 for none."""
        index = last_begun(self.threads, self.starts, threads, starts)
        while len(self.starts):
            wrong = np.flatnonzero((index >= 0) & ((self.ends[index] < ends) | (self.ends[index] <= starts)))
            if not len(wrong):
                break
            index[wrong] = self.nested.parent[index[wrong]]
        return index
