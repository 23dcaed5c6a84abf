"""Links from calls to the GPU work that they started, by correlation number, which each rank counts itself.

- Work belongs to the call with its rank and number; work without number to none.
- Of several calls with one number, work belongs to the first that launches a kernel or graph, else to the first.
- It belongs to none where it cannot be told which of them started it: calls of several processes have the number, or
  launches of which one began after another had ended. Such a trace was merged from several whose ranks are not known.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.gpu_slices import NO_NUMBER
from molprof.analysis.facts.intervals import on_one_line

_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class LinkedCalls(Struct, frozen=True):
    """Calls in order of slice: arrays of int64, one entry per call."""

    rank: Array  # NONE where the trace is not of several
    number: Array  # correlation number; NO_NUMBER where none is recorded
    is_launch: Array  # bool: of a kernel or a graph
    process: Array  # NONE where not known
    ts: Array
    ts_end: Array


class SharedNumbers(Struct, frozen=True):
    """Numbers of several calls, in order of rank and number: arrays of int64."""

    rank: Array
    number: Array
    calls: Array  # how many have it
    follow: Array  # bool: one of them began after another had ended
    is_ambiguous: Array  # bool: work with it belongs to none


class Links(Struct, frozen=True):
    """The call of each piece of work."""

    call: Array  # of each piece of work, the index of its call; NONE
    has_work: Array  # of each call, bool: work has its rank and number, whichever call that belongs to
    shared: SharedNumbers


def link(calls: LinkedCalls, rank: Array, number: Array) -> Links:
    """Return the call of each piece of work. rank, number: those of the work, as those of calls."""
    numbered, asking = np.flatnonzero(calls.number != NO_NUMBER), np.flatnonzero(number != NO_NUMBER)
    # NONE is no key.
    call_keys, work_keys = on_one_line(
        [calls.rank[numbered] - NONE, rank[asking] - NONE], [calls.number[numbered], number[asking]]
    )
    order = np.argsort(call_keys, kind="stable")  # in most traces numbers rise, which is quick
    index = numbered[order]
    first = np.flatnonzero(np.append(True, np.diff(call_keys[order]) != 0)[: len(order)])
    shared, call = _chosen(calls, index, first)
    # The last is that of numbers beyond all calls.
    distinct, call = np.append(call_keys[order][first], -1), np.append(call, NONE)
    index_of = np.searchsorted(distinct[:-1], work_keys)
    index_of[distinct[index_of] != work_keys] = len(first)
    call_of = np.full(len(number), NONE)
    call_of[asking] = call[index_of]
    is_asked = np.zeros(len(first) + 1, dtype=bool)
    is_asked[index_of] = True
    has_work = np.zeros(len(calls.number), dtype=bool)
    has_work[index] = np.repeat(is_asked[:-1], np.diff(np.append(first, len(index))))
    return Links(call_of, has_work, shared)


def _chosen(calls: LinkedCalls, index: Array, first: Array) -> tuple[SharedNumbers, Array]:
    """Return the numbers that several calls share, and the call that work of each such number belongs to, or NONE.

    index: calls in order of rank, number and slice. first: where in it a number begins.
    """
    size = np.diff(np.append(first, len(index)))
    shared = np.flatnonzero(size > 1)
    call = index[first]
    if not len(shared):
        return SharedNumbers(*[shared] * 5), call
    chosen = np.repeat(size > 1, size)
    index, size = index[chosen], size[shared]
    first = np.cumsum(size) - size
    ts, ts_end, process, is_launch = (
        column[index] for column in (calls.ts, calls.ts_end, calls.process, calls.is_launch)
    )
    several = np.maximum.reduceat(process, first) > np.minimum.reduceat(
        np.where(process == NONE, _LAST, process), first
    )
    last_launch = np.maximum.reduceat(np.where(is_launch, ts, _FIRST), first)
    is_ambiguous = several | (last_launch > np.minimum.reduceat(np.where(is_launch, ts_end, _LAST), first))
    follow = np.maximum.reduceat(ts, first) > np.minimum.reduceat(ts_end, first)
    # Launches stand before all others.
    count = len(calls.number)
    preferred = np.minimum.reduceat(np.where(is_launch, index, index + count), first) % count
    call[shared] = np.where(is_ambiguous, NONE, preferred)
    first_call = index[first]
    return SharedNumbers(calls.rank[first_call], calls.number[first_call], size, follow, is_ambiguous), call
