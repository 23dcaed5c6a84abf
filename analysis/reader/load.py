"""A trace file into the engine, with proof that nothing was lost on the way."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molprof.analysis.engine import Engine
from molprof.analysis.reader.cursor import RECORD_HINT
from molprof.analysis.reader.document import Document
from molprof.analysis.reader.events import STACK_CATEGORY, Wanted
from molprof.analysis.reader.feeding import feed_events
from molprof.analysis.reader.packets import Packets
from molprof.analysis.reader.pieces import open_pieces
from molprof.analysis.reader.source import Source, open_source
from molprof.analysis.reader.survey import Survey, survey
from molprof.analysis.reader.text import plain_text
from molprof.common.errors import EngineError, TraceError
from molprof.common.manifest import INCOMPLETE_KEY
from molprof.common.memory import available_bytes, processors

# What the engine holds per event, at most: its text while it is sorted, its rows and args afterwards.
_EVENT_BYTES = 420
_ALL_ARGS_EVENT_BYTES = 1500
# The least that was seen of large traces.
_LEAST_EVENT_BYTES = 300
_LEAST_ALL_ARGS_EVENT_BYTES = 500
# Beyond this the 32-bit module, whose memory ends at 4 GiB, is not tried.
_MAX_BYTES = 3 << 30
_MEMORY_HINT = (
    "read it on a machine or in a job with more memory, or record fewer steps; a report without --stacks leaves out"
    " Python stacks"
)
MANIFEST_HINT = "capture again, or take the key 'molprof' out of the file: then it reads as any trace"


@dataclass(frozen=True)
class TraceInfo:
    """What is known of a loaded trace besides what SQL shows.

    path, bytes: the file and its size as it is stored. events_by_category: complete events (ph X)
    in the file by category, 'None' for those without. lost_events: slices that the engine should
    show and does not, counted by querying it. lanes: slices that needed a lane of their own.
    complete: the whole file could be read, and its capture went through; else problem says where it is damaged, or
    what failed. stacks: python
    stacks are in the engine (they are in events_by_category in any case). unread_events: events of
    kinds that the trace processor does not know. origin_ns: file time = SQL time + origin_ns, in
    exact ns. manifest: the `molprof` key or None. devices: torch's `deviceProperties`, empty when
    not recorded. keys: all other top-level keys, as parsed.

    Of a Perfetto trace, which the engine reads by itself, lost_events and lanes are None: not
    known. Its events_by_category are the engine's slices.
    """

    path: str
    bytes: int
    events_by_category: dict[str, int]
    lost_events: int | None
    lanes: int | None
    complete: bool
    problem: str | None
    stacks: bool
    unread_events: int
    origin_ns: int
    manifest: dict[str, Any] | None
    devices: list[dict[str, Any]]
    keys: dict[str, Any]


def load_trace(
    path: str | os.PathLike[str],
    engine: Engine | Callable[[bool], Engine],
    *,
    stacks: bool = True,
    all_args: bool = True,
    partial: bool = False,
    processes: int | None = None,
) -> TraceInfo:
    """Feeds a trace (Chrome JSON or Perfetto's own, plain, gzip or zstd, by content) to an engine that holds none.

    path: `-` for standard input. engine: or what makes one, given whether it must hold more than
    4 GiB, which is known once the file was read. stacks: keep python stacks (category
    `python_function`), often most of a trace's events. all_args: keep all args and flow events, not
    only `events.NEEDED_ARGS`, which is all that the package's SQL modules read; slower by far.
    partial: of a damaged file, take what is whole before the damage.
    processes: how many may read a long trace side by side, two at most are used; None: one per processor.

    The file is read once, in blocks: times and tracks of all events must be known before the first
    can be placed, so its events wait in short form. Memory is about 40 bytes per event, besides
    what the engine holds.

    Raises TraceError (what is wrong and at which byte), EngineError.
    """
    wanted = Wanted(stacks, all_args)
    with open_source(Path(path)) as source:
        if source.is_perfetto:
            return _load_perfetto(source, engine(True) if callable(engine) else engine, partial)
        document, found = survey_source(source, wanted, partial, processes)
        size = source.stored_bytes()
        name = source.name
    manifest = document.keys.pop("molprof", None)
    if manifest is not None and not isinstance(manifest, dict):
        raise TraceError(f"{name}: the key 'molprof' is {type(manifest).__name__}, not an object", hint=MANIFEST_HINT)
    problem = None if document.problem is None else str(document.problem)
    failed = document.keys.get(INCOMPLETE_KEY)
    if problem is None and isinstance(failed, dict):
        problem = f"its capture failed: {failed.get('problem')}"
    devices = document.keys.get("deviceProperties")
    if callable(engine):
        check_memory(name, len(found.starts_ns), _LEAST_ALL_ARGS_EVENT_BYTES if all_args else _LEAST_EVENT_BYTES)
        engine = engine(len(found.starts_ns) * (_ALL_ARGS_EVENT_BYTES if all_args else _EVENT_BYTES) > _MAX_BYTES)
    lanes, duration_ns = int((found.lanes > 0).sum()), int(found.durations_ns.sum())
    feed_events(engine, found)
    return TraceInfo(
        path=str(path),
        bytes=size,
        events_by_category=found.events_by_category,
        lost_events=_lost_events(engine, found, duration_ns, name),
        lanes=lanes,
        complete=problem is None,
        problem=problem,
        stacks=stacks or STACK_CATEGORY not in found.events_by_category,
        unread_events=found.unread_events,
        origin_ns=found.origin_ns,
        manifest=manifest,
        devices=[item for item in devices if isinstance(item, dict)] if isinstance(devices, list) else [],
        keys=document.keys,
    )


def survey_source(
    source: Source, wanted: Wanted, partial: bool, processes: int | None = None
) -> tuple[Document, Survey]:
    """Reads a trace in Chrome format to its end; arguments and errors as for `load_trace`."""
    with open_pieces(wanted, processes or processors()) as pieces:
        document = Document(source.name, source.blocks, pieces.read, partial, pieces)
        return document, survey(document.parts(), source.name)


def check_memory(name: str, events: int, event_bytes: int) -> None:
    """Refuse a trace whose `events`, each of which takes `event_bytes` at least, need more memory than there is.

    Raises TraceError with both figures.
    """
    available = available_bytes()
    needed = events * event_bytes
    if available is not None and needed > available:
        raise TraceError(
            f"{name}: its {events:,} events need about {needed / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB"
            " are available",
            hint=_MEMORY_HINT,
        )


def _load_perfetto(source: Source, engine: Engine, partial: bool) -> TraceInfo:
    """Perfetto's own format, fed as it is."""
    packets = Packets()
    problem: TraceError | None = None
    try:
        try:
            for block in source.blocks:
                packets.take(block)
                engine.feed(block)
        except TraceError as error:  # damaged compressed data
            problem = error
        if problem is None and not packets.is_whole:
            what = f"is truncated inside packet {packets.count}"
            problem = TraceError(f"{source.name} {what}", hint="record it again, or read what is whole with --partial")
        if problem is not None and not partial:
            raise problem
        if problem is not None and not packets.count:
            raise TraceError(f"{problem}: there is nothing before the damage", hint=RECORD_HINT) from problem
        engine.finish()
    except EngineError as error:
        raise TraceError(f"{source.name}: {error}") from error
    rows = engine.query("SELECT category, COUNT() AS slices FROM slice GROUP BY category ORDER BY category")
    slices: Counter[str] = Counter()
    for category, count in zip(rows["category"].tolist(), rows["slices"].tolist(), strict=True):
        slices[_shown_category(category)] += count
    return TraceInfo(
        path=source.name,
        bytes=source.stored_bytes(),
        events_by_category=dict(slices),
        lost_events=None,
        lanes=None,
        complete=problem is None,
        problem=None if problem is None else str(problem),
        stacks=True,
        unread_events=0,
        origin_ns=0,
        manifest=None,
        devices=[],
        keys={},
    )


def _lost_events(engine: Engine, found: Survey, expected_ns: int, file: str) -> int:
    """Slices that are missing in the engine; raises EngineError when one that is there was changed.

    expected_ns: the sum of all durations.
    """
    rows = engine.query("SELECT category, COUNT(*) AS slices, SUM(MAX(dur, 0)) AS dur_ns FROM slice GROUP BY category")
    shown: Counter[str] = Counter()
    for category, count in zip(rows["category"].tolist(), rows["slices"].tolist(), strict=True):
        shown[_shown_category(category)] += count
    expected: Counter[str] = Counter()
    for category, count in found.expected_slices.items():
        expected[_shown_category(category)] += count
    if surplus := shown - expected:
        raise EngineError(f"{file}: the engine shows slices that the file does not have: {dict(surplus)}")
    lost = (expected - shown).total()
    duration_ns = sum(rows["dur_ns"].tolist())
    if not lost and not found.has_open_slices and duration_ns != expected_ns:
        raise EngineError(f"{file}: slices last {duration_ns} ns in the engine, {expected_ns} ns in the file")
    return lost


def _shown_category(category: str | None) -> str:
    """The engine has no empty text: '' reads as NULL."""
    return plain_text(category) if category else "None"
