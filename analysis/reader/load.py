"""Loading of a trace file into the engine, with a proof that it holds exactly the file's slices."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from molprof.analysis.facts.stacks import MOST_STACK_EVENTS, MOST_TEXT_BYTES, Stacks
from molprof.analysis.reader import Reading, TraceInfo, path_text
from molprof.analysis.reader.condition import condition
from molprof.analysis.reader.document import TracePass
from molprof.analysis.reader.events import STACK_CATEGORY, Wanted, needed_of
from molprof.analysis.reader.feeding import feed_events
from molprof.analysis.reader.part import PartReader, TracePart
from molprof.analysis.reader.pieces import Pieces, SecondReader
from molprof.analysis.reader.places import TrackTargets
from molprof.analysis.reader.remote import remote_text
from molprof.analysis.reader.source import MEMORY_HINT, TraceSource, open_source
from molprof.analysis.reader.survey import EXPORT_KEY, SurveyedTrace, shown_category, survey
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import EngineError, TraceError
from molprof.common.manifest import INCOMPLETE_KEY
from molprof.common.memory import available_bytes, processors
from molprof.common.process import can_copy

# The most that the engine holds per event, with all args or without: its text while it sorts, then its rows and args.
_EVENT_BYTES = {True: 1500, False: 420}
# The least, seen with large traces.
_LEAST_EVENT_BYTES = {True: 500, False: 200}
# Up to here the 32-bit module is used, whose memory ends at 4 GiB.
_MAX_BYTES = 3 << 30
# Events after which is looked whether those so far fit.
_LOOKED_EVENTS = 1_000_000
# Counted one by one; a trace has a dozen.
_COUNTED_CATEGORIES = 100
MANIFEST_HINT = "capture again, or delete the key 'molprof' from the file to read it as a foreign trace"


def load_trace(
    path: str | os.PathLike[str],
    engine: TraceProcessor | Callable[[bool], TraceProcessor],
    reading: Reading | None = None,
    *,
    all_args: bool = True,
    check: bool = True,
    beside: list[Stacks] | None = None,
    copied: Callable[[bytes], object] | None = None,
    **how: Any,
) -> TraceInfo:
    """Feed a trace (Chrome JSON or Perfetto's own, plain, gzip or zstd, by content) to an engine that holds none.

    path: `-` for standard input. engine: an engine, or what makes one, given whether it must hold more than 4 GiB.
    reading: if None, with Python stacks; with them, `engine.arguments` gets what operators were called with. how: its
    fields that differ. all_args: keep all args, flow events and memory events, not only `events.NEEDED_ARGS`, which the
    SQL modules read; much slower. check: prove that nothing was lost; else the caller does, by `checked`. beside: gets
    the Python stacks that the engine does not get, unless they take too long to decode (`MOST_STACK_EVENTS`), or all
    args are wanted. Without stacks the engine gets no correlation numbers then, if `engine.fed` has them. copied:
    called with each piece of what the engine gets, as `json_chunks` makes them.

    The file is read once, in blocks. All times and tracks must be known before the first event is placed, so events
    wait in short form: about 40 bytes per event, besides what the engine holds.

    Raises TraceError (what is wrong and at which byte), EngineError.
    """
    reading = replace(reading or Reading(stacks=True), **how)
    with open_source(Path(path), None if all_args else needed_of) as source:
        is_aside = beside is not None and not reading.stacks and not all_args and source.text_bytes <= MOST_TEXT_BYTES
        # What reads arguments of operators reads stacks too.
        arguments = reading.stacks or all_args
        wanted = Wanted(reading.stacks or is_aside, all_args, arguments, MOST_STACK_EVENTS if is_aside else None)
        most = _LEAST_EVENT_BYTES[all_args] if callable(engine) else 0
        document, surveyed = survey_source(source, wanted, reading.partial, reading.processes, most)
    name = source.name
    manifest = document.keys.pop("molprof", None)
    if manifest is not None and not isinstance(manifest, dict):
        raise TraceError(f"{name}: the key 'molprof' is {type(manifest).__name__}, not an object", hint=MANIFEST_HINT)
    problem = None if document.problem is None else str(document.problem)
    failed = document.keys.get(INCOMPLETE_KEY)
    if problem is None and isinstance(failed, dict):
        problem = f"its capture failed: {failed.get('problem')}"
    document.keys.pop(EXPORT_KEY, None)
    devices = document.keys.get("deviceProperties")
    if callable(engine):
        check_memory(name, len(surveyed.starts_ns), _LEAST_EVENT_BYTES[all_args])
        engine = engine(is_large(len(surveyed.starts_ns), all_args))
    lanes, duration_ns = int((surveyed.lanes > 0).sum()), int(surveyed.durations_ns.sum())
    state = condition(surveyed)
    # Of what a report reads, only facts know the numbers: frames, which show them, have stacks.
    targets = feed_events(engine, surveyed, copied, numbers=beside is None or reading.stacks)
    if not arguments:
        engine.arguments = None
    if beside is not None and surveyed.stack_names:
        beside.append(_stacks(surveyed, targets))
    info = TraceInfo(
        path=remote_text(path),
        bytes=source.stored_bytes,
        events_by_category=surveyed.events_by_category,
        slices=surveyed.expected_slices,
        slices_ns=None if surveyed.has_open_slices else duration_ns,
        lanes=lanes,
        complete=problem is None,
        problem=problem,
        stacks=reading.stacks or STACK_CATEGORY not in surveyed.events_by_category,
        read_as=surveyed.read_as,
        not_read=dict(sorted(surveyed.not_read.items())),
        memory_events=surveyed.memory_events,
        deep_events=surveyed.deep_events,
        long_names=surveyed.long_names,
        native=source.is_perfetto or surveyed.exported.native,
        origin_ns=surveyed.origin_ns,
        condition=state,
        manifest=manifest,
        devices=[item for item in devices if isinstance(item, dict)] if isinstance(devices, list) else [],
        keys=document.keys,
    )
    return checked(engine, info) if check else info


def survey_source(
    source: TraceSource, wanted: Wanted, partial: bool, processes: int | None = None, event_bytes: int = 0
) -> tuple[TracePass, SurveyedTrace]:
    """Read a trace to its end, as long as its events fit into memory with `event_bytes` each.

    The other arguments and errors are those of `load_trace`.
    """
    shared = source.is_long and (processes or processors()) > 1 and can_copy()
    reader = PartReader(wanted)
    with closing(Pieces(reader.read, SecondReader(wanted) if shared else None)) as pieces:
        document = TracePass(source.name, source.blocks, pieces, partial)
        parts = _that_fit(document.parts(), source.name, event_bytes)
        if wanted.most_stacks is not None:
            parts = _without_many_stacks(parts, wanted.most_stacks, (reader, pieces))
        return document, survey(parts, source.name, wanted.most_stacks, document.keys)


def _that_fit(parts: Iterable[TracePart], name: str, event_bytes: int) -> Iterator[TracePart]:
    events = looked = 0
    for part in parts:
        events += len(part.starts)
        if events - looked >= _LOOKED_EVENTS:
            looked = events
            check_memory(name, events, event_bytes, "first ")
        yield part


def _without_many_stacks(
    parts: Iterable[TracePart], most: int, readers: tuple[PartReader, Pieces]
) -> Iterator[TracePart]:
    """Yield the parts; after so many stacks, read no more of them."""
    stacks, are_left_out = 0, False
    for part in parts:
        stacks += part.kept_stacks
        if stacks > most and not are_left_out:
            are_left_out = True
            for reader in readers:
                reader.leave_out_stacks()
        yield part


def _stacks(surveyed: SurveyedTrace, targets: TrackTargets) -> Stacks:
    names, tracks, starts, ends = surveyed.stacks
    threads = list(zip(targets.pids.tolist(), targets.tids.tolist(), strict=True))
    numbers = {thread: number for number, thread in enumerate(dict.fromkeys(threads))}
    number_of = np.array([numbers[thread] for thread in threads], dtype=np.int64)
    return Stacks(surveyed.stack_names, numbers, number_of[tracks], starts, ends, names)


def is_large(events: int, all_args: bool) -> bool:
    """Return True if an engine that holds the events may need more than 4 GiB."""
    return events * _EVENT_BYTES[all_args] > _MAX_BYTES


def check_memory(name: str, events: int, event_bytes: int, which: str = "") -> None:
    """Refuse `events` of at least `event_bytes` each that exceed the memory. Raises TraceError."""
    available = available_bytes()
    needed = events * event_bytes
    if available is not None and needed > available:
        need = f"need about {needed / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are available"
        raise TraceError(f"{name}: its {which}{events:,} events {need}", hint=MEMORY_HINT)


def checked(engine: TraceProcessor, info: TraceInfo) -> TraceInfo:
    """Return `info` with the number of lost slices. Raises EngineError if the engine has slices the file lacks."""
    expected = Counter(info.slices)
    slices, duration_ns, *counts = (int(column[0]) for column in engine.query(check_query(info)).values())
    shown = Counter(dict(zip(_counted(info), counts, strict=True)))
    shown["None"] = slices - shown.total()
    if +shown != +expected:
        rows = engine.query("SELECT category, COUNT() AS slices FROM slice GROUP BY category ORDER BY category")
        shown = Counter()
        for category, count in zip(*(column.tolist() for column in rows.values()), strict=True):
            shown[shown_category(category)] += count
    file = path_text(info.path)
    if surplus := shown - expected:
        raise EngineError(f"{file}: the trace processor shows slices that the file does not have: {dict(surplus)}")
    lost = (expected - shown).total()
    if not lost and info.slices_ns is not None and duration_ns != info.slices_ns:
        raise EngineError(
            f"{file}: slices last {duration_ns} ns in the trace processor, {info.slices_ns} ns in the file"
        )
    return structs.replace(info, lost_events=lost)


def check_query(info: TraceInfo) -> str:
    """Return the query of `checked`: all slices, the sum of their times in ns, and the slices of each category."""
    # The engine counts the rows of one text without reading them.
    names = (name.replace("'", "''") for name in _counted(info))
    counts = [f"(SELECT COUNT() FROM slice WHERE category = '{name}')" for name in names]
    return f"SELECT {', '.join(['COUNT()', 'IFNULL(SUM(dur), 0)', *counts])} FROM slice"


def _counted(info: TraceInfo) -> list[str]:
    return [name for name in info.slices if name != "None"][:_COUNTED_CATEGORIES]
