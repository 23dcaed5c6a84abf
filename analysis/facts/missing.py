"""Launches without recorded GPU work, GPU work without a recorded call, and syncs that wait for neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.gpu_slices import NO_NUMBER
from molprof.analysis.facts.intervals import Coverage, on_one_line
from molprof.analysis.facts.patterns import Glob
from molprof.analysis.facts.slices import KERNEL

if TYPE_CHECKING:
    from molprof.analysis.facts.facts import Facts

START, MIDDLE, END, ALL = "start", "middle", "end", "all"
LATER, UNNUMBERED = "later", "unnumbered"
_BEGINS, _ENDS = Glob("*StreamBeginCapture*"), Glob("*StreamEndCapture*")
SYNC = "sync"


def captured_launches(facts: Facts) -> Array:
    """Return indices of launches that a stream capture of their process records: they become nodes of a graph."""
    calls, launch = facts.calls, facts.launches
    process = facts.processes(calls.track)
    opened = calls.named(_BEGINS.matches)
    mark = np.union1d(opened, calls.named(_ENDS.matches))
    mark = mark[np.argsort(process[mark], kind="stable")]
    begins = np.isin(mark, opened).astype(np.int64)
    processes, first, which = np.unique(process[mark], return_index=True, return_inverse=True)
    launch = launch[np.isin(process[launch], processes)]
    if not len(launch):
        return launch
    sums = np.append(0, np.cumsum(2 * begins - 1))
    depth = sums[1:] - sums[first][which]
    # Below 0 where a capture was open when the recording began.
    outside = np.minimum(np.minimum.reduceat(depth, first), 0)
    marks, moments = on_one_line([process[mark], process[launch]], [mark, launch])
    last = np.searchsorted(marks, moments) - 1
    is_first = (last < 0) | (process[mark[last]] != process[launch])
    mine = np.searchsorted(processes, process[launch])
    captured: Array = launch[np.where(is_first, 0, depth[last]) > outside[mine]]
    return captured


def lost_launches(facts: Facts) -> Array:
    """Return indices of launches outside captures with a correlation number of which no GPU work is recorded."""
    launch = facts.launches
    lost = launch[(facts.calls.number[launch] != NO_NUMBER) & ~facts.links.has_work[launch]]
    return np.setdiff1d(lost, captured_launches(facts)) if len(lost) else lost


def missing_work(facts: Facts) -> list[tuple[str, int, int, int, int]]:
    """Return the launches without work by their position among those with work, in order of start.

    Rows of: START, MIDDLE, END or, where none has work, ALL; launches; those of them in steps; first and last start.
    """
    lost, calls = lost_launches(facts), facts.calls
    if not len(lost):
        return []
    numbered = facts.launches[calls.number[facts.launches] != NO_NUMBER]
    recorded = np.setdiff1d(numbered, captured_launches(facts))
    known_ts, ts = calls.ts[np.setdiff1d(recorded, lost)], calls.ts[lost]
    if len(known_ts):
        position = np.where(ts < known_ts.min(), START, np.where(ts > known_ts.max(), END, MIDDLE))
    else:
        position = np.full(len(ts), ALL)
    in_step = facts.call_steps[lost] != NONE
    rows = [
        (name, int(mine.sum()), int(in_step[mine].sum()), int(ts[mine].min()), int(ts[mine].max()))
        for name in (START, MIDDLE, END, ALL)
        if (mine := position == name).any()
    ]
    return sorted(rows, key=lambda row: (row[3], row[0]))


def missing_time(facts: Facts) -> list[tuple[str, str | None, int, int]]:
    """Return the idle time of devices that unrecorded work may have taken; rows do not share time.

    Rows of: position of the launches, or SYNC; device; time between its work, time before and after, ns. The time of
    launches is all since the first at the position; that of syncs, all time for which they outlast recorded work.
    """
    work = facts.work
    if not len(work.id):
        return []
    launches, syncs = missing_work(facts), facts.long_syncs
    if not launches and not len(syncs.call):
        return []
    # Work stands in order of device and start.
    devices, begins = np.unique(work.device, return_index=True)
    ts, ts_end = work.ts[begins], np.maximum.reduceat(work.ts_end, begins)
    until = np.full(len(devices), max(facts.span[1], int(ts_end.max())))
    idle = Coverage(
        np.concatenate([work.device[facts.gaps.next], devices, devices]),
        np.concatenate([facts.gaps.ts, np.minimum(facts.span[0], ts), ts_end]),
        np.concatenate([facts.gaps.ts_end, ts, np.maximum(until, ts_end)]),
    )
    lost_time: list[tuple[str, str | None, int, int]] = []

    def add(position: str, key: Array, start: Array, end: Array) -> None:
        """Add the idle time in windows of devices; windows of one device do not overlap."""
        inside, outside = (np.zeros(len(devices), dtype=np.int64) for _ in range(2))
        first, last = ts[key], ts_end[key]
        between = np.minimum(np.maximum(start, first), last), np.minimum(np.maximum(end, first), last)
        np.add.at(inside, key, idle.covered(key, *between))
        np.add.at(outside, key, idle.covered(key, start, end))
        rows = zip(facts.devices, inside.tolist(), (outside - inside).tolist(), strict=True)
        lost_time.extend((position, *row) for row in rows)

    # The rows stand in order of their first launch: what begins later lies in what was before.
    for position, _, _, first, _ in launches:
        start = np.minimum(first, until)
        add(position, devices, start, until)
        until = start
    if len(syncs.call):
        waits = syncs.windows(devices, facts.ranks[begins])
        start, end = np.minimum(waits.starts, until[waits.keys]), np.minimum(waits.ends, until[waits.keys])
        add(SYNC, waits.keys, start, end)
    return lost_time


def missing_calls(facts: Facts) -> list[tuple[str, int, int, int, int]]:
    """Return GPU work whose rank and number no call has, by position, in order of its first start.

    Rows of: START where its number is below that of any recorded call, else LATER; ALL where no work has a call;
    UNNUMBERED where it has no number. Then kernels, distinct numbers of work, time of the kernels, first start.
    """
    uncalled = np.flatnonzero(facts.work.call == NONE)
    ids, number, rank = facts.work.id[uncalled], facts.work_numbers[uncalled], facts.ranks[uncalled]
    if not len(ids):
        return []
    slices, calls = facts.slices, facts.calls
    numbered = calls.number != NO_NUMBER
    of_call, first = facts.ranks_of(calls.track)[numbered], calls.number[numbered]
    least = np.full(int(max(of_call.max(initial=NONE), rank.max())) + 2, np.iinfo(np.int64).min)
    known_least = np.full(len(least), np.iinfo(np.int64).max)
    np.minimum.at(known_least, of_call, first)  # the last is that of NONE
    least = np.where(known_least == np.iinfo(np.int64).max, least, known_least)[rank]
    position = np.where(number < least, START, LATER) if (facts.work.call != NONE).any() else np.full(len(ids), ALL)
    position = np.where(number != NO_NUMBER, position, UNNUMBERED)
    ts, time_ns, is_kernel = slices.ts[ids], slices.ts_end[ids] - slices.ts[ids], slices.category[ids] == KERNEL
    rows = []
    for name in np.unique(position).tolist():
        mine = position == name
        numbers = np.unique(np.stack((rank[mine], number[mine])), axis=1).shape[1] if name != UNNUMBERED else 0
        kernels = mine & is_kernel
        rows.append((name, int(kernels.sum()), numbers, int(time_ns[kernels].sum()), int(ts[mine].min())))
    return sorted(rows, key=lambda row: (row[4], row[0]))
