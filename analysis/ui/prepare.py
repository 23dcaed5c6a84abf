"""Preparation of traces for the UI: a file of the reader's events, and the first view.

The view is pinned tracks in order, strips of slices above them, and a zoom.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from isal import igzip, isal_zlib

from molprof.analysis.facts.statements import MOST_BYTES, NO_MODULE
from molprof.analysis.facts.tables import TABLES, install, table_sql
from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.feeding import json_chunks
from molprof.analysis.reader.load import is_large, survey_source
from molprof.analysis.reader.open import values_named
from molprof.analysis.reader.source import open_source
from molprof.analysis.reader.survey import SurveyedTrace
from molprof.analysis.trace import Trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.analysis.ui.contents import (
    ABOVE,
    IDLE,
    MAX_STREAMS,
    TOKENS,
    Contents,
    Span,
    Strip,
    ViewTarget,
    read_contents,
)
from molprof.analysis.ui.tracks import UiTracks, arrange_tracks
from molprof.common.values import counted
from molprof.queries import FACTS, PACKAGE, replacing_tables, standing_alone

# The SQL module with the strips of this trace.
_MODULE = f"{PACKAGE}.view"
# Pinned token tracks of one file, and of each of several: the rest needs room too.
_MAX_SEQUENCES = 6
_MAX_SEQUENCES_EACH = 2
# Of a slice in a strip: MAX_SLICES_OF_ALL of them are less than the 64 MiB that a message to the UI may have.
_NAME_BYTES = 100
# Of the zoom, on either side.
_MARGIN_RATIO = 0.04
_QUOTED = str.maketrans({"'": "''", "\0": None})
_LEVEL = 1
# Between the ids of two files: above any of torch's, within the engine's 64 bits.
_SHIFT = 1 << 48
_NUMBERED = re.compile(rb'\{"ph":"[stfbne]"|.*"bind_id":')


@dataclass(frozen=True)
class View:
    """The page's data on the first view."""

    title: str  # of the window
    commands: list[tuple[str, tuple[str, ...]]]  # id and arguments, run when the trace is loaded
    modules: dict[str, str]  # SQL modules to register, key to text
    visible: Span | None  # what to zoom to; None: everything
    pinned: list[str]  # names of the pinned rows, in order
    hosts: list[str]  # of several files, the processes with operators, in order


@dataclass(frozen=True)
class Prepared:
    """The files and views to serve."""

    trace: Path  # packed by gzip
    view: View
    notes: list[str]  # for the user


@dataclass(frozen=True)
class _ViewFile:
    """One file of the view."""

    before: str  # its label before names
    contents: Contents
    tracks: UiTracks
    shift_ns: int  # added to its times


