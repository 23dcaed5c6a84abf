"""Input of a trace's replay: calls of each thread, GPU work with what it waits for, and host intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from molprof.analysis.facts.nesting import Nesting
from molprof.analysis.frame import Frame, read_frame
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.union import Union
from molprof.common.errors import TraceError

# A call that begins so long after the last of its own thread was handed to it by another thread that called since.
HANDED_OVER_NS = 200_000
# Work that begins so soon after other work of another stream ended, and later than its own stream and launch let it,
# waited for that.
FOLLOWS_NS = 5_000
# From a launch to its work where no work of an idle stream tells it.
LATENCY_NS = 10_000
NONE = -1

Thread = tuple[int, int]  # upid, tid


class ThreadInterval(NamedTuple):
    """A named span of a thread's time."""

    thread: Thread
    start_ns: int
    end_ns: int
    name: str


@dataclass(frozen=True)
class RecordedTrace:
    """A trace as calls and work, each in order of start. Times: int64 ns since the trace's earliest event.

    Attributes:
        start_ns, end_ns: of what is replayed: all marked steps with the work that they start, or the whole trace.
        ends_ns: end of the host's time by thread.
        before: (calls) the call whose end a call follows on the host, or NONE.
        target: (calls) the work that a call waits for, or NONE; `waited`: whether it had not ended when the call began.
        call_of: (work) the call that started it; `previous` of its stream; `other` of another stream that it waited
            for. NONE where there is none.
        latency_ns: least time from a launch to its work; `pause_ns` between two kernels of a stream.
        segment: (calls) number of the run of calls between two host syncs in one step.
    """

    start_ns: int
    end_ns: int
    steps: int
    ends_ns: Mapping[Thread, int]
    call_thread: list[Thread]
    call_name: list[str]
    call_start: np.ndarray
    call_end: np.ndarray
    is_sync: np.ndarray
    before: np.ndarray
    target: np.ndarray
    waited: np.ndarray
    segment: np.ndarray
    work_start: np.ndarray
    work_end: np.ndarray
    work_class: list[str]
    call_of: np.ndarray
    previous: np.ndarray
    other: np.ndarray
    latency_ns: int
    pause_ns: int
    phases: tuple[ThreadInterval, ...]
    operators: tuple[ThreadInterval, ...]  # the outermost
    named: tuple[ThreadInterval, ...] = ()  # every operator and Python function, where asked for
    notes: tuple[str, ...] = ()


def read_recorded(engine: TraceProcessor, info: TraceInfo) -> RecordedTrace:
    """Return the calls, work and host intervals of a trace, which must be loaded with Python stacks.

    Raises TraceError where it records neither calls nor operators.
    """
    steps, calls, work = (read_frame(engine, name) for name in ("steps", "calls", "work"))
    of_phases, of_operators = read_frame(engine, "phases"), read_frame(engine, "operators", where="caller_id IS NULL")
    phases, operators = intervals(of_phases, "phase"), intervals(of_operators, "name")
    host = [*phases, *operators]
    if not len(calls) and not host:
        raise TraceError(
            f"{info.path} records neither calls nor operators of the host",
            hint="profile with ProfilerActivity.CPU: the path goes over both sides",
        )
    start, end = time_range(steps, calls, work, of_phases, of_operators)
    calls = calls.where(_outermost(calls, start, end))
    call_of = _call_of(calls, work)
    chosen = ((work["ts"] >= start) & (work["ts"] <= end)) | (call_of != NONE)
    work, call_of = work.where(chosen), call_of[chosen]
    end = max([end, *(int((frame["ts"] + frame["dur"]).max(initial=0)) for frame in (calls, work) if len(frame))])
    call_start, call_end = calls["ts"], calls["ts"] + calls["dur"]
    threads = calls.select("upid", "tid").rows()
    ends: defaultdict[Thread, int] = defaultdict(int)
    for thread, moment in [
        *zip(threads, call_end.tolist(), strict=True),
        *((item.thread, item.end_ns) for item in host),
    ]:
        ends[thread] = max(ends[thread], min(moment, end))
    if len(steps):
        for upid, tid, moment in zip(steps["upid"], steps["tid"], (steps["ts"] + steps["dur"]).tolist(), strict=True):
            ends[upid, tid] = max(ends[upid, tid], moment)
    work_start, work_end = work["ts"], work["ts"] + work["dur"]
    previous = _previous(work.select("device", "stream").rows())
    latency, pause = _least_delays(call_start, call_of, work_start, work_end, previous)
    is_sync = calls["is_sync"].astype(bool)
    target, waited = _synced_work(call_start, call_end, is_sync, call_of, work_end)
    unplaced = int((call_of == NONE).sum())
    return RecordedTrace(
        start,
        end,
        len(steps),
        dict(ends),
        threads,
        calls["name"].tolist(),
        call_start,
        call_end,
        is_sync,
        _preceding_calls(threads, call_start, call_end),
        target,
        waited,
        _segments(calls, is_sync),
        work_start,
        work_end,
        work["class"].tolist(),
        call_of,
        previous,
        _awaited_work(work, call_of, call_start, previous, latency, pause),
        latency,
        pause,
        phases,
        operators,
        notes=(f"{unplaced:,} pieces of GPU work whose call is not recorded keep their place behind the one before",)
        if unplaced
        else (),
    )


