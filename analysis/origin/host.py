"""Host time of phases, Python functions and modules: each moment of a thread counts for the innermost of them.

Beside it how long GPUs waited in each: idle time with nothing queued, on the thread that the GPU waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from molprof.analysis.facts.gaps import until_own
from molprof.analysis.facts.intervals import Coverage, Depth, Keyed, shared
from molprof.analysis.facts.nesting import Nesting
from molprof.analysis.frame import Frame
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows

_THREADS = Query(
    "annotations", "SELECT track.id, thread.upid, thread.tid FROM thread_track AS track JOIN thread USING (utid)"
)
_COLUMNS = ("phase", "frame_id", "own_ns")
# Share of the recorded time that the profiler may take to begin and to end.
_EDGE = 0.05
Threads = dict[tuple[Any, Any], int]  # upid and tid to a number


class _Lanes(NamedTuple):
    """The innermost phase of threads at each moment."""

    phases: list[str]
    threads: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    phase: np.ndarray  # index into `phases`


class HostTimes(NamedTuple):
    """Host time outside operators, by phase and frame."""

    own: Frame  # self time by phase and frame, outside operators
    whole_ns: int  # what it must add up to
    marks_ns: int  # in molprof's marks, and in libraries that these call: in neither of the two before
    waiting_ns: int  # of threads that only wait: as well


def host_of(engine: TraceProcessor, around: Frame, calling: np.ndarray) -> HostTimes:
    """Return the host time of active threads.

    around: frames, operators included. phase: None outside phases. frame_id: None for a phase's time in no frame.
    calling: frames in which calls of a GPU's API are.
    """
    waits = only_wait(around, calling)
    waiting = _frames(around.where(waits), {})
    waiting_ns = Coverage(waiting.threads, waiting.starts, waiting.ends).length_ns
    around = around.where(~waits)
    threads: Threads = {}
    # What operators hold, their Python functions too, is theirs. Frames stand behind those around them.
    held: set[int] = set()
    is_outer = np.ones(len(around), dtype=np.bool_)
    for row, (number, parent, kind) in enumerate(around.select("id", "parent_id", "kind").rows()):
        is_outer[row] = parent not in held
        if kind == "operator" or parent in held:
            held.add(number)
    items = around.where(is_outer)
    frames, lanes = _frames(items, threads), _lanes(engine, threads)
    columns = frames.threads, frames.starts, frames.ends
    everything = [np.concatenate(pair) for pair in zip(columns, lanes[1:4], strict=True)]
    called = items["kind"][frames.names] == "operator"
    whole_ns = Coverage(*everything).length_ns - Coverage(*(column[called] for column in columns)).length_ns
    thread = np.arange(len(threads))
    first, last = everything[1].min(initial=0), everything[2].max(initial=0)
    own_times = _own_times((thread, np.full_like(thread, first), np.full_like(thread, last)), lanes, frames)
    ids, is_marks = items["id"].tolist(), _marks(items)
    rows, marks_ns = [], 0
    for phase, index, own_ns in own_times:
        if index is not None and is_marks[frames.names[index]]:
            marks_ns += own_ns
        # Neither operators nor a thread that is in no phase and no frame.
        elif not (phase is None if index is None else called[index]):
            rows.append((phase, None if index is None else ids[frames.names[index]], own_ns))
    return HostTimes(Frame.of_rows(_COLUMNS, rows), whole_ns - marks_ns, marks_ns, waiting_ns)


def only_wait(around: Frame, calling: np.ndarray) -> np.ndarray:
    """Return True for frames whose thread only waits: it stays in the same functions, and calls nothing.

    For a thread that waits, the profiler records the functions that it was in at the beginning, up to the end. Where no
    thread does anything, nothing shows how long that was, and none counts as waiting.
    """
    threads, starts, ends = _spans(around, {})
    works = np.isin(around["kind"], ("function", "library"), invert=True) | np.isin(around["id"], calling)
    count = int(threads.max(initial=-1)) + 1
    first, last, busy = np.zeros(count, np.int64), np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.bool_)
    np.maximum.at(first, threads, starts)
    np.minimum.at(last, threads, ends)
    np.logical_or.at(busy, threads, works)
    does = busy[threads]
    if not does.any():
        return does
    begin, end = int(starts[does].min()), int(ends[does].max())
    edge = _EDGE * (end - begin)
    stays = ~busy & (first <= begin + edge) & (last >= end - edge)
    waits: np.ndarray = stays[threads]
    return waits


def _marks(items: Frame) -> list[bool]:
    """Return True for each frame that is one of molprof's marks, or a library's that only these call."""
    is_mark: dict[int | None, bool] = {}
    for number, parent, kind in items.select("id", "parent_id", "kind").rows():
        is_mark[number] = kind == "molprof" or (kind == "library" and is_mark.get(parent, False))
    return list(is_mark.values())


def waits_of(engine: TraceProcessor, around: Frame) -> Frame:
    """Return how long GPUs waited for the host by phase and innermost frame, ns; several GPUs are summed.

    around: frames, operators included. phase: None outside phases. frame_id: None in no frame.
    """
    threads: Threads = {}
    waits = until_own(engine.facts.windows, engine.facts.waited)
    place_of = {track: (upid, tid) for track, upid, tid in query_rows(engine, _THREADS)[1]}
    thread = [threads.setdefault(place_of[track], len(threads)) for track in waits.track.tolist()]
    frames, ids = _frames(around, threads), around["id"].tolist()
    windows = np.array(thread, dtype=np.int64), waits.ts, waits.ts_end
    own_times = _own_times(windows, _lanes(engine, threads), frames)
    rows = [(phase, None if index is None else ids[frames.names[index]], own_ns) for phase, index, own_ns in own_times]
    return Frame.of_rows(_COLUMNS, rows)


def _frames(items: Frame, threads: Threads) -> Nesting:
    """Return the frames by thread; `names` are their row numbers."""
    return Nesting(*_spans(items, threads), np.arange(len(items)))


def _spans(items: Frame, threads: Threads) -> Keyed:
    """Return thread, start and end of each frame."""
    numbers = [threads.setdefault(thread, len(threads)) for thread in items.select("upid", "tid").rows()]
    starts = items["ts"].astype(np.int64)
    return np.array(numbers, dtype=np.int64), starts, starts + items["dur"].astype(np.int64)


def _lanes(engine: TraceProcessor, threads: Threads) -> _Lanes:
    names, phases = engine.facts.phase_names, dict[str, int]()
    numbers = [
        (threads.setdefault((upid, tid), len(threads)), ts, ts_end, phases.setdefault(names[phase], len(phases)))
        for phase, ts, ts_end, upid, tid in engine.facts.phase_lanes
    ]
    return _Lanes(list(phases), *np.array(numbers, dtype=np.int64).reshape(-1, 4).T)


def _own_times(windows: Keyed, lanes: _Lanes, frames: Nesting) -> Iterator[tuple[str | None, int | None, int]]:
    """Yield phase, index of the frame, and its time in windows without that of frames inside. None: in none of them.

    Windows of one thread may overlap, as those of many GPUs that wait for it do; each counts.
    """
    segments, width = frames.segments, len(frames.names) + 1
    none, inside = width - 1, Depth(*windows)
    lane, segment, starts, ends = shared(lanes[1:4], segments[:3])
    both_ns = inside.time(lanes.threads[lane], starts, ends)
    lane_ns, segment_ns = inside.time(*lanes[1:4]), inside.time(*segments[:3])
    np.subtract.at(lane_ns, lane, both_ns)
    np.subtract.at(segment_ns, segment, both_ns)
    rest_ns = (windows[2] - windows[1]).sum() - both_ns.sum() - lane_ns.sum() - segment_ns.sum()
    phase = lanes.phase + 1
    parts = phase[lane] * width + segments.owners[segment], phase * width + none, segments.owners, [none]
    keys, index_of = np.unique(np.concatenate(parts), return_inverse=True)
    own_ns = np.zeros(len(keys), dtype=np.int64)
    np.add.at(own_ns, index_of, np.concatenate([both_ns, lane_ns, segment_ns, [rest_ns]]))
    for key, amount in zip(keys.tolist(), own_ns.tolist(), strict=True):
        phase_number, frame = divmod(key, width)
        if amount:
            yield lanes.phases[phase_number - 1] if phase_number else None, frame if frame < none else None, amount