def prepare(
    traces: Sequence[Trace],
    folder: Path,
    place: ViewTarget,
    clocks: Sequence[tuple[str, int]] | None = None,
    remote: bool = False,
) -> Prepared:
    """Write into `folder` one trace to serve, or several as one, whose first steps start together without `clocks`.

    place: what to zoom to in the first. clocks: of each file its label and what its clock is ahead, ns, for the files
    of one job. remote: `load_for_remote` follows, and makes the tables of facts.

    Each file is read twice: without what no figure needs, to find what is worth a look, and with everything, to serve.
    What is served of one file is given to an engine too: the SQL package needs facts of just these slices.
    Raises TraceError, EngineError, or UsageError for a target that a file lacks and files that cannot go together.
    """
    paths = [trace.path for trace in traces]
    looks: list[Contents] = []
    notes: list[str] = []
    for trace in traces:
        with trace:
            engine, info = trace.loaded()
            with values_named(engine, trace.path):
                looks.append(read_contents(engine, info.path, ViewTarget() if looks else place, len(traces)))
        notes += info.notes()
        if info.lanes:
            why = "for partial overlaps with others of their track"
            notes.append(f"{info.path}: {counted(info.lanes, 'event')} on tracks named 'overlapping', {why}")
    surveys: list[SurveyedTrace] = []
    for trace in traces:
        with open_source(trace.path) as source:
            surveys.append(
                survey_source(source, Wanted(stacks=trace.reading.stacks, arguments=False), trace.reading.partial)[1]
            )
    labels = [label for label, _ in clocks] if clocks else _labels(paths) if len(paths) > 1 else [""]
    # Each reading counts from the earliest event that it keeps.
    offsets = [trace.info.origin_ns - survey.origin_ns for trace, survey in zip(traces, surveys, strict=True)]
    first = [contents.first_step_ns for contents in looks]
    steps = [0] * len(looks)  # without steps the earliest events start together
    if clocks is not None:
        steps = [ahead_ns - survey.origin_ns for survey, (_, ahead_ns) in zip(surveys, clocks, strict=True)]
    elif None not in first:
        steps = [(step or 0) + offset for step, offset in zip(first, offsets, strict=True)]
    files: list[_ViewFile] = []
    for number, (survey, label) in enumerate(zip(surveys, labels, strict=True)):
        shift_ns = max(steps) - steps[number]
        survey.starts_ns += shift_ns
        if number:
            _separate_ids(survey, number)
        before = f"{label}: " if label else ""
        taken = frozenset(pid for file in files for pid in file.tracks.pids)
        files.append(
            _ViewFile(before, looks[number], arrange_tracks(survey, before, taken), offsets[number] + shift_ns)
        )
    end_ns = max(int((survey.starts_ns + survey.durations_ns).max(initial=0)) for survey in surveys)
    output = folder / "trace.gz"
    events = sum(len(survey.starts_ns) for survey in surveys)
    facts_sql, package = NO_MODULE, dict[str, str]()
    with ExitStack() as stack:
        out = stack.enter_context(igzip.open(output, "wb", compresslevel=_LEVEL))
        fed: TraceProcessor | None = None
        if len(files) == 1 and not remote:
            native_path = traces[0].reading.native_path
            fed = stack.enter_context(open_engine(native_path, memory64=is_large(events, all_args=True)))
        for chunk in json_chunks(*zip(surveys, [file.tracks.places for file in files], strict=True)):
            out.write(chunk)
            if fed is not None:
                fed.feed(chunk)
        if fed is not None:
            fed.finish()
            install(fed)
            with values_named(fed, paths[0]):
                table_statements = (one for name in TABLES for one in table_sql(name, fed.facts))
                facts_sql = _in_packages("facts", table_statements, package)
    names = [path.name for path in paths]
    if len(names) > 2:
        names[1:] = [f"{len(names) - 1}_more"]
    # In characters that an address may have.
    title = re.sub(r"[^A-Za-z0-9._+-]", "_", "+".join(names))[:80]
    if len(files) == 1:
        package |= standing_alone(facts_sql)
    view, more = _view(title, files, Span(0, end_ns), package)
    return Prepared(output, view, notes + more)


def _in_packages(name: str, statements: Iterable[str], package: dict[str, str]) -> str:
    """Return SQL that includes the statements: they become modules in `package`, some megabytes each.

    Each has a package of its own: the UI hands one over in one message, whose length is limited.
    """
    parts: list[list[str]] = []
    left = 0
    for statement in statements:
        size = len(statement.encode())
        if size > left:
            parts.append([])
            left = MOST_BYTES
        parts[-1].append(f"{replacing_tables(statement)};\n")
        left -= size
    keys = [f"{PACKAGE}_{name}_{number}.part" for number in range(len(parts))]
    package.update(zip(keys, map("".join, parts), strict=True))
    return "".join(f"INCLUDE PERFETTO MODULE {key};\n" for key in keys)


@contextmanager
def load_for_remote(prepared: Prepared, native_path: str | None) -> Generator[TraceProcessor, None, None]:
    """Load the served trace into an engine, for a UI that only queries. Raises EngineError."""
    with open_engine(native_path, memory64=True) as engine, prepared.trace.open("rb") as file:
        while chunk := file.read(1 << 20):
            engine.feed(chunk)
        engine.finish()
        if FACTS in prepared.view.modules:  # as they are of one file
            install(engine, everything=True)
        yield engine


def _separate_ids(survey: SurveyedTrace, number: int) -> None:
    """Make the ids of flows and asynchronous slices among the drafts distinct; `number`: of the file, from 1."""
    shift = number * _SHIFT
    for index, text in enumerate(survey.drafts):
        lines = isal_zlib.decompress(text).splitlines(keepends=True)
        lines = [_moved(line, shift) if _NUMBERED.match(line) else line for line in lines]
        survey.drafts[index] = isal_zlib.compress(b"".join(lines), _LEVEL)


def _moved(line: bytes, shift: int) -> bytes:
    event = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    for field in event.keys() & {"id", "bind_id"}:
        event[field] = _shifted(event[field], shift)
    if "id2" in event:
        scopes = msgspec.json.decode(event["id2"], type=dict[str, msgspec.Raw])
        event["id2"] = msgspec.Raw(msgspec.json.encode({key: _shifted(raw, shift) for key, raw in scopes.items()}))
    return msgspec.json.encode(event) + b"\n"


