"""Reports stored as JSON (`molprof report --format json`), read back so that they stand in for their traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from molprof.analysis.figures.catalog import TABLES
from molprof.analysis.figures.checks import agree
from molprof.analysis.figures.model import SCHEMA, Report
from molprof.analysis.reader.source import STDIN, open_source
from molprof.analysis.reports.load import ReportOptions
from molprof.analysis.reports.parallel import load_reports
from molprof.common.errors import TraceError

# With the schema, either tells a report, whole or not.
_KEYS = frozenset({"trace", "counts"})
# A report of a long run takes a few MB. Larger files are traces.
_MAX_BYTES = 256 << 20
# Chrome traces begin with their events, or with a few words on the machine.
_HEAD_BYTES = 64 << 10


def load_compared(paths: Sequence[Path], options: ReportOptions) -> list[Report]:
    """The report of each path, in their order: a trace's, or a stored one as it is.

    Raises what `load_reports` and `read_stored` raise.
    """
    stored = {path: read_stored(path) for path in dict.fromkeys(paths)}
    traces = iter(load_reports([path for path in paths if stored[path] is None], options))
    return [stored[path] or next(traces) for path in paths]


def read_stored(path: Path) -> Report | None:
    """The report that the file holds, plain or packed; None where it holds something else.

    Raises:
        TraceError: a report of a newer molprof, or one that is not whole.
    """
    text = _text(path)
    if text is None:
        return None
    try:
        keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if "schema" not in keys or not keys.keys() & _KEYS or "traceEvents" in keys:
        return None
    return _report(path, msgspec.json.decode(text))


def _text(path: Path) -> bytes | None:
    """The file's text where it may be a report."""
    if str(path) == STDIN or not path.is_file():
        return None
    parts: list[bytes] = []
    size = 0
    try:
        with open_source(path) as source:
            if source.is_perfetto:
                return None
            for block in source.blocks:
                parts.append(block)
                size += len(block)
                if len(parts) == 1 and (block.lstrip()[:1] != b"{" or b'"traceEvents"' in block[:_HEAD_BYTES]):
                    return None
                if size > _MAX_BYTES:
                    return None
    except TraceError:
        return None  # whoever reads it as a trace says what is wrong
    return b"".join(parts)


def _report(path: Path, content: dict[str, Any]) -> Report:
    if not isinstance(content["schema"], int) or content["schema"] > SCHEMA:
        raise TraceError(
            f"{path} is a report of schema {content['schema']!r}; this molprof reads up to {SCHEMA}",
            hint="pip install --upgrade molprof",
        )
    try:
        tables = content.get("tables", {})
        content["tables"] = [_table(name, tables[name]) for name in tables]
        report = msgspec.convert(content, type=Report)
    except (msgspec.ValidationError, TypeError, AttributeError, KeyError) as error:
        raise _not_whole(path, error) from error
    for found in _contradictions(report):
        raise _not_whole(path, found)
    return report


def _not_whole(path: Path, why: object) -> TraceError:
    hint = "write it again: molprof report TRACE --format json -o FILE"
    return TraceError(f"{path} is not a whole report of this molprof: {why}", hint=hint)


def _table(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A table's JSON with its columns and title apart from the rows again; without rows it has no columns."""
    title = TABLES[name].title if name in TABLES else name
    columns = list(rows[0]) if rows else []
    return {"name": name, "title": title, "columns": columns, "rows": [[row[key] for key in columns] for row in rows]}


def _contradictions(report: Report) -> Iterator[str]:
    """What cannot be in a report: someone edited it, or made it by other means."""
    for name, value in _sizes(report):
        if value is not None and value < 0:
            yield f"{name} is {value}"
    for name, left, right in _sums(report):
        if left != right:
            yield f"{name}: {left} and {right}"
    for check in report.checks:
        if check.holds != agree(check.left, check.right, check.tolerance_ratio):
            yield f"the sum {check.id!r} of {check.left} and {check.right} has holds: {str(check.holds).lower()}"


def _sizes(report: Report) -> Iterator[tuple[str, int | None]]:
    """What cannot be negative."""
    for name, value in vars(report.counts).items():
        if isinstance(value, int):
            yield f"counts.{name}", value
    for operation, figures in report.counts.memory_operations.items():
        for name, value in vars(figures).items():
            yield f"counts.memory_operations.{operation}.{name}", value
    for device, times in report.devices.items():
        for name, value in vars(times).items():
            yield f"devices.{device}.{name}", value
    for category, count in report.trace.events_by_category.items():
        yield f"trace.events_by_category.{category}", count
    yield "trace.bytes", report.trace.bytes
    yield "trace.lost_events", report.trace.lost_events
    if report.run is not None:
        for name, value in vars(report.run).items():
            # The first pass may have been faster than the later ones.
            if isinstance(value, int) and name != "first_pass_extra_ns":
                yield f"run.{name}", value


def _sums(report: Report) -> Iterator[tuple[str, int | None, int | None]]:
    """Names of two figures that are one, and both."""
    counts = report.counts
    both = counts.kernels_with_call + counts.kernels_without_call
    yield "counts.kernels, and those with and without a call", counts.kernels, both
    for device, times in report.devices.items():
        yield f"devices.{device}.span_ns, and busy and idle", times.span_ns, times.busy_ns + times.idle_ns
    figures = _checked(report)
    for check in report.checks:
        left, right = figures.get(check.id, (None, None))
        if left is not None:
            yield f"the left side of the sum {check.id!r}, and the figure it is of", check.left, left
        if right is not None:
            yield f"the right side of the sum {check.id!r}, and the figure it is of", check.right, right
    if report.run is not None:
        for name in ("blocks", "junk_blocks", "junk_tokens", "filler_tokens"):
            parts = sum(getattr(item, name.removesuffix("_tokens")) for item in report.run.sequences)
            yield f"run.{name}, and the sum over sequences", getattr(report.run, name), parts


def _checked(report: Report) -> dict[str, tuple[int | None, int | None]]:
    """Sides of checks that are figures of the report, by the check's id; None where a side is not."""
    counts, run = report.counts, report.run
    found: dict[str, tuple[int | None, int | None]] = {
        "kernels": (
            report.trace.events_by_category.get("kernel", 0),
            counts.kernels_with_call + counts.kernels_without_call,
        )
    }
    if run is not None:
        found["tokens"] = found["unfinished_rows"] = (run.generated_tokens, None)
        found["kinds"] = (None, run.junk_tokens + run.filler_tokens)
        found["wall_time"] = (run.wall_ns.median, sum(phase.wall_ns or 0 for phase in run.phases.values()))
    return found
