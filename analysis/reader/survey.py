"""The one pass over a trace: times, tracks and counts of all events as arrays, and their text in short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from isal import isal_zlib

from molprof.analysis.reader.document import Document
from molprof.analysis.reader.events import (
    ABSENT,
    FED_PHASES,
    RAW_FIELDS,
    SLICE_PHASES,
    STACK_CATEGORY,
    Event,
    Id,
    Wanted,
)
from molprof.analysis.reader.lanes import assign_lanes
from molprof.analysis.reader.text import needs_plain, plain_json
from molprof.analysis.reader.times import nanoseconds
from molprof.errors import TraceError

_ZERO = msgspec.Raw(b"0")
_NO_DEVICE = b'"device":null'
_encode_lines = msgspec.json.Encoder().encode_lines
_ZEROS = (ABSENT, msgspec.Raw(b"null"))
# The text that waits to be fed repeats itself a lot: it becomes a tenth at 2 GB/s.
_DRAFT_LEVEL = 1
# The engine reads times as float64 microseconds, which give the exact nanosecond up to 2**52 ns.
_MAX_SPAN_NS = 2**52


@dataclass(frozen=True)
class Survey:
    """What is known of a trace before it is fed.

    The arrays have one entry per event that is fed, in file order: `starts_ns` (int64, from the
    earliest event), `durations_ns` (int64; 0 for all but X), `tracks` (int32, index into
    `track_ids`), `lanes` (int32, 0 = its own track), `complete` (bool: ph X). `drafts` holds the
    events themselves: blocks of JSON lines, compressed, without times and places.
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
    complete: np.ndarray
    drafts: list[bytes]
    track_ids: list[tuple[Id, Id]]
    thread_names: dict[int, str]  # by track
    process_names: dict[Id, str]  # by pid
    keys: dict[str, Any]
    problem: TraceError | None

    def texts(self) -> Iterator[bytes]:
        """The drafts as text, freed one by one."""
        self.drafts.reverse()
        while self.drafts:
            yield isal_zlib.decompress(self.drafts.pop())


class _Tracks(dict[tuple[Id, Id], int]):
    def __missing__(self, key: tuple[Id, Id]) -> int:
        self[key] = len(self)
        return self[key]


