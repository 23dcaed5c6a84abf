"""Phases of threads: the innermost open phase at each moment; spans of equal steps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from math import inf

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import NONE, Array


class Phases(Struct, frozen=True):
    """Phases in order of their slices: arrays of int64."""

    id: Array  # slice, each another one
    thread: Array  # number from 0
    ts: Array
    ts_end: Array

    def some(self, chosen: Array) -> Phases:
        """Return the chosen phases. chosen: bool, or indices."""
        return Phases(*(getattr(self, name)[chosen] for name in self.__struct_fields__))


def innermost(phases: Phases) -> Phases:
    """Return the innermost phase of each thread at each moment, in order of thread and start.

    It is the one that began last and has not ended, whatever partly overlaps: slices are numbered in order of their
    start, and of equal starts the outer one first.
    """
    rows: list[tuple[int, int, int, int]] = []
    order = np.lexsort((phases.id, phases.ts, phases.thread))
    columns = (column[order].tolist() for column in (phases.id, phases.thread, phases.ts, phases.ts_end))
    begun: list[tuple[int, int]] = []  # of the thread, the end and slice of phases that may be open, the last on top
    of, reached = NONE, 0

    def until(moment: float) -> None:
        """Add the innermost phase up to a moment."""
        nonlocal reached
        while begun and reached < moment:
            end, phase = begun[-1]
            if end > reached:
                rows.append((phase, of, reached, int(min(end, moment))))
                reached = rows[-1][-1]
            if end <= reached:
                begun.pop()

    for phase, thread, ts, ts_end in zip(*columns, strict=True):
        if thread != of:
            until(inf)
            begun, of = [], thread
        until(ts)
        reached = ts
        if ts_end > ts:
            begun.append((ts_end, phase))
    until(inf)
    return Phases(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)


def followed_by(phases: Phases, is_first: Array, is_next: Array) -> Array:
    """Return the slices of phases of one kind that one of another kind follows directly on their thread.

    is_first, is_next: which phases are of either kind, bool. Phases that others contain do not count.
    """
    order = np.lexsort((phases.id, phases.ts, phases.thread))
    thread, ts_end = phases.thread[order], phases.ts_end[order]
    reached = np.zeros(len(order), dtype=np.int64)  # the end of those before on the thread
    for begin, end in pairwise(np.append(np.flatnonzero(np.diff(thread, prepend=NONE)), len(order)).tolist()):
        reached[begin + 1 : end] = np.maximum.accumulate(ts_end[begin:end])[:-1]
    outer = order[ts_end > reached]
    same = phases.thread[outer][1:] == phases.thread[outer][:-1]
    followed: Array = phases.id[outer[:-1][same & is_first[outer][:-1] & is_next[outer][1:]]]
    return followed


def equal_spans(processes: Array, shapes: Sequence[Hashable], nothing: Hashable) -> tuple[Array, Array]:
    """Return the number of the span of equal steps that each step is in, and its position there, from 0.

    A span begins with a step that differs in its shape from the step before it in its process. Before the first
    stands `nothing`.

    processes: of steps in order of process and start.
    """
    numbers: dict[Hashable, int] = {nothing: 0}
    shape = np.array([numbers.setdefault(one, len(numbers)) for one in shapes], dtype=np.int64)
    is_first = np.append(True, processes[1:] != processes[:-1])[: len(shape)]
    begins = shape != np.where(is_first, 0, np.append(0, shape[:-1])[: len(shape)])
    index = np.arange(len(shape))
    since = np.maximum.accumulate(np.where(begins, index, 0)) if len(index) else index
    return np.cumsum(begins), index - since
