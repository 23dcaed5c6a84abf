"""Queries over the package `molprof`, with their answers as Python rows."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from molprof.analysis.trace_processor import TraceProcessor
from molprof.queries import PACKAGE


class Query(Struct, frozen=True):
    """SQL that uses a module of the package, and what that includes."""

    module: str
    sql: str

    @property
    def text(self) -> str:
        """The SQL text with its includes."""
        return f"INCLUDE PERFETTO MODULE {PACKAGE}.{self.module};\n{self.sql}"


def query_rows(engine: TraceProcessor, query: Query) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """Return column names and rows."""
    columns = engine.query(query.text)
    # tolist() gives Python's own int and float, which json and formatting treat as such.
    return tuple(columns), tuple(zip(*(column.tolist() for column in columns.values()), strict=True))


def query_dicts(engine: TraceProcessor, query: Query) -> list[dict[str, Any]]:
    """Return rows by column name."""
    columns, rows = query_rows(engine, query)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def query_row(engine: TraceProcessor, query: Query) -> dict[str, Any]:
    """Return the only row."""
    (row,) = query_dicts(engine, query)
    return row