def read_named(engine: TraceProcessor) -> tuple[ThreadInterval, ...]:
    """Return the interval of every operator and Python function."""
    return (*intervals(read_frame(engine, "operators"), "name"), *intervals(read_frame(engine, "functions"), "name"))


def intervals(frame: Frame, name: str) -> tuple[ThreadInterval, ...]:
    """Return the rows of a frame, named by one of its columns."""
    rows = frame.select("upid", "tid", "ts", "dur", name).rows()
    return tuple(ThreadInterval((upid, tid), ts, ts + dur, text) for upid, tid, ts, dur, text in rows)


def unions(items: Iterable[ThreadInterval]) -> dict[Thread, Union]:
    """Return the moments in any of the intervals, by thread."""
    by_thread: defaultdict[Thread, list[ThreadInterval]] = defaultdict(list)
    for item in items:
        by_thread[item.thread].append(item)
    return {thread: union(each) for thread, each in by_thread.items()}


def union(items: Collection[ThreadInterval]) -> Union:
    """Return the moments in any of the intervals, whatever their threads."""
    return Union([item.start_ns for item in items], [item.end_ns for item in items])


def time_range(steps: Frame, *frames: Frame) -> tuple[int, int]:
    """Return the first and the last moment of all marked steps, or else of all frames."""
    some = [frame for frame in ([steps] if len(steps) else frames) if len(frame)]
    starts, ends = (frame["ts"].min() for frame in some), ((frame["ts"] + frame["dur"]).max() for frame in some)
    return int(min(starts)), int(max(ends))


def _outermost(calls: Frame, start: int, end: int) -> np.ndarray:
    """Return True for calls that lie in a range, and in no other call of their thread."""
    numbers: dict[Thread, int] = {}
    rows = [
        (numbers.setdefault(row[:2], len(numbers)), *row[2:]) for row in calls.select("upid", "tid", "ts", "dur").rows()
    ]
    thread, ts, dur = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    inside = np.flatnonzero((ts >= start) & (ts <= end))
    nesting = Nesting(thread[inside], ts[inside], (ts + dur)[inside], inside)
    chosen = np.zeros(len(calls), dtype=bool)
    chosen[nesting.names[nesting.nested.parent[:-1] == NONE]] = True
    return chosen


def _call_of(calls: Frame, work: Frame) -> np.ndarray:
    index_of = {item: index for index, item in enumerate(calls["id"].tolist())}
    return np.array([index_of.get(item, NONE) for item in work["call_id"].tolist()], dtype=np.int64)


def _previous(keys: Sequence[Hashable]) -> np.ndarray:
    """Return the index of the row before each row with the same key, or NONE."""
    previous = np.full(len(keys), NONE)
    last: dict[Hashable, int] = {}
    for index, key in enumerate(keys):
        previous[index] = last.get(key, NONE)
        last[key] = index
    return previous