class _Pass:
    """What a pass has found so far."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tracks = _Tracks()
        self.complete: Counter[Any] = Counter()
        self.slices: Counter[Any] = Counter()
        self.has_open = False
        self.unread = self.read = 0
        self.starts: list[np.ndarray] = []
        self.durations: list[np.ndarray] = []
        self.track_parts: list[np.ndarray] = []
        self.is_complete: list[np.ndarray] = []
        self.drafts: list[bytes] = []
        self.thread_names: dict[int, str] = {}
        self.process_names: dict[Id, str] = {}

    def take(self, events: list[Event], wanted: Wanted) -> None:
        """The next events of the file."""
        phases = Counter([event.ph for event in events])
        if phases["M"]:
            self._note_names(events)
        self.unread += sum(count for phase, count in phases.items() if phase not in FED_PHASES and phase != "M")
        self.has_open = self.has_open or phases["B"] + phases["b"] > 0
        chosen = wanted.chosen(events)
        if chosen:
            self._keep(chosen)
        left_out = phases["X"] - sum([event.ph == "X" for event in chosen])
        if left_out:
            self.complete[STACK_CATEGORY] += left_out
        self.read += len(events)

    def _keep(self, events: list[Event]) -> None:
        phases = [event.ph for event in events]
        self.starts.append(self._times(events, [event.ts for event in events], "ts"))
        # An X event without dur took no time; other events have none.
        if all_complete := phases.count("X") == len(phases):
            texts = [event.dur for event in events]
        else:
            texts = [event.dur if event.ph == "X" else _ZERO for event in events]
        if _ZEROS[0] in texts or _ZEROS[1] in texts:
            texts = [_ZERO if text in _ZEROS else text for text in texts]
        durations = self._times(events, texts, "dur")
        if durations.min() < 0:
            worst = events[int(durations.argmin())]
            raise TraceError(f"{self.path}: event {worst.name!r} has a negative dur, {bytes(worst.dur).decode()} us")
        self.durations.append(durations)
        tracks = self.tracks
        self.track_parts.append(np.array([tracks[event.pid, event.tid] for event in events], dtype=np.int32))
        self.is_complete.append(np.array([phase == "X" for phase in phases]))
        complete = Counter([event.cat for event in events if event.ph == "X"])
        self.complete.update(complete)
        self.slices.update(complete)
        if not all_complete:
            self.slices.update([event.cat for event in events if event.ph in SLICE_PHASES and event.ph != "X"])
        try:
            self.drafts.append(isal_zlib.compress(_draft(events), _DRAFT_LEVEL))
        except RecursionError:
            raise TraceError(f"{self.path}: after event {self.read}: an event is nested too deeply") from None

    def _times(self, events: list[Event], texts: list[Any], field: str) -> np.ndarray:
        try:
            return nanoseconds(texts)
        except ValueError as error:
            reason, position = error.args
            event = events[position]
            raise TraceError(
                f"{self.path}: {field} of event {event.name!r} (ph {event.ph!r}), after event {self.read}: {reason}"
            ) from None

    def _note_names(self, events: list[Event]) -> None:
        for event in events:
            if event.ph != "M" or event.name not in ("thread_name", "process_name"):
                continue
            try:
                args = msgspec.json.decode(msgspec.json.encode(event.args), type=dict[str, Any])
            except msgspec.DecodeError:
                continue
            name = args.get("name")
            if isinstance(name, str) and event.name == "thread_name":
                self.thread_names[self.tracks[event.pid, event.tid]] = name
            elif isinstance(name, str):
                self.process_names[event.pid] = name


def survey(document: Document[Event], wanted: Wanted, path: str) -> Survey:
    """Reads the whole document. Raises TraceError."""
    found = _Pass(path)
    for events, _ in document.blocks():
        found.take(events, wanted)
    starts = _joined(found.starts, np.int64)
    durations = _joined(found.durations, np.int64)
    tracks = _joined(found.track_parts, np.int32)
    origin = int(starts.min()) if len(starts) else 0
    _check_span(path, starts, durations, origin)
    starts -= origin
    is_complete = _joined(found.is_complete, np.bool_)
    complete = np.flatnonzero(is_complete)
    lanes = np.zeros(len(starts), dtype=np.int32)
    lanes[complete] = assign_lanes(tracks[complete], starts[complete], (starts + durations)[complete])
    return Survey(
        events_by_category=_by_text(found.complete),
        expected_slices=_by_text(found.slices),
        has_open_slices=found.has_open,
        unread_events=found.unread,
        origin_ns=origin,
        starts_ns=starts,
        durations_ns=durations,
        tracks=tracks,
        lanes=lanes,
        complete=is_complete,
        drafts=found.drafts,
        track_ids=list(found.tracks),
        thread_names=found.thread_names,
        process_names=found.process_names,
        keys=document.keys,
        problem=document.problem,
    )


def _draft(events: list[Event]) -> bytes:
    """One line per event, without its times and places."""
    absent = ABSENT
    for event in events:
        event.ts = absent
        event.dur = absent
        event.pid = None
        event.tid = None
        if event.cat.__class__ is int:
            event.cat = str(event.cat)
    text = _encode_lines(events)
    if _NO_DEVICE in text:
        # A device of its own, unlike none at all; the engine has no null. Quotes inside a text are escaped.
        text = text.replace(_NO_DEVICE, b'"device":"None"')
    if text.count(b"\n") != len(events):  # what is copied as text may be spread over lines
        for event in events:
            for field in RAW_FIELDS:
                value = getattr(event, field)
                if isinstance(value, msgspec.Raw) and value:
                    setattr(event, field, msgspec.Raw(bytes(value).replace(b"\n", b" ")))
        text = _encode_lines(events)
    return b"".join(plain_json(line) + b"\n" for line in text.split(b"\n")[:-1]) if needs_plain(text) else text


def _joined(parts: list[np.ndarray], kind: Any) -> np.ndarray:
    joined = np.concatenate(parts) if parts else np.empty(0, dtype=kind)
    parts.clear()
    return joined


def _by_text(counts: Counter[Any]) -> dict[str, int]:
    """By the category's text; an event without one counts under 'None'."""
    result: Counter[str] = Counter()
    for category, count in counts.items():
        result[str(category)] += count
    return dict(sorted(result.items()))


def _check_span(path: str, starts: np.ndarray, lengths: np.ndarray, origin: int) -> None:
    if not len(starts):
        return
    # Each alone first, as Python's integers: a sum of wrong ones may pass the end of an int64 and come out small.
    last = max(int(starts.max()) - origin, int(lengths.max()))
    if last < _MAX_SPAN_NS:
        last = int((starts - origin + lengths).max())
    if last >= _MAX_SPAN_NS:
        raise TraceError(
            f"{path}: times span {last} ns, more than the {_MAX_SPAN_NS} ns (52 days) in which"
            " nanoseconds stay exact: an event has a wrong ts or dur"
        )
