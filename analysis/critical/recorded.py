"""What the replay of a trace needs: calls of each thread, the GPU's work with what it waits for, and host intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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


class Interval(NamedTuple):
    """A named stretch of a thread's time."""

    thread: Thread
    start_ns: int
    end_ns: int
    name: str


@dataclass(frozen=True)
class Recorded:
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
    phases: tuple[Interval, ...]
    operators: tuple[Interval, ...]  # the outermost
    named: tuple[Interval, ...] = ()  # every operator and Python function, where asked for
    notes: tuple[str, ...] = ()


def read_recorded(engine: TraceProcessor, info: TraceInfo) -> Recorded:
    """The trace must be loaded with Python stacks. Raises TraceError where it records neither calls nor operators."""
    steps, calls, work = (read_frame(engine, name) for name in ("steps", "calls", "work"))
    phases = _intervals(read_frame(engine, "phases"), "phase")
    operators = _intervals(read_frame(engine, "operators", where="caller_id IS NULL"), "name")
    host = [*phases, *operators]
    if not len(calls) and not host:
        raise TraceError(
            f"{info.path} records neither calls nor operators of the host",
            hint="profile with ProfilerActivity.CPU: the path goes over both sides",
        )
    start, end = _range(steps, calls, work, host)
    calls = calls.where(_outermost(calls, start, end))
    call_of = _call_of(calls, work)
    chosen = ((work["ts"] >= start) & (work["ts"] <= end)) | (call_of != NONE)
    work, call_of = work.where(chosen), call_of[chosen]
    end = max([end, *(int((frame["ts"] + frame["dur"]).max(initial=0)) for frame in (calls, work) if len(frame))])
    call_start, call_end = calls["ts"], calls["ts"] + calls["dur"]
    threads: list[Thread] = list(zip(calls["upid"].tolist(), calls["tid"].tolist(), strict=True))
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
    previous = _previous(work)
    latency, pause = _least(call_start, call_of, work_start, work_end, previous)
    is_sync = calls["is_sync"].astype(bool)
    target, waited = _targets(call_start, call_end, is_sync, call_of, work_end)
    unplaced = int((call_of == NONE).sum())
    return Recorded(
        start,
        end,
        len(steps),
        dict(ends),
        threads,
        calls["name"].tolist(),
        call_start,
        call_end,
        is_sync,
        _before(threads, call_start, call_end),
        target,
        waited,
        _segments(calls, is_sync),
        work_start,
        work_end,
        work["class"].tolist(),
        call_of,
        previous,
        _others(work, call_of, call_start, previous, latency, pause),
        latency,
        pause,
        tuple(phases),
        tuple(operators),
        notes=(f"{unplaced:,} pieces of GPU work whose call is not recorded keep their place behind the one before",)
        if unplaced
        else (),
    )


def read_named(engine: TraceProcessor) -> tuple[Interval, ...]:
    """Every operator and Python function."""
    return tuple(item for name in ("operators", "functions") for item in _intervals(read_frame(engine, name), "name"))


def _intervals(frame: Frame, name: str) -> list[Interval]:
    if not len(frame):
        return []
    each = zip(*(frame[column].tolist() for column in ("upid", "tid", "ts", "dur", name)), strict=True)
    return [Interval((upid, tid), ts, ts + dur, text) for upid, tid, ts, dur, text in each]


