"""Idle time of devices and its causes: gaps between work, the time before the first and after the last.

A gap lies between the latest end of all work of a device that began before, and the next start. What the device waited
for is told by the call that started the work that ends the gap:

- Work is queued from the start of its call on. While nothing is queued, the device waits for the thread that makes that
  call, and the time is divided by what this thread is in (`host_time`).
- From the call on the work is being launched. Of that time, if the work starts later than LATE_NS after the end of its
  call, and later than the gap had lasted by then, it waited for something else.

The causes are explained in queries/idle_causes.sql.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.intervals import Coverage, distinct_of, ends_before, on_one_line

# No call, no track, no work.
NONE = -1
NO_STREAM = -(2**62)
# Work that starts so long after its call waited for something else.
LATE_NS = 100_000
# A shorter gap between queued work is a pause of the device.
PAUSE_NS = 5_000
# Findings report longer gaps apart from the others.
LONG_NS = 1_000_000
# What was queued when a gap began.
NOT_RECORDED, QUEUED, NOTHING, LATE = range(4)  # the call is not recorded; work; nothing; nothing, and it starts late
BETWEEN, BEFORE, AFTER = "between", "before", "after"
POSITIONS = (BETWEEN, BEFORE, AFTER)
CAUSES = (
    "cpu_outside", "cpu_operators", "cpu_compiled", "cpu_calls", "cpu_waited", "cpu_data", "cpu_masks", "launching",
    "short", "not_recorded", "other_stream", "other",
)  # fmt: skip
_LAUNCHING, _SHORT, _NOT_RECORDED, _OTHER_STREAM, _OTHER = range(7, 12)

Array = np.ndarray


class GpuWork(Struct, frozen=True):
    """GPU work in order of device, start and slice: arrays of int64, one entry per kernel, copy or set."""

    id: Array  # slice
    device: Array  # index into the names of the devices, which are in order
    stream: Array  # NO_STREAM where not recorded
    ts: Array
    ts_end: Array
    call: Array  # index of the call that started it; NONE where not recorded
    call_ts: Array  # its start; `ts` where not recorded
    call_end: Array  # its end; `ts` where not recorded


class Gaps(Struct, frozen=True):
    """Gaps of each device between two pieces of work, in order of device and start: arrays of int64."""

    next: Array  # index of the work that ends the gap
    last: Array  # index of the work whose end begins it; of several the one that began first
    ts: Array
    ts_end: Array
    queue: Array  # NOT_RECORDED, QUEUED, NOTHING or LATE


def device_gaps(work: GpuWork) -> Gaps:
    """Return the gaps between the work of each device."""
    before = ends_before(work.device, work.ts, work.ts_end)
    following = np.flatnonzero((before >= 0) & (work.ts > work.ts_end[before]))
    last = before[following]
    ts, ts_end = work.ts_end[last], work.ts[following]
    # By its start nothing was queued if only as much work was queued as had begun.
    queued = np.minimum(work.call_ts, work.ts)
    in_order = queued[np.lexsort((queued, work.device))]
    queue = np.where(
        work.call[following] == NONE,
        NOT_RECORDED,
        np.where(in_order[following] <= ts, QUEUED, NOTHING + _is_late(work, following, ts)),
    )
    return Gaps(following, last, ts, ts_end, queue)


def _is_late(work: GpuWork, following: Array, ts: Array) -> Array:
    """Return True for each gap whose next work begins late after its call, where the call is recorded."""
    call_end = work.call_end[following]
    is_late: Array = work.ts[following] - call_end > np.maximum(LATE_NS, call_end - ts)
    return is_late


def queue_depth(work: GpuWork, devices: Array, moments: Array) -> Array:
    """Return how many pieces of work were queued or running on each device just before each moment.

    Those whose call is not recorded do not count.
    """
    queued = np.flatnonzero((work.call != NONE) & (work.ts_end > work.call_ts))
    device = work.device[queued]
    begins, ends, times = on_one_line([device, device, devices], [work.call_ts[queued], work.ts_end[queued], moments])
    # At one moment work ends first, and other calls begin last.
    depth: Array = np.searchsorted(np.sort(begins), times, "left") - np.searchsorted(np.sort(ends), times, "right")
    return depth


def busy_time(work: GpuWork, gaps: Gaps, devices: int) -> tuple[Array, Array, Array]:
    """Return span, idle time between the first and last work, and number of pieces of work of each device."""
    count = np.bincount(work.device, minlength=devices)
    first = np.full(devices, np.iinfo(np.int64).max)
    last = np.full(devices, np.iinfo(np.int64).min)
    np.minimum.at(first, work.device, work.ts)
    np.maximum.at(last, work.device, work.ts_end)
    idle = np.zeros(devices, dtype=np.int64)
    np.add.at(idle, work.device[gaps.next], gaps.ts_end - gaps.ts)
    return np.where(count > 0, last - first, 0), idle, count


class Idle(Struct, frozen=True):
    """All idle time of devices: gaps between work, then the time before the first, then that after the last work."""

    device: Array  # index
    position: Array  # index into POSITIONS
    ts: Array
    ts_end: Array
    next: Array  # index of the work that ends it; NONE after the last
    queue: Array  # as in `Gaps`
    is_long: Array  # bool
    host_end: Array  # until then nothing is queued
    call: Array  # index of the call that is waited for; NONE
    before: Array  # index of the call of the work before a gap in which nothing is queued; NONE


def idle_time(work: GpuWork, gaps: Gaps, recorded: tuple[Array, Array]) -> Idle:
    """Return all idle time of the devices.

    recorded: of each piece of work, the first and the last recorded moment of its rank.
    """
    is_open = gaps.queue > QUEUED
    between = Idle(
        device=work.device[gaps.next],
        position=np.zeros(len(gaps.next), dtype=np.int64),
        ts=gaps.ts,
        ts_end=gaps.ts_end,
        next=gaps.next,
        queue=gaps.queue,
        is_long=gaps.ts_end - gaps.ts > LONG_NS,
        host_end=np.where(is_open, np.minimum(work.call_ts[gaps.next], gaps.ts_end), gaps.ts),
        call=work.call[gaps.next],
        before=np.where(is_open, work.call[gaps.last], NONE),
    )
    index = np.arange(len(work.id))
    first = index[np.append(True, work.device[1:] != work.device[:-1])[: len(index)]]
    by_end = np.lexsort((work.id, work.ts_end, work.device))
    last = by_end[np.append(work.device[1:] != work.device[:-1], True)[: len(index)]]
    first = first[recorded[0][first] < work.ts[first]]
    last = last[recorded[1][last] > work.ts_end[last]]
    starts = recorded[0][first]
    has_call = work.call[first] != NONE
    before = Idle(
        device=work.device[first],
        position=np.full(len(first), 1),
        ts=starts,
        ts_end=work.ts[first],
        next=first,
        queue=np.where(has_call, NOTHING + _is_late(work, first, starts), NOT_RECORDED),
        is_long=np.full(len(first), True),
        host_end=np.where(has_call, np.maximum(starts, np.minimum(work.call_ts[first], work.ts[first])), starts),
        call=work.call[first],
        before=np.full(len(first), NONE),
    )
    has_call = work.call[last] != NONE
    after = Idle(
        device=work.device[last],
        position=np.full(len(last), 2),
        ts=work.ts_end[last],
        ts_end=recorded[1][last],
        next=np.full(len(last), NONE),
        queue=np.where(has_call, NOTHING, NOT_RECORDED),
        is_long=np.full(len(last), True),
        host_end=np.where(has_call, recorded[1][last], work.ts_end[last]),
        call=work.call[last],
        before=np.full(len(last), NONE),
    )
    return Idle(
        **{
            name: np.concatenate([getattr(part, name) for part in (between, before, after)])
            for name in Idle.__struct_fields__
        }
    )


class Windows(Struct, frozen=True):
    """Time in which a device waits for a thread: arrays of int64."""

    idle: Array  # index of the idle time
    ts: Array
    ts_end: Array
    track: Array  # of the thread


class HostTime(Struct, frozen=True):
    """Activity of threads, by track: each holds those after it."""

    any: Coverage  # operators
    compiled: Coverage  # Python of compiled code
    calls: Coverage  # calls
    syncs: Coverage  # host syncs
    data: Coverage  # data loaders
    masks: Coverage  # masks of constrained decoding


def host_windows(idle: Idle, call_tracks: Array) -> Windows:
    """Return the time in which nothing is queued, each with the thread that is waited for, in order of idle time.

    call_tracks: of each call the track of its thread.
    """
    rows = np.flatnonzero((idle.host_end > idle.ts) & (idle.call != NONE))
    return Windows(rows, idle.ts[rows], idle.host_end[rows], call_tracks[idle.call[rows]])


def waited_for(idle: Idle, windows: Windows, host: HostTime, call_tracks: Array) -> Windows:
    """Return the windows, and those in which another thread is waited for: the one that started the last work.

    It is waited for until the thread of the window is first in anything.
    """
    before = idle.before[windows.idle]
    track = np.where(before == NONE, windows.track, call_tracks[before] if len(call_tracks) else NONE)
    other = np.flatnonzero((before != NONE) & (track != windows.track))
    ts = windows.ts[other]
    until = host.any.first(windows.track[other], ts, windows.ts_end[other])
    more = (windows.idle[other], ts, until, track[other])
    mine = (windows.idle, windows.ts, windows.ts_end, windows.track)
    return Windows(*(np.concatenate(pair) for pair in zip(mine, more, strict=True)))


def between_all(starts: Array, ends: Array, first: int, last: int) -> tuple[Array, Array]:
    """Return start and end of the time from `first` to `last` in which no interval is open, in order of start."""
    reached = np.maximum.accumulate(np.append(first, ends))
    until = np.append(starts, last)
    some = until > reached
    return reached[some], until[some]


def until_own(windows: Windows, waited: Windows) -> Windows:
    """Return the windows in which threads are waited for; those of one idle interval do not overlap.

    While another thread is waited for first, that of the window is not.
    """
    size = len(windows.idle)
    later = np.zeros(int(waited.idle.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(later, waited.idle[size:], (waited.ts_end - waited.ts)[size:])
    ts = waited.ts.copy()
    ts[:size] += later[windows.idle]
    some = waited.ts_end > ts
    return Windows(waited.idle[some], ts[some], waited.ts_end[some], waited.track[some])


class Parts(Struct, frozen=True):
    """Idle time by cause: a row for each cause of each idle time, none of 0 ns: arrays of int64."""

    idle: Array  # index of the idle time
    cause: Array  # index into CAUSES
    time_ns: Array


def idle_parts(work: GpuWork, idle: Idle, windows: Windows, waited: Windows, host: HostTime) -> Parts:
    """Return the causes of all idle time; the parts of each idle interval add up to it."""
    size = len(idle.ts)
    times = []
    outside = np.zeros(size, dtype=np.int64)
    outside[windows.idle] = windows.ts_end - windows.ts
    times.append(outside)
    for coverage in (host.any, host.compiled, host.calls, host.syncs, host.data, host.masks):
        sums = np.zeros(size, dtype=np.int64)
        np.add.at(sums, waited.idle, coverage.covered(waited.track, waited.ts, waited.ts_end))
        times.append(sums)
    own_times = [*(outer - inner for outer, inner in pairwise(times)), times[-1]]
    length = idle.ts_end - idle.ts
    cause = np.select(
        [
            idle.queue == NOTHING,
            (idle.queue < LATE) & (length < PAUSE_NS),
            idle.queue == NOT_RECORDED,
            _of_other_stream(work, idle),
        ],
        [_LAUNCHING, _SHORT, _NOT_RECORDED, _OTHER_STREAM],
        _OTHER,
    )
    rest = idle.ts_end - idle.host_end
    parts = [(np.arange(size), cause, rest)]
    for number, part in enumerate(own_times):
        parts.append((np.arange(size), np.full(size, number), part))
    rows, causes, amounts = (np.concatenate(column) for column in zip(*parts, strict=True))
    some = amounts != 0
    return Parts(rows[some], causes[some], amounts[some])


def _of_other_stream(work: GpuWork, idle: Idle) -> Array:
    """Return True for work that waited for another stream.

    It was called while work ran, of other streams alone at the end, and began soon after.

    In a gap no stream of the device runs. So what was called in the gap, or begins later than the end of another
    stream's work takes to be noticed, waited for something else.
    """
    has_waited = np.zeros(len(idle.ts), dtype=bool)
    length = idle.ts_end - idle.ts
    rows = np.flatnonzero((idle.queue == QUEUED) & (length >= PAUSE_NS) & (length <= LATE_NS) & (idle.next != NONE))
    rows = rows[work.call_ts[idle.next[rows]] <= idle.ts[rows]]
    if not len(rows):
        return has_waited
    following = idle.next[rows]
    order = np.lexsort((work.ts_end, work.device))
    # The work of the device that ended when the gap began.
    ends, gaps = on_one_line([work.device[order], work.device[following]], [work.ts_end[order], idle.ts[rows]])
    begins, stops = (np.searchsorted(ends, gaps, side=side) for side in ("left", "right"))
    counts = stops - begins
    which = np.repeat(np.arange(len(rows)), counts)
    ended = order[np.arange(len(which)) + np.repeat(begins - (np.cumsum(counts) - counts), counts)]
    stream, next_stream = work.stream[ended], work.stream[following][which]
    alike = (stream == next_stream) | (stream == NO_STREAM) | (next_stream == NO_STREAM)
    is_alike = np.zeros(len(rows), dtype=bool)
    is_alike[which[alike]] = True
    has_waited[rows[(counts > 0) & ~is_alike]] = True
    return has_waited


def largest_part(parts: Parts, size: int) -> Array:
    """Return the index of the cause that takes most of each idle interval; of equal ones the first by name, or NONE."""
    rank = np.argsort(np.argsort(CAUSES))
    order = np.lexsort((rank[parts.cause], -parts.time_ns, parts.idle))
    rows = parts.idle[order]
    first = order[np.append(True, rows[1:] != rows[:-1])[: len(rows)]]
    largest = np.full(size, NONE)
    largest[parts.idle[first]] = parts.cause[first]
    return largest


def summed(keys: tuple[Array, ...], times: Array) -> tuple[list[tuple[Any, ...]], Array, Array, Array]:
    """Return the distinct keys in order, and for each the number of rows, the sum of their times and the longest."""
    if not len(times):
        return [], times, times, times
    lows = [int(key.min()) for key in keys]
    spans = [int(key.max()) - low + 1 for key, low in zip(keys, lows, strict=True)]
    combined = np.zeros(len(times), dtype=np.int64)
    for key, low, span in zip(keys, lows, spans, strict=True):
        combined = combined * span + (key - low)
    distinct, which = distinct_of(combined)
    columns = [column + low for column, low in zip(np.unravel_index(distinct, spans), lows, strict=True)]
    sums, longest = np.zeros(len(distinct), dtype=np.int64), np.full(len(distinct), np.iinfo(np.int64).min)
    np.add.at(sums, which, times)
    np.maximum.at(longest, which, times)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return rows, np.bincount(which, minlength=len(distinct)), sums, longest
