"""Phases of threads: which of those that are open at a moment is the innermost."""

from __future__ import annotations

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
        """Add what is innermost up to a moment."""
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
