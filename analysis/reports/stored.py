"""Reports stored as JSON (`molprof report --format json`), which can stand in for their traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import to_builtins
from msgspec.structs import asdict

from molprof.analysis.figures.catalog import TABLES
from molprof.analysis.figures.checks import agree
from molprof.analysis.figures.model import SCHEMA, Report
from molprof.analysis.reader.info import STDIN
from molprof.common.errors import TraceError
from molprof.common.values import Value

# A report of a long run takes a few MB. Larger files are traces.
_MAX_BYTES = 256 << 20
# Chrome traces begin with their events, or with a few words on the machine.
_HEAD_BYTES = 64 << 10
# Columns that comparisons and plots read from the rows of a table.
_READ_COLUMNS = {
    "steps": ("source", "steps", "tokens", "launches"),
    "kernel_classes": ("class", "count", "time_ns", "time_ratio"),
    "idle_causes": ("cause", "time_ns"),
    "drift": ("junk_and_filler_tokens", "blocks"),
    "template_drift": ("drift", "blocks"),
}


def read_stored(path: Path) -> Report | None:
    """The report in a file; None if it holds something else. Raises TraceError if it is too new or incomplete."""
    text = _text(path)
    if text is None:
        return None
    try:
        keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    # With the schema, either key identifies a report, complete or not.
    if "schema" not in keys or not keys.keys() & {"trace", "counts"} or "traceEvents" in keys:
        return None
    return _report(path, msgspec.json.decode(text))


def _text(path: Path) -> bytes | None:
    """The text of a file that may be a report."""
    if str(path) == STDIN or not path.is_file():
        return None
    from molprof.analysis.reader.source import open_source  # heavy

    text = bytearray()
    try:
        with open_source(path) as source:
            for block in () if source.is_perfetto else source.blocks:
                if not text and (block.lstrip()[:1] != b"{" or b'"traceEvents"' in block[:_HEAD_BYTES]):
                    return None
                text += block
                if len(text) > _MAX_BYTES:
                    return None
    except TraceError:
        return None  # reading it as a trace reports what is wrong
    return bytes(text)


def _report(path: Path, content: dict[str, Any]) -> Report:
    if not isinstance(content["schema"], int) or content["schema"] > SCHEMA:
        raise TraceError(
            f"{path} is a report of schema {content['schema']!r}; this molprof reads up to {SCHEMA}",
            hint="pip install --upgrade molprof",
        )
    try:
        tables = msgspec.convert(content.get("tables", {}), dict[str, list[dict[str, Value]]])
        content["tables"] = [_table(name, rows) for name, rows in tables.items()]
        report = msgspec.convert(content, type=Report)
    except msgspec.ValidationError as error:
        raise _not_whole(path, error) from error
    for found in _contradictions(report):
        raise _not_whole(path, found)
    return report


def _not_whole(path: Path, why: object) -> TraceError:
    hint = "write it again: molprof report TRACE --format json -o FILE"
    return TraceError(f"{path} is not a whole report of this molprof: {why}", hint=hint)


def _table(name: str, rows: list[dict[str, Value]]) -> dict[str, Any]:
    """A table with columns and title, from its rows in JSON; without rows it has no columns.

    Raises msgspec.ValidationError.
    """
    title = TABLES[name].title if name in TABLES else name
    columns = list(rows[0]) if rows else []
    for row in rows:
        for key in (*columns, *_READ_COLUMNS.get(name, ())):
            if key not in row:
                raise msgspec.ValidationError(f"table {name} lacks {key} in a row")
            if key.endswith("_ns") and isinstance(row[key], str):
                raise msgspec.ValidationError(f"table {name} has text in place of a number: {key}")
    return {"name": name, "title": title, "columns": columns, "rows": [[row[key] for key in columns] for row in rows]}


def _contradictions(report: Report) -> Iterator[str]:
    """What no report holds unless someone edited it, or made it by other means."""
    devices = {name: to_builtins(times) for name, times in report.devices.items()}
    sizes: dict[str, Any] = {
        "counts": to_builtins(report.counts),
        "devices": devices,
        "trace": to_builtins(report.trace),
    }
    if report.run is not None:
        # The first pass may be faster than the later ones.
        numbers = {**asdict(report.run), "first_pass_extra_ns": None}
        sizes["run"] = {name: value for name, value in numbers.items() if isinstance(value, int)}
    for name, value in sizes.items():
        yield from (f"{path} is {number}" for path, number in _integers(name, value) if number < 0)
    yield from (f"{name}: {left} and {right}" for name, left, right in _sums(report) if left != right)
    for check in report.checks:
        if check.holds != agree(check.left, check.right, check.tolerance_ratio):
            yield f"check {check.id!r} of {check.left} and {check.right} has holds: {str(check.holds).lower()}"


def _integers(path: str, value: Any) -> Iterator[tuple[str, int]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _integers(f"{path}.{key}", item)
    elif isinstance(value, int):
        yield path, value


def _sums(report: Report) -> Iterator[tuple[str, int, int]]:
    """Names of two figures that are one, and both."""
    counts, run = report.counts, report.run
    both = counts.kernels_with_call + counts.kernels_without_call
    yield "counts.kernels, and those with and without a call", counts.kernels, both
    for device, times in report.devices.items():
        yield f"devices.{device}.span_ns, and busy and idle", times.span_ns, times.busy_ns + times.idle_ns
    # Sides of checks that are figures of the report.
    known: dict[str, tuple[int | None, int | None]] = {
        "kernels": (report.trace.events_by_category.get("kernel", 0), both)
    }
    if run is not None:
        known["tokens"] = known["unfinished_rows"] = (run.generated_tokens, None)
        known["kinds"] = (None, run.junk_tokens + run.filler_tokens)
        known["wall_time"] = (run.wall_ns.median, sum(phase.wall_ns or 0 for phase in run.phases.values()))
    for check in report.checks:
        for side, mine, figure in zip(
            ("left", "right"), (check.left, check.right), known.get(check.id, (None, None)), strict=True
        ):
            if figure is not None:
                yield f"the {side} side of check {check.id!r}, and its figure", mine, figure
    if run is not None:
        for name in ("blocks", "junk_blocks", "junk_tokens", "filler_tokens"):
            parts = sum(getattr(item, name.removesuffix("_tokens")) for item in run.sequences)
            yield f"run.{name}, and the sum over sequences", getattr(run, name), parts