def unions(intervals: Iterable[Interval]) -> dict[Thread, Union]:
    """The moments in any of the intervals, by thread."""
    found: defaultdict[Thread, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for item in intervals:
        found[item.thread][0].append(item.start_ns)
        found[item.thread][1].append(item.end_ns)
    return {thread: Union(*both) for thread, both in found.items()}


def _range(steps: Frame, calls: Frame, work: Frame, host: list[Interval]) -> tuple[int, int]:
    """All marked steps, or the whole trace."""
    if len(steps):
        return int(steps["ts"].min()), int((steps["ts"] + steps["dur"]).max())
    frames = [frame for frame in (calls, work) if len(frame)]
    starts = [item.start_ns for item in host] + [int(frame["ts"].min()) for frame in frames]
    ends = [item.end_ns for item in host] + [int((frame["ts"] + frame["dur"]).max()) for frame in frames]
    return min(starts), max(ends)


def _outermost(calls: Frame, start: int, end: int) -> np.ndarray:
    """Which calls lie in a range, and in no other call of their thread."""
    chosen = np.zeros(len(calls), dtype=bool)
    until: dict[Thread, int] = {}
    rows = zip(calls["upid"], calls["tid"], calls["ts"].tolist(), calls["dur"].tolist(), strict=True)
    for place, (upid, tid, ts, dur) in enumerate(rows):
        if start <= ts <= end and ts >= until.get((upid, tid), 0):
            chosen[place] = True
            until[upid, tid] = ts + dur
    return chosen


def _call_of(calls: Frame, work: Frame) -> np.ndarray:
    places = {item: place for place, item in enumerate(calls["id"].tolist())}
    return np.array([places.get(item, NONE) for item in work["call_id"].tolist()], dtype=np.int64)


def _previous(work: Frame) -> np.ndarray:
    """The work before each on its stream."""
    found = np.full(len(work), NONE)
    last: dict[tuple[object, object], int] = {}
    for place, stream in enumerate(zip(work["device"].tolist(), work["stream"].tolist(), strict=True)):
        found[place] = last.get(stream, NONE)
        last[stream] = place
    return found


def _least(
    call_start: np.ndarray, call_of: np.ndarray, start: np.ndarray, end: np.ndarray, previous: np.ndarray
) -> tuple[int, int]:
    """Time from a launch to work of an idle stream, and from work to the next that waits for it: each a low decile."""
    known = np.flatnonzero((call_of != NONE) & (previous != NONE))
    launched, free = call_start[call_of[known]], end[previous[known]]
    delay, pause = start[known] - launched, start[known] - free
    idle = free <= launched
    between = pause[~idle & (pause >= 0)]
    return (
        max(0, int(np.quantile(delay[idle], 0.1))) if idle.any() else LATENCY_NS,
        int(np.quantile(between, 0.1)) if len(between) else 0,
    )


def _targets(
    call_start: np.ndarray, call_end: np.ndarray, is_sync: np.ndarray, call_of: np.ndarray, work_end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The work that each sync waits for: of what was launched before its end, what ended last before it."""
    target = np.full(len(call_start), NONE)
    order = np.argsort(work_end, kind="stable")
    launched = np.where(call_of == NONE, np.iinfo(np.int64).min, call_start[call_of] if len(call_start) else 0)
    for place in np.flatnonzero(is_sync):
        at = int(np.searchsorted(work_end[order], call_end[place], side="right")) - 1
        while at >= 0 and launched[order[at]] > call_start[place]:
            at -= 1
        if at >= 0:
            target[place] = order[at]
    ended = np.where(target == NONE, np.iinfo(np.int64).min, work_end[target] if len(work_end) else 0)
    return target, ended > call_start


def _before(threads: list[Thread], start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The call of its own thread before each, or of another thread which handed over to it."""
    found = np.full(len(threads), NONE)
    last: dict[Thread, int] = {}
    ends = sorted(zip(end.tolist(), range(len(threads)), strict=True))
    at, newest = 0, NONE
    for place, thread in enumerate(threads):
        # A call without length ends where it starts, and is not before itself.
        while at < len(ends) and ends[at] < (start[place], place):
            newest, at = ends[at][1], at + 1
        own = last.get(thread, NONE)
        own_end = end[own] if own != NONE else np.iinfo(np.int64).min // 2
        is_other = newest != NONE and end[newest] > own_end and start[place] - own_end > HANDED_OVER_NS
        found[place] = newest if is_other else own
        last[thread] = place
    return found


def _segments(calls: Frame, is_sync: np.ndarray) -> np.ndarray:
    """Runs of calls of one step between host syncs; a sync is a run of its own."""
    steps = calls["step_id"].tolist()
    found, number = np.zeros(len(calls), dtype=np.int64), 0
    for place in range(1, len(calls)):
        number += bool(is_sync[place] or is_sync[place - 1] or steps[place] != steps[place - 1])
        found[place] = number
    return found


def _others(
    work: Frame, call_of: np.ndarray, call_start: np.ndarray, previous: np.ndarray, latency: int, pause: int
) -> np.ndarray:
    """Work of another stream that work waited for, as its end right before the start shows."""
    found = np.full(len(work), NONE)
    streams = list(zip(work["device"].tolist(), work["stream"].tolist(), strict=True))
    if len(set(streams)) < 2:
        return found
    start, end = work["ts"], work["ts"] + work["dur"]
    order = np.argsort(end, kind="stable")
    sorted_end = end[order]
    least = np.iinfo(np.int64).min
    ready = np.maximum(
        np.where(call_of == NONE, least, (call_start[call_of] if len(call_start) else 0) + latency),
        np.where(previous == NONE, least, end[previous] + pause),
    )
    for place in np.flatnonzero(start > ready):
        at = int(np.searchsorted(sorted_end, start[place], side="right")) - 1
        if at >= 0 and sorted_end[at] > max(ready[place], start[place] - FOLLOWS_NS):
            candidate = order[at]
            if streams[candidate] != streams[place] and start[candidate] < start[place]:
                found[place] = candidate
    return found
