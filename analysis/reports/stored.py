"""Reports stored as JSON (`molprof report --format json`), read back so that they stand in for their traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from molprof.analysis.figures.model import SCHEMA, Report
from molprof.analysis.figures.tables import METRICS
from molprof.analysis.reader.source import STDIN, open_source
from molprof.analysis.reports.load import ReportOptions
from molprof.analysis.reports.parallel import load_reports
from molprof.analysis.reports.recheck import contradiction
from molprof.common.errors import TraceError

# With the schema, either tells a report, whole or not.
_KEYS = frozenset({"trace", "counts"})
# A report of a long run takes a few MB. Larger files are traces.
_MAX_BYTES = 256 << 20
# Chrome traces begin with their events, or with a few words on the machine.
_HEAD_BYTES = 64 << 10


def load_compared(paths: Sequence[Path], options: ReportOptions) -> list[Report]:
    """The report of each path, in their order: a trace's, or a stored one as it is.

    Raises what `load_reports` and `read_baseline` raise.
    """
    stored = {path: read_baseline(path) for path in dict.fromkeys(paths)}
    traces = iter(load_reports([path for path in paths if stored[path] is None], options))
    return [stored[path] or next(traces) for path in paths]


def read_baseline(path: Path) -> Report | None:
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
    if (found := contradiction(report)) is not None:
        raise _not_whole(path, found)
    return report


def _not_whole(path: Path, why: object) -> TraceError:
    hint = "write it again: molprof report TRACE --format json -o FILE"
    return TraceError(f"{path} is not a whole report of this molprof: {why}", hint=hint)


def _table(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A table's JSON with its columns and title apart from the rows again; without rows it has no columns."""
    title = next((metric.title for metric in METRICS if metric.name == name), name)
    columns = list(rows[0]) if rows else []
    return {"name": name, "title": title, "columns": columns, "rows": [[row[key] for key in columns] for row in rows]}
