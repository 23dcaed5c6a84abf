"""Small queries over the package `molprof`, as Python rows."""

from __future__ import annotations

from typing import Any

from molprof.analysis.engine import Engine
from molprof.queries import PACKAGE


def query_text(module: str, sql: str) -> str:
    """What the engine is asked by the functions below."""
    return f"INCLUDE PERFETTO MODULE {PACKAGE}.{module};\n{sql}"


def query_rows(engine: Engine, module: str, sql: str) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """Column names and rows of a query that uses `module` of the package (and what that includes)."""
    columns = engine.query(query_text(module, sql))
    # tolist() gives Python's own int and float, which json and formatting treat as such.
    return tuple(columns), tuple(zip(*(column.tolist() for column in columns.values()), strict=True))


def query_row(engine: Engine, module: str, sql: str) -> dict[str, Any]:
    """The only row of a query, by column name."""
    columns, (row,) = query_rows(engine, module, sql)
    return dict(zip(columns, row, strict=True))
