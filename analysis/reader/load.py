"""Loads a trace file into the engine, and proves that nothing was lost."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from molprof.analysis.engine import Engine
from molprof.analysis.reader.document import Document
from molprof.analysis.reader.events import STACK_CATEGORY, Wanted, needed_of
from molprof.analysis.reader.feeding import feed_events
from molprof.analysis.reader.info import TraceInfo
from molprof.analysis.reader.pieces import Pieces
from molprof.analysis.reader.source import Source, open_source
from molprof.analysis.reader.survey import Survey, survey
from molprof.analysis.reader.text import plain_text
from molprof.common.copied import can_copy
from molprof.common.errors import EngineError, TraceError
from molprof.common.manifest import INCOMPLETE_KEY
from molprof.common.memory import available_bytes, processors

# The most that the engine holds per event, with all args or without: its text while it sorts, then its rows and args.
_EVENT_BYTES = {True: 1500, False: 420}
# The least, seen with large traces.
_LEAST_EVENT_BYTES = {True: 500, False: 300}
# Up to here the 32-bit module is used, whose memory ends at 4 GiB.
_MAX_BYTES = 3 << 30
_MEMORY_HINT = (
    "read it on a machine or in a job with more memory, or record fewer steps; a report without --stacks leaves out"
    " Python stacks"
)
# Counted one by one; a trace has a dozen.
_COUNTED_CATEGORIES = 100
MANIFEST_HINT = "capture again, or delete the key 'molprof' from the file to read it as a foreign trace"


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

    path: `-` for standard input. engine: an engine, or what makes one, given whether it must hold more than 4 GiB.
    stacks: keep Python stacks, often most of a trace's events. all_args: keep all args, flow events and memory
    events, not only `events.NEEDED_ARGS`, which the SQL modules read; much slower. partial: of a damaged file, take
    what is whole. processes: how many may read a long trace together, at most two; None: one per processor.

    The file is read once, in blocks. All times and tracks must be known before the first event is placed, so events
    wait in short form: about 40 bytes per event, besides what the engine holds.

    Raises TraceError (what is wrong and at which byte), EngineError.
    """
    wanted = Wanted(stacks, all_args)
    with ThreadPoolExecutor(1) as pool, open_source(Path(path), None if all_args else needed_of) as source:
        # While the trace is read. A long one may need a larger engine, or be read by a copy of this process, which must
        # have one thread.
        early = pool.submit(engine, False) if callable(engine) and not source.is_long else None
        document, found = survey_source(source, wanted, partial, processes)
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
        check_memory(name, len(found.starts_ns), _LEAST_EVENT_BYTES[all_args])
        large = len(found.starts_ns) * _EVENT_BYTES[all_args] > _MAX_BYTES
        engine = engine(large) if early is None or large else early.result()
    lanes, duration_ns = int((found.lanes > 0).sum()), int(found.durations_ns.sum())
    feed_events(engine, found)
    return TraceInfo(
        path=str(path),
        bytes=source.stored_bytes,
        events_by_category=found.events_by_category,
        lost_events=_lost_events(engine, found, duration_ns, name),
        lanes=lanes,
        complete=problem is None,
        problem=problem,
        stacks=stacks or STACK_CATEGORY not in found.events_by_category,
        unread_events=found.unread_events,
        memory_events=found.memory_events,
        origin_ns=found.origin_ns,
        manifest=manifest,
        devices=[item for item in devices if isinstance(item, dict)] if isinstance(devices, list) else [],
        keys=document.keys,
    )


def survey_source(
    source: Source, wanted: Wanted, partial: bool, processes: int | None = None
) -> tuple[Document, Survey]:
    """Reads a trace to its end. Arguments and errors are those of `load_trace`."""
    shared = source.is_long and (processes or processors()) > 1 and can_copy()
    with closing(Pieces(wanted, shared)) as pieces:
        document = Document(source.name, source.blocks, pieces.reader.read, partial, pieces)
        return document, survey(document.parts(), source.name)


def check_memory(name: str, events: int, event_bytes: int) -> None:
    """Refuses `events` that take `event_bytes` each at least, more memory than there is. Raises TraceError."""
    available = available_bytes()
    needed = events * event_bytes
    if available is not None and needed > available:
        need = f"need about {needed / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are available"
        raise TraceError(f"{name}: its {events:,} events {need}", hint=_MEMORY_HINT)


def _lost_events(engine: Engine, found: Survey, expected_ns: int, file: str) -> int:
    """Slices that the engine lacks. Raises EngineError where the sum of durations is not `expected_ns`."""
    expected: Counter[str] = Counter()
    for category, count in found.expected_slices.items():
        expected[_shown_category(category)] += count
    shown, duration_ns = _shown_slices(engine, expected)
    if surplus := shown - expected:
        raise EngineError(f"{file}: the trace processor shows slices that the file does not have: {dict(surplus)}")
    lost = (expected - shown).total()
    if not lost and not found.has_open_slices and duration_ns != expected_ns:
        raise EngineError(f"{file}: slices last {duration_ns} ns in the trace processor, {expected_ns} ns in the file")
    return lost


def _shown_slices(engine: Engine, expected: Counter[str]) -> tuple[Counter[str], int]:
    """The engine's slices by category, and the sum of their durations in ns. Quick where they are as expected."""
    names = [name for name in expected if name != "None"][:_COUNTED_CATEGORIES]
    # The engine counts the rows of one text without reading them.
    counts = [f"(SELECT COUNT() FROM slice WHERE category = {_quoted(name)})" for name in names]
    row = engine.query(f"SELECT {', '.join(['COUNT()', 'IFNULL(SUM(dur), 0)', *counts])} FROM slice")
    slices, duration_ns, *found = (int(column[0]) for column in row.values())
    shown = Counter(dict(zip(names, found, strict=True)))
    shown["None"] = slices - shown.total()
    if +shown != +expected:
        rows = engine.query("SELECT category, COUNT() AS slices FROM slice GROUP BY category ORDER BY category")
        shown = Counter()
        for category, count in zip(rows["category"].tolist(), rows["slices"].tolist(), strict=True):
            shown[_shown_category(category)] += count
    return +shown, duration_ns


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _shown_category(category: str | None) -> str:
    """The category as SQL shows it; the engine reads an empty one as NULL."""
    return plain_text(category) if category else "None"
