"""Results of a query as a document: values as SQL gave them, in the unit of their column."""

from __future__ import annotations

import math

from molprof.analysis.engine import Columns
from molprof.analysis.query import Result
from molprof.common.document import Column, Document, Section, Table
from molprof.common.values import Value, counted


def query_document(result: Result) -> Document:
    """One table for each result. Formats that hold one table raise UsageError for several."""
    sections = []
    for columns in result.tables:
        table = _table(columns)
        sections.append(Section("", (counted(len(table.rows), "row"),), table))
    return Document("", tuple(sections), lambda: _objects(result.columns), lambda: _table(result.columns))


def _table(columns: Columns) -> Table:
    values = [[_value(value) for value in column.tolist()] for column in columns.values()]
    titles = [
        Column(name, "raw" if any(isinstance(value, int | float) for value in column) else "text")
        for name, column in zip(columns, values, strict=True)
    ]
    return Table(tuple(titles), list(zip(*values, strict=True)), missing="", wide=True)


def _objects(columns: Columns) -> list[dict[str, Value]]:
    values = [[_finite(_value(value)) for value in column.tolist()] for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def _finite(value: Value) -> Value:
    """JSON has no infinite numbers: they are texts."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _value(value: str | int | float | bytes | None) -> Value:
    return value.hex() if isinstance(value, bytes) else value
