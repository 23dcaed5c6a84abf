"""Results of a query as text: aligned table, CSV, JSON, Markdown. Values as they are, in the unit of their column."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable

from molprof.analysis.engine import Columns
from molprof.analysis.query import Result
from molprof.analysis.render.markdown import cell_text
from molprof.common.text import escaped, escaped_json
from molprof.common.values import width

Value = str | int | float | bytes | None

_GAP = "  "
# Kernel names reach a thousand characters; the other formats have them whole.
_LONGEST = 60


def render_result(result: Result, form: str) -> str:
    """The result in one of `RESULT_FORMATS`, ending with a newline; control characters of texts escaped.

    Raises:
        UsageError: several results, and a format that holds one.
    """
    return RESULT_FORMATS[form](result)


def result_to_table(result: Result) -> str:
    """Aligned columns, long texts cut, and the number of rows; of several results, an empty line between."""
    return "\n".join(map(_table, result.tables))


def _table(columns: Columns) -> str:
    names, lines = _lines(columns)
    cells = [[_cut(_shown(value)) for value in line] for line in lines]
    heads = [escaped(name) for name in names]
    sizes = [max(width(head), *(width(line[index]) for line in cells), 0) for index, head in enumerate(heads)]
    right = [any(isinstance(line[index], int | float) for line in lines) for index in range(len(names))]
    table = [_line(heads, sizes, right), _GAP.join("-" * size for size in sizes)]
    table.extend(_line(line, sizes, right) for line in cells)
    count = f"{len(lines)} row{'' if len(lines) == 1 else 's'}"
    return "\n".join([*table, f"({count})"]) + "\n"


def result_to_csv(result: Result) -> str:
    """A header and one line per row; empty for NULL. Raises UsageError for several results."""
    names, lines = _lines(result.columns)
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([escaped(name) for name in names])
    writer.writerows([["" if value is None else _plain(value) for value in line] for line in lines])
    return buffer.getvalue()


def result_to_json(result: Result) -> str:
    """An array with one object per row. Raises UsageError for several results."""
    names, lines = _lines(result.columns)
    rows = [{name: _json_value(value) for name, value in zip(names, line, strict=True)} for line in lines]
    text = ",\n".join("  " + json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    return escaped_json(f"[\n{text}\n]\n" if rows else "[]\n")


def result_to_markdown(result: Result) -> str:
    """A table for each result; numbers stand right."""
    return "\n".join(map(_markdown, result.tables))


def _markdown(columns: Columns) -> str:
    names, lines = _lines(columns)
    right = [any(isinstance(line[index], int | float) for line in lines) for index in range(len(names))]
    table = [
        "| " + " | ".join(cell_text(name) for name in names) + " |",
        "| " + " | ".join("---:" if is_right else "---" for is_right in right) + " |",
    ]
    table.extend("| " + " | ".join(cell_text(_shown(value)) for value in line) + " |" for line in lines)
    return "\n".join(table) + "\n"


RESULT_FORMATS: dict[str, Callable[[Result], str]] = {
    "table": result_to_table,
    "csv": result_to_csv,
    "json": result_to_json,
    "markdown": result_to_markdown,
}


def _lines(columns: Columns) -> tuple[list[str], list[tuple[Value, ...]]]:
    """Names, and rows of Python values."""
    return list(columns), list(zip(*(column.tolist() for column in columns.values()), strict=True))


def _shown(value: Value) -> str:
    """A value for reading: NULL is empty, numbers have three decimals where they are not whole."""
    if value is None:
        return ""
    if isinstance(value, float) and math.isfinite(value) and abs(value) >= 1e-3:
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, float):
        return f"{value:.3g}"
    return _plain(value)


def _plain(value: Value) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return escaped(value) if isinstance(value, str) else str(value)


def _json_value(value: Value) -> Value:
    if isinstance(value, bytes):
        return value.hex()
    # JSON has no such numbers.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cut(cell: str) -> str:
    if width(cell) <= _LONGEST:
        return cell
    kept = cell[: _LONGEST - 1]
    while width(kept) > _LONGEST - 1:
        kept = kept[:-1]
    return kept + "…"


def _line(cells: list[str], sizes: list[int], right: list[bool]) -> str:
    parts = []
    for cell, size, is_right in zip(cells, sizes, right, strict=True):
        space = " " * (size - width(cell))
        parts.append(space + cell if is_right else cell + space)
    return _GAP.join(parts).rstrip()
