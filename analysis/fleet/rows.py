"""The rows of many traces: stored ones are reused, others are read here or by workers, and stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from molprof import __version__
from molprof.analysis.fleet.row import FleetRow, is_part, known_part, read_part, row_of, write_part
from molprof.analysis.reader import Reading, is_stream
from molprof.analysis.reader.parts import digest_of
from molprof.analysis.reader.remote import remote_text
from molprof.analysis.reports import read_stored
from molprof.analysis.trace import Trace, each_trace
from molprof.common.errors import EngineError, MolprofError
from molprof.common.values import counted

if TYPE_CHECKING:
    from molprof.common.jobs import JobExecutor

_HINT = "repeat the command: it reads again what failed"


@dataclass(frozen=True)
class Fleet:
    """Where rows are stored, and which workers read traces."""

    parts: Path | None = None  # folder of rows, a file for each content; it is asked first
    executor: JobExecutor | None = None  # None: processes of this machine


def joined_files(files: Sequence[Path], partial: bool) -> tuple[list[Path], list[str]]:
    """Return the files without stored rows that would count a trace twice or differently, and remarks on these.

    Left out are parts of another molprof, or of another `--partial`, and those of traces that are among the files.
    """
    parts = {path for path in files if is_part(path)}
    others = {digest_of(path) for path in files if path not in parts and not is_stream(path)} if parts else set()
    kept: list[Path] = []
    left: Counter[str] = Counter()
    for path in files:
        if path not in parts:
            kept.append(path)
            continue
        row = read_part(path)
        if row.version != __version__:
            left[f"of molprof {row.version}; this is molprof {__version__}"] += 1
        elif row.partial != partial:
            left["read with --partial" if row.partial else "read without --partial"] += 1
        elif row.digest in others:
            left["of traces that are given too"] += 1
        else:
            kept.append(path)
    return kept, [f"{counted(count, 'row')} left out: {why}" for why, count in left.items()]


def row_of_trace(trace: Trace) -> FleetRow:
    """Return the row of a trace, which stands alone: a job of `each_trace`."""
    return replace(row_of(remote_text(trace.path), trace.report), partial=trace.reading.partial)


def each_row(files: Sequence[Path], reading: Reading, fleet: Fleet) -> Iterator[FleetRow]:
    """Yield the row of each file, in order and as soon as it is known; an unreadable file gives a row with its error.

    files: traces, reports stored as JSON, or parts.
    """
    final: set[int] = set()
    numbers = iter(range(len(files)))  # they are asked for in order

    def known(path: Path) -> FleetRow | None:
        number, (row, is_final) = next(numbers), _known(path, reading, fleet.parts)
        final.update({number} if is_final else ())
        return row

    each = each_trace(files, row_of_trace, reading, known=known, hint=_HINT, executor=fleet.executor)
    for number, (path, answer) in enumerate(zip(files, each, strict=True)):
        if number in final and isinstance(answer, FleetRow):
            yield answer
            continue
        row = _checked(path, answer, reading.partial)
        if fleet.parts is not None and not is_stream(path):
            row = replace(row, digest=digest_of(path))
            write_part(fleet.parts, row)
        yield row


def _known(path: Path, reading: Reading, parts: Path | None) -> tuple[FleetRow | None, bool]:
    """Return the row of a file that need not be read, and True if it is not to be stored."""
    if is_stream(path):
        return None, False
    if is_part(path):
        return read_part(path), True
    digest = None if parts is None else digest_of(path)
    if parts is not None and digest is not None and (row := known_part(parts, path, digest, reading.partial)):
        return row, True
    kept = Trace(path, reading).kept_report()
    report = kept or read_stored(path)
    row = None if report is None else replace(row_of(remote_text(path), report), partial=reading.partial)
    return row, kept is None and row is not None


def _checked(path: Path, answer: FleetRow | MolprofError, partial: bool) -> FleetRow:
    """Return a worker's row after checking that it is of this file and this molprof."""
    if isinstance(answer, FleetRow):
        is_own = Path(answer.file).absolute() == path.absolute()
        if is_own and (answer.version, answer.partial) == (__version__, partial):
            return replace(answer, file=remote_text(path))
    if not isinstance(answer, MolprofError):
        version = getattr(answer, "version", None)
        why = "no row of this file" if version in (None, __version__) else f"a row of molprof {version}"
        answer = EngineError(f"a worker answered with {why}, where this is molprof {__version__}", _HINT)
    return replace(row_of(remote_text(path), answer), partial=partial)
