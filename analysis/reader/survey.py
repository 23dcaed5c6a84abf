"""The first pass over a trace: times, tracks and counts of all events, as compact arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from molprof.analysis.reader.document import Document
from molprof.analysis.reader.lanes import assign_lanes
from molprof.analysis.reader.times import nanoseconds
from molprof.errors import TraceError

STACK_CATEGORY = "python_function"
# Phases of the Chrome trace format that the trace processor reads, apart from M (names).
_SLICES = frozenset("XBbniIR")  # each becomes a slice
_OTHERS = frozenset("EestfC")
_FED = _SLICES | _OTHERS

Id = int | str | None
_ZERO = msgspec.Raw(b"0")
_NULL = msgspec.Raw(b"null")


class _Brief(msgspec.Struct, gc=False):
    """What the first pass needs of an event; the name's type is checked for the second."""

    ph: str | None = None
    cat: str | int | None = None
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = _ZERO
    name: str | None = None
    args: msgspec.Raw = msgspec.Raw(b"")


@dataclass(frozen=True)
class Survey:
    """What is known of a trace before it is fed.

    The arrays have one entry per event that is fed, in file order: `starts_ns` (int64, from the
    earliest event), `durations_ns` (int64; 0 for all but X), `tracks` (int32, index into
    `track_ids`), `lanes` (int32, 0 = its own track).
    """

    events_by_category: dict[str, int]  # complete events in the file, fed or not
    expected_slices: dict[str, int]  # slices that the engine must show
    has_open_slices: bool  # begin events, whose durations this pass does not know
    unread_events: int
    origin_ns: int
    starts_ns: np.ndarray
    durations_ns: np.ndarray
    tracks: np.ndarray
    lanes: np.ndarray
    track_ids: list[tuple[Id, Id]]
    thread_names: dict[int, str]  # by track
    process_names: dict[Id, str]  # by pid
    keys: dict[str, Any]
    problem: TraceError | None


class _Tracks(dict[tuple[Id, Id], int]):
    def __missing__(self, key: tuple[Id, Id]) -> int:
        self[key] = len(self)
        return self[key]


def fed(events: Sequence[Any], stacks: bool) -> list[Any]:
    """The events that go to the engine: the same choice in both passes."""
    if stacks:
        return [event for event in events if event.ph in _FED]
    return [event for event in events if event.ph in _FED and event.cat != STACK_CATEGORY]


def survey(path: Path, stacks: bool, partial: bool) -> Survey:
    """Reads the whole file once. Raises TraceError."""
    document = Document(path, _Brief, partial)
    tracks = _Tracks()
    categories: Counter[Any] = Counter()
    slices: Counter[Any] = Counter()
    has_open = False
    starts_parts, duration_parts, track_parts, complete_parts = [], [], [], []
    thread_names: dict[int, str] = {}
    process_names: dict[Id, str] = {}
    read = unread = 0
    for all_events, _ in document.blocks():
        phases = Counter([event.ph for event in all_events])
        unread += sum(count for phase, count in phases.items() if phase not in _FED and phase != "M")
        has_open = has_open or phases["B"] + phases["b"] > 0
        for event in all_events if phases["M"] else ():
            if event.ph == "M":
                _note_name(event, tracks, thread_names, process_names)
        categories.update([event.cat for event in all_events if event.ph == "X"])
        events = fed(all_events, stacks)
        starts = _times(path, read, events, [event.ts for event in events], "ts")
        # An X event without dur took no time; other events have none.
        texts = [event.dur if event.ph == "X" and event.dur != _NULL else _ZERO for event in events]
        lengths = _times(path, read, events, texts, "dur")
        if len(lengths) and lengths.min() < 0:
            worst = events[int(lengths.argmin())]
            raise TraceError(f"{path}: event {worst.name!r} has a negative dur, {bytes(worst.dur).decode()} us")
        slices.update([event.cat for event in events if event.ph in _SLICES])
        track_parts.append(np.array([tracks[event.pid, event.tid] for event in events], dtype=np.int32))
        complete_parts.append(np.array([event.ph == "X" for event in events], dtype=bool))
        starts_parts.append(starts)
        duration_parts.append(lengths)
        read += len(all_events)
    starts = _joined(starts_parts, np.int64)
    lengths = _joined(duration_parts, np.int64)
    track = _joined(track_parts, np.int32)
    origin = int(starts.min()) if len(starts) else 0
    starts -= origin
    _check_span(path, starts, lengths)
    complete = np.flatnonzero(_joined(complete_parts, np.bool_))
    lanes = np.zeros(len(starts), dtype=np.int32)
    lanes[complete] = assign_lanes(track[complete], starts[complete], (starts + lengths)[complete])
    return Survey(
        events_by_category=_by_text(categories),
        expected_slices=_by_text(slices),
        has_open_slices=has_open,
        unread_events=unread,
        origin_ns=origin,
        starts_ns=starts,
        durations_ns=lengths,
        tracks=track,
        lanes=lanes,
        track_ids=list(tracks),
        thread_names=thread_names,
        process_names=process_names,
        keys=document.keys,
        problem=document.problem,
    )


# The engine reads times as float64 microseconds, which give the exact nanosecond up to 2**52 ns.
_MAX_SPAN_NS = 2**52


def _times(path: Path, before: int, events: list[_Brief], texts: list[Any], field: str) -> np.ndarray:
    try:
        return nanoseconds(texts)
    except ValueError as error:
        reason, position = error.args
        event = events[position]
        raise TraceError(
            f"{path}: {field} of event {event.name!r} (ph {event.ph!r}), after event {before}: {reason}"
        ) from None


def _joined(parts: list[np.ndarray], kind: Any) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)


def _by_text(counts: Counter[Any]) -> dict[str, int]:
    """By the category's text; an event without one counts under 'None'."""
    result: Counter[str] = Counter()
    for category, count in counts.items():
        result[str(category)] += count
    return dict(sorted(result.items()))


def _note_name(event: _Brief, tracks: _Tracks, threads: dict[int, str], processes: dict[Id, str]) -> None:
    if event.name not in ("thread_name", "process_name"):
        return
    try:
        name = msgspec.json.decode(event.args, type=dict[str, Any]).get("name")
    except msgspec.DecodeError:
        return
    if isinstance(name, str) and event.name == "thread_name":
        threads[tracks[event.pid, event.tid]] = name
    elif isinstance(name, str):
        processes[event.pid] = name


def _check_span(path: Path, starts: np.ndarray, lengths: np.ndarray) -> None:
    ends = starts + lengths
    if not len(ends) or int(ends.max()) < _MAX_SPAN_NS:
        return
    raise TraceError(
        f"{path}: times span {int(ends.max())} ns, more than the {_MAX_SPAN_NS} ns (52 days) in which"
        " nanoseconds stay exact: an event has a wrong ts or dur"
    )
