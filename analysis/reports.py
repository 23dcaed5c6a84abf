"""Reports from stored JSON, and reports with values that a user states."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from molprof.analysis.figures.catalog import TABLES
from molprof.analysis.figures.model import SCHEMA, Report
from molprof.analysis.reader import is_stream
from molprof.common.errors import TraceError, UsageError
from molprof.common.values import Value, counted

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


def with_given(reports: Sequence[Report], tokens: Sequence[int], molecules: Sequence[int]) -> list[Report]:
    """Return the reports, the foreign ones with the stated values: one set for all, or one each in their order.

    Raises UsageError for any other number of values, and where no trace is foreign.
    """
    foreign = [index for index, report in enumerate(reports) if report.run is None]
    completed = list(reports)
    for name, values in (("tokens", tokens), ("molecules", molecules)):
        if values and not foreign:
            raise UsageError(f"--{name} is for foreign traces; {reports[0].trace.path} records its own")
        if len(values) not in (0, 1, len(foreign)):
            raise UsageError(
                f"--{name} was given {len(values)} times, for {counted(len(foreign), 'foreign trace')}",
                hint="give it once for all of them, or once for each in the order of the traces",
            )
        for index, value in zip(foreign, cycle(values), strict=False):
            completed[index] = replace(completed[index], given=replace(completed[index].given, **{name: value}))
    return completed


def read_stored(path: Path) -> Report | None:
    """Return the report in a file that `molprof report --format json` wrote; None if it holds something else.

    Raises TraceError if it is too new or incomplete.
    """
    text = _text(path)
    try:
        keys = {} if text is None else msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    # With the schema, either key identifies a report, complete or not.
    if text is None or "schema" not in keys or not keys.keys() & {"trace", "counts"} or "traceEvents" in keys:
        return None
    content = msgspec.json.decode(text)
    if not isinstance(content["schema"], int) or content["schema"] > SCHEMA:
        raise TraceError(
            f"{path} is a report of schema {content['schema']!r}; this molprof reads up to {SCHEMA}",
            hint="pip install --upgrade molprof",
        )
    try:
        tables = msgspec.convert(content.get("tables", {}), dict[str, list[dict[str, Value]]])
        return msgspec.convert({**content, "tables": [_table(*table) for table in tables.items()]}, type=Report)
    except msgspec.ValidationError as error:
        hint = "write it again: molprof report TRACE --format json -o FILE"
        raise TraceError(f"{path} is not a whole report of this molprof: {error}", hint=hint) from error


def _text(path: Path) -> bytes | None:
    """Return the text of a file that may be a report."""
    if is_stream(path) or not path.is_file():
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


def _table(name: str, rows: list[dict[str, Value]]) -> dict[str, Any]:
    """Return a table with columns and title, from its rows in JSON; without rows it has no columns.

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
