"""Phases of threads: which of those that are open at a moment is the innermost."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.intervals import on_one_line


class Phases(Struct, frozen=True):
    """Phases in order of their slices: arrays of int64."""

    id: Array  # slice, each another one
    thread: Array  # number from 0
    ts: Array
    ts_end: Array


def innermost(phases: Phases) -> Phases:
    """Return the innermost phase of each thread at each moment, in order of thread and start.

    It is the one that began last and has not ended: slices are numbered in order of their start.
    """
    lasts = np.flatnonzero(phases.ts_end > phases.ts)
    ids, thread, ts, ts_end = (x[lasts] for x in (phases.id, phases.thread, phases.ts, phases.ts_end))
    ids, thread, moment = np.append(ids, ids), np.append(thread, thread), np.append(ts, ts_end)
    change = np.repeat([1, -1], len(lasts))
    # At one moment phases end first, the inner before the outer, then others start, the outer before the inner.
    place = np.append(ts - ts_end, -ids[: len(lasts)])
    order = np.lexsort((ids, place, change, moment, thread))
    ids, thread, moment, change = ids[order], thread[order], moment[order], change[order]
    depth = np.cumsum(change)
    until = np.append(moment[1:], 0)[: len(moment)]
    # Where nothing is open, the next change may be that of another thread.
    some = depth > 0
    ids, thread, moment, change, depth, until = (x[some] for x in (ids, thread, moment, change, depth, until))
    started = np.where(change > 0, ids, NONE)
    order = np.lexsort((ids, change, moment))
    latest = _highest_so_far(thread, started, order)
    around = _highest_so_far(thread * (int(depth.max(initial=0)) + 1) + depth, started, order)
    # Where phases overlap, the one of this depth may have ended, and another one is open.
    index = np.minimum(np.searchsorted(phases.id, around), len(phases.id) - 1)
    inner = np.where(phases.ts_end[index] > moment, around, latest)
    chosen = np.flatnonzero((until > moment) & (around != NONE))
    return Phases(inner[chosen], thread[chosen], moment[chosen], until[chosen])


def _highest_so_far(keys: Array, values: Array, order: Array) -> Array:
    """Return the highest value of each key up to each row, as the rows stand in `order`."""
    by_key = order[np.argsort(keys[order], kind="stable")]
    (line,) = on_one_line([np.unique(keys[by_key], return_inverse=True)[1].reshape(-1)], [values[by_key]])
    highest = np.maximum.accumulate(line)
    found = np.empty_like(values)
    found[by_key] = values[by_key][np.searchsorted(highest, highest)]
    return found
