"""One trace as one row: its figures, settings, certificate and first finding, or the error in reading it.

A part is a row in a file of its own (reader/parts.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from molprof import __version__
from molprof.analysis.compare import surroundings
from molprof.analysis.figures.catalog import FIGURES
from molprof.analysis.figures.labels import report_label
from molprof.analysis.figures.model import ALL, Report, ServedTimes
from molprof.analysis.reader.parts import part_path, reading_summary, reason_of
from molprof.analysis.reader.remote import content, is_remote, remote_text, write_content
from molprof.common.errors import MissingExtraError, MolprofError, TraceError, UsageError
from molprof.common.values import Value

KIND, SCHEMA = "molprof row", 1
ENDING = ".row.json"
_HEAD = b'{"kind":"%b"' % KIND.encode()


class FleetRow(Struct, frozen=True):
    """The stored row of a trace. Without `problem` it could be read."""

    kind: str
    schema: int
    version: str  # of molprof
    file: str
    digest: str | None = None  # hash of the file's bytes; None where they could not be read, or were not hashed
    partial: bool = False  # read with --partial
    label: str | None = None
    problem: str | None = None  # why it could not be read
    figures: dict[str, Value] = {}  # by id, settings among them; empty where it could not be read
    certificate: str | None = None  # the worst verdict
    groups: dict[str, str] = {}  # the verdict on each group of figures
    environment: dict[str, str] = {}  # hardware and software by name, as far as the trace tells
    bottleneck: str | None = None
    finding: str | None = None  # id of the first
    finding_title: str | None = None
    finding_gain_ratio: float | None = None

    @property
    def reason(self) -> str:
        """The problem without the file's name before it."""
        return reason_of(self.file, self.problem or "")


def row_of(file: str, report: Report | MolprofError) -> FleetRow:
    """Return the row of a report, or of the error in its place."""
    if isinstance(report, MolprofError):
        return FleetRow(KIND, SCHEMA, __version__, file, problem=str(report))
    certificate, first = report.certificate, next((item for item in report.findings if not item.note), None)
    return FleetRow(
        KIND,
        SCHEMA,
        __version__,
        file,
        label=report_label(report),
        figures={figure.id: figure.value(report) for figure in FIGURES},
        certificate=None if certificate is None else certificate.verdict,
        groups={} if certificate is None else {item.group: item.verdict for item in certificate.groups},
        environment=_environment(report),
        bottleneck=None if report.bottleneck is None else report.bottleneck.bound,
        finding=None if first is None else first.id,
        finding_title=None if first is None else first.title,
        finding_gain_ratio=None if first is None else first.gain_ratio,
    )


def _environment(report: Report) -> dict[str, str]:
    trace, served = report.trace, report.served
    server = {served.server: served.version, "served model": served.model} if isinstance(served, ServedTimes) else {}
    return surroundings(trace.device_names, trace.software, report.run) | trace.environment | server


def row_path(folder: Path, digest: str, partial: bool) -> Path:
    """Return the path of the row of a trace with this content."""
    return part_path(folder, digest, partial, ENDING)


def write_part(folder: Path, row: FleetRow) -> None:
    """Write the row as a file, whole or not at all; nothing for a trace that could not be hashed."""
    if row.digest is not None:
        write_content(row_path(folder, row.digest, row.partial), msgspec.json.encode(row))


def is_part(path: Path) -> bool:
    """Return True if a file is a stored row, by its content."""
    if is_remote(path):
        return path.name.endswith(ENDING) and content(path).startswith(_HEAD)
    if not path.is_file():  # opening a pipe would wait
        return False
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(_HEAD)) == _HEAD
    return False


def read_part(path: Path) -> FleetRow:
    """Return the row in a file. Raises TraceError where it is damaged, or of another schema."""
    try:
        row = msgspec.json.decode(content(path), type=FleetRow)
    except (OSError, msgspec.MsgspecError) as error:
        raise TraceError(f"{path} is no whole row of a trace: {error}", hint="delete it, and read it again") from error
    if (row.kind, row.schema) != (KIND, SCHEMA):
        raise TraceError(f"{path} is a row of schema {row.schema}; this molprof reads {SCHEMA}")
    return row


def known_part(folder: Path, path: Path, digest: str, partial: bool) -> FleetRow | None:
    """Return the row of a trace with this content.

    None where it must be read: for the first time, or after a failure.
    """
    part = row_path(folder, digest, partial)
    with suppress(TraceError, UsageError):
        row = read_part(part)
        if row.problem is None and (row.digest, row.version, row.partial) == (digest, __version__, partial):
            return replace(row, file=remote_text(path))
    return None


def joined_text(rows: Sequence[FleetRow]) -> str:
    """Return how many traces were read, and why others were not: the most frequent reasons first."""
    return reading_summary(len(rows), [(row.reason, row.problem) for row in rows if row.problem is not None])


def rows_to_parquet(rows: Sequence[FleetRow]) -> bytes:
    """Return a Parquet file with a row for each trace; its columns have the same names and types in every file.

    Text is a string, every number a double, so that files of several days are read together. Raises MissingExtraError.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", "the format parquet") from error
    text, number = pyarrow.string(), pyarrow.float64()
    about = ("file", "digest", "version", "label", "problem", "certificate", "bottleneck", "finding", "finding_title")
    columns: dict[str, tuple[Any, list[Value]]] = {name: (text, [getattr(row, name) for row in rows]) for name in about}
    columns["finding_gain_ratio"] = number, [row.finding_gain_ratio for row in rows]
    for group in ALL:
        columns[f"certificate_{group}"] = text, [row.groups.get(group) for row in rows]
    for figure in FIGURES:
        values = [row.figures.get(figure.id) for row in rows]
        is_text = figure.unit in ("text", "name", "path")
        columns[figure.id] = text if is_text else number, [_typed(value, is_text) for value in values]
    table = pyarrow.table({name: pyarrow.array(values, kind) for name, (kind, values) in columns.items()})
    buffer = BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _typed(value: Value, is_text: bool) -> Value:
    if value is None:
        return None
    return str(value) if is_text else float(value)