def _shifted(raw: msgspec.Raw, shift: int) -> msgspec.Raw:
    """Return the number plus `shift`. To the engine, text may be a number too, even hexadecimal."""
    try:
        value = int(bytes(raw).strip(b'"'), 0)
    except ValueError:
        value = zlib.crc32(raw)
    return msgspec.Raw(b"%d" % (value + shift))


def _labels(paths: Sequence[Path]) -> list[str]:
    """Return short names that differ between files: without ending, with it, with the folder, or numbered."""
    names = [path.name for path in paths]
    stems = [re.sub(r"(\.json|\.pftrace)?(\.gz|\.zst)?$", "", name) for name in names]
    placed = [f"{path.resolve().parent.name}/{path.name}" for path in paths]
    numbered = [f"{name} ({number})" for number, name in enumerate(placed, 1)]
    return next(labels for labels in (stems, names, placed, numbered) if len(set(labels)) == len(labels))


def _view(title: str, files: Sequence[_ViewFile], whole: Span, package: dict[str, str]) -> tuple[View, list[str]]:
    """Return the view of one file, or of several in one trace whose times span `whole`, and notes.

    It zooms by the first.

    package: SQL modules, to which that of the strips is added; of several files none, as their events would be mixed.
    """
    commands: list[tuple[str, tuple[str, ...]]] = []
    pinned: list[str] = []
    tables: list[str] = []  # of the slices of each strip, as SQL
    notes: list[str] = []
    most = _MAX_SEQUENCES if len(files) == 1 else _MAX_SEQUENCES_EACH
    for file in files:
        tracks, all_strips = file.tracks, file.contents.strips
        above, tokens, idle = ([strip for strip in all_strips if strip.place == at] for at in (ABOVE, TOKENS, IDLE))
        sequences = [tracks.sequences[item.track] for item in file.contents.sequences if item.track in tracks.sequences]
        rows: list[Strip | str] = [*above, *sequences[:most], *tokens, *tracks.gpu[:MAX_STREAMS], *idle]
        for row in rows:
            if isinstance(row, str):
                pinned.append(row)
                commands.append(("dev.perfetto.PinTracksByRegex", (_pattern(row),)))
                continue
            pinned.append(file.before + row.title)
            table = f"molprof_view_{len(tables)}"
            commands.append(("dev.perfetto.AddDebugSliceTrack", (f"SELECT ts, dur, name FROM {table}", pinned[-1])))
            values = ",\n".join(f"({ts + file.shift_ns},{dur},'{_quoted(name)}')" for ts, dur, name in row.slices)
            tables.append(
                f"CREATE PERFETTO TABLE {table} AS\n"
                f"WITH item(ts, dur, name) AS (VALUES\n{values}\n)\n"
                "SELECT ts, dur, name FROM item ORDER BY ts;\n"
            )
        commands += [("dev.perfetto.ExpandTracksByRegex", (_pattern(name),)) for name in tracks.hosts]
        for what, there, shown in (
            ("token tracks", len(sequences), most),
            ("GPU streams", len(tracks.gpu), MAX_STREAMS),
        ):
            if there > shown:
                pins = f"{shown} of {there} {what} are pinned"
                notes.append(f"{file.before}{pins}; the others stand in their process below")
        if file.contents.idle_devices > MAX_STREAMS:
            notes.append(f"{file.before}idle time is shown of {MAX_STREAMS} of {file.contents.idle_devices} GPUs")
        for strip in all_strips:
            if strip.left_out:
                notes.append(f"{file.before}{strip.title}: {strip.left_out:,} shorter ones are not shown")
    if tables:
        commands.insert(0, ("dev.perfetto.RunQuery", (f"INCLUDE PERFETTO MODULE {_MODULE};",)))
        package[_MODULE] = replacing_tables("".join(tables))
    visible = None
    if (zoom := files[0].contents.zoom) is not None:
        margin = round(zoom.dur_ns * _MARGIN_RATIO)
        start = max(whole.start_ns, zoom.start_ns + files[0].shift_ns - margin)
        end = min(whole.end_ns, zoom.end_ns + files[0].shift_ns + margin)
        visible = Span(start, end - start) if end > start else None
    hosts = [name for file in files for name in file.tracks.hosts] if len(files) > 1 else []
    return View(title, commands, package, visible, pinned, hosts), notes


def _quoted(name: str) -> str:
    """Return the first letters of the name, as in a text of SQL."""
    text = name.translate(_QUOTED).encode()[:_NAME_BYTES].decode(errors="ignore")
    return text[: len(text) - text.count("'") % 2]


def _pattern(name: str) -> str:
    """Return a JavaScript pattern that matches the text alone."""
    return "^" + re.sub(r"[\\^$.*+?()\[\]{}|/-]", r"\\\g<0>", name) + "$"