def _least_delays(
    call_start: np.ndarray, call_of: np.ndarray, start: np.ndarray, end: np.ndarray, previous: np.ndarray
) -> tuple[int, int]:
    """Return low deciles of the time from a launch to work of an idle stream, and from work to the next that waits."""
    rows = np.flatnonzero((call_of != NONE) & (previous != NONE))
    launched, free = call_start[call_of[rows]], end[previous[rows]]
    delay, pause = start[rows] - launched, start[rows] - free
    idle = free <= launched
    between = pause[~idle & (pause >= 0)]
    return (
        max(0, int(np.quantile(delay[idle], 0.1))) if idle.any() else LATENCY_NS,
        int(np.quantile(between, 0.1)) if len(between) else 0,
    )


def _synced_work(
    call_start: np.ndarray, call_end: np.ndarray, is_sync: np.ndarray, call_of: np.ndarray, work_end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the work that each sync waits for: of that launched before its start, the last to end before its end."""
    target = np.full(len(call_start), NONE)
    order = np.argsort(work_end, kind="stable")
    ordered_end = work_end[order]
    launched = np.where(call_of == NONE, np.iinfo(np.int64).min, call_start[call_of] if len(call_start) else 0)
    for index in np.flatnonzero(is_sync):
        at = int(np.searchsorted(ordered_end, call_end[index], side="right")) - 1
        while at >= 0 and launched[order[at]] > call_start[index]:
            at -= 1
        if at >= 0:
            target[index] = order[at]
    ended = np.where(target == NONE, np.iinfo(np.int64).min, work_end[target] if len(work_end) else 0)
    return target, ended > call_start


def _preceding_calls(threads: list[Thread], start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the call before each one: of its own thread, or of another thread that handed over to it."""
    count, previous = len(threads), _previous(threads)
    # A call without length ends where it starts, and is not before itself: of one moment they stand by number.
    moments = np.unique(np.append(end, start), return_inverse=True)[1].reshape(2, count) * count + np.arange(count)
    ended = np.sort(moments[0])
    newest = np.append(NONE, ended % max(1, count))[np.searchsorted(ended, moments[1])]
    own_end = np.where(previous == NONE, np.iinfo(np.int64).min // 2, end[previous])
    is_other = (newest != NONE) & (end[newest] > own_end) & (start - own_end > HANDED_OVER_NS)
    return np.where(is_other, newest, previous)


def _segments(calls: Frame, is_sync: np.ndarray) -> np.ndarray:
    """Return numbers of runs of calls of one step between host syncs; a sync is a run of its own."""
    steps = calls["step_id"].tolist()
    segments, number = np.zeros(len(calls), dtype=np.int64), 0
    for index in range(1, len(calls)):
        number += bool(is_sync[index] or is_sync[index - 1] or steps[index] != steps[index - 1])
        segments[index] = number
    return segments


def _awaited_work(
    work: Frame, call_of: np.ndarray, call_start: np.ndarray, previous: np.ndarray, latency: int, pause: int
) -> np.ndarray:
    """Return the work of another stream that each piece waited for, as its end right before the start shows."""
    others = np.full(len(work), NONE)
    streams = list(zip(work["device"].tolist(), work["stream"].tolist(), strict=True))
    if len(set(streams)) < 2:
        return others
    start, end = work["ts"], work["ts"] + work["dur"]
    order = np.argsort(end, kind="stable")
    sorted_end = end[order]
    least = np.iinfo(np.int64).min
    ready = np.maximum(
        np.where(call_of == NONE, least, (call_start[call_of] if len(call_start) else 0) + latency),
        np.where(previous == NONE, least, end[previous] + pause),
    )
    for index in np.flatnonzero(start > ready):
        at = int(np.searchsorted(sorted_end, start[index], side="right")) - 1
        if at >= 0 and sorted_end[at] > max(ready[index], start[index] - FOLLOWS_NS):
            candidate = order[at]
            if streams[candidate] != streams[index] and start[candidate] < start[index]:
                others[index] = candidate
    return others
