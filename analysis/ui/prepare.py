"""One trace or several, ready for the UI: a file with what the reader kept, and the view of it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from isal import igzip, isal_zlib

from molprof.analysis.reader import TraceInfo
from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.feeding import json_chunks
from molprof.analysis.reader.load import survey_source
from molprof.analysis.reader.source import open_source
from molprof.analysis.reader.survey import Survey
from molprof.analysis.trace import Trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.analysis.ui.contents import Contents, Place, Span, read_contents
from molprof.analysis.ui.tracks import arrange_tracks
from molprof.analysis.ui.view import FileView, View, build_view
from molprof.common.values import counted

_LEVEL = 1
# Between the ids of two files: above any of torch's, within the engine's 64 bits.
_SHIFT = 1 << 48
_NUMBERED = re.compile(rb'\{"ph":"[stfbne]"|.*"bind_id":')


@dataclass(frozen=True)
class Prepared:
    """What is served."""

    trace: Path  # packed by gzip
    view: View
    notes: tuple[str, ...]  # for the user


def prepare(
    traces: Sequence[Trace], folder: Path, place: Place, clocks: Sequence[tuple[str, int]] | None = None
) -> Prepared:
    """Writes into `folder` one trace to serve, or several as one, whose first steps start together without `clocks`.

    place: what to zoom to in the first. clocks: of each file its label and what its clock is ahead, ns, for the files
    of one job.

    Each file is read twice: without what no figure needs, to find what is worth a look, and with everything, to serve.
    Raises TraceError, EngineError, or UsageError for a place that a file lacks and files that cannot go together.
    """
    paths = [trace.path for trace in traces]
    looks = [_look(trace, place if number == 0 else Place()) for number, trace in enumerate(traces)]
    labels = [label for label, _ in clocks] if clocks else _labels(paths) if len(paths) > 1 else [""]
    names = [path.name for path in paths]
    if len(names) > 2:
        names[1:] = [f"{len(names) - 1}_more"]
    # In characters that an address may have.
    title = re.sub(r"[^A-Za-z0-9._+-]", "_", "+".join(names))[:80]
    output = folder / "trace.gz"
    surveys: list[Survey] = []
    for trace in traces:
        with open_source(trace.path) as source:
            surveys.append(survey_source(source, Wanted(stacks=trace.reading.stacks), trace.reading.partial)[1])
    files = _placed(surveys, looks, labels, None if clocks is None else [ahead_ns for _, ahead_ns in clocks])
    ends = [int((survey.starts_ns + survey.durations_ns).max(initial=0)) for survey in surveys]
    _pack(json_chunks(*zip(surveys, [file.tracks.places for file in files], strict=True)), output)
    view = build_view(title, files, Span(0, max(ends)))
    return Prepared(output, view, _notes(looks, view))


@contextmanager
def load_for_remote(prepared: Prepared, native_path: str | None) -> Generator[TraceProcessor, None, None]:
    """An engine that holds what is served, for a UI that only asks. Raises EngineError."""
    with open_engine(native_path, memory64=True) as engine, prepared.trace.open("rb") as file:
        while chunk := file.read(1 << 20):
            engine.feed(chunk)
        engine.finish()
        yield engine


def _look(trace: Trace, place: Place) -> tuple[Contents, TraceInfo]:
    with trace:
        return trace.read(lambda engine, info: (read_contents(engine, info.path, place), info))


def _placed(
    surveys: list[Survey], looks: list[tuple[Contents, TraceInfo]], labels: list[str], clocks: list[int] | None
) -> list[FileView]:
    """Shifts the surveys so that their first steps start together, or to one clock; gives tracks distinct numbers.

    clocks: what the clock of each file is ahead, ns.
    """
    # Each reading counts from the earliest event that it keeps.
    offsets = [info.origin_ns - survey.origin_ns for survey, (_, info) in zip(surveys, looks, strict=True)]
    first = [contents.first_step_ns for contents, _ in looks]
    steps = [0] * len(looks)  # without steps the earliest events start together
    if clocks is not None:
        steps = [ahead_ns - survey.origin_ns for survey, ahead_ns in zip(surveys, clocks, strict=True)]
    elif None not in first:
        steps = [(step or 0) + offset for step, offset in zip(first, offsets, strict=True)]
    files: list[FileView] = []
    for number, survey in enumerate(surveys):
        shift_ns = max(steps) - steps[number]
        survey.starts_ns += shift_ns
        if number:
            _separate_ids(survey, number)
        taken = frozenset(pid for file in files for pid in file.tracks.pids)
        tracks = arrange_tracks(survey, labels[number], taken)
        files.append(FileView(looks[number][0], tracks, labels[number], offsets[number] + shift_ns))
    return files


def _separate_ids(survey: Survey, number: int) -> None:
    """Makes the ids of flows and asynchronous slices among the drafts distinct; `number`: of the file, from 1."""
    shift = number * _SHIFT
    for place, text in enumerate(survey.drafts):
        lines = isal_zlib.decompress(text).splitlines(keepends=True)
        lines = [_moved(line, shift) if _NUMBERED.match(line) else line for line in lines]
        survey.drafts[place] = isal_zlib.compress(b"".join(lines), _LEVEL)


def _moved(line: bytes, shift: int) -> bytes:
    event = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    for field in event.keys() & {"id", "bind_id"}:
        event[field] = _shifted(event[field], shift)
    if "id2" in event:
        scopes = msgspec.json.decode(event["id2"], type=dict[str, msgspec.Raw])
        event["id2"] = msgspec.Raw(msgspec.json.encode({key: _shifted(raw, shift) for key, raw in scopes.items()}))
    return msgspec.json.encode(event) + b"\n"


def _shifted(raw: msgspec.Raw, shift: int) -> msgspec.Raw:
    """The number plus `shift`. To the engine, text may be a number too, even hexadecimal."""
    try:
        value = int(bytes(raw).strip(b'"'), 0)
    except ValueError:
        value = zlib.crc32(raw)
    return msgspec.Raw(b"%d" % (value + shift))


def _pack(chunks: Iterable[bytes], output: Path) -> None:
    with igzip.open(output, "wb", compresslevel=_LEVEL) as out:
        out.writelines(chunks)


def _labels(paths: Sequence[Path]) -> list[str]:
    """Short names that tell files apart: without ending, with it, with the folder, or numbered."""
    names = [path.name for path in paths]
    stems = [re.sub(r"(\.json|\.pftrace)?(\.gz|\.zst)?$", "", name) for name in names]
    placed = [f"{path.resolve().parent.name}/{path.name}" for path in paths]
    numbered = [f"{name} ({number})" for number, name in enumerate(placed, 1)]
    return next(found for found in (stems, names, placed, numbered) if len(set(found)) == len(found))


def _notes(looks: list[tuple[Contents, TraceInfo]], view: View) -> tuple[str, ...]:
    notes = []
    for _, info in looks:
        notes += info.notes()
        if info.lanes:
            why = "for partial overlaps with others of their track"
            notes.append(f"{info.path}: {counted(info.lanes, 'event')} on tracks named 'overlapping', {why}")
    return (*notes, *view.notes)
