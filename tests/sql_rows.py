"""Rows of the SQL package on literal events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tiny_trace

from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.queries import PACKAGE, modules

Rows = Callable[[str, str], list[tuple[Any, ...]]]


def rows(engine: TraceProcessor, module: str, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a query over `module`."""
    columns = engine.query(f"INCLUDE PERFETTO MODULE {PACKAGE}.{module}; {sql}")
    return list(zip(*(column.tolist() for column in columns.values()), strict=True))


@contextmanager
def events_loaded(folder: Path, events: list[dict[str, Any]]) -> Iterator[Rows]:
    """A function of module and SQL that queries these events, times in SQL counted from the earliest."""
    path = tiny_trace.write(folder / "events.json", {"traceEvents": events})
    with open_engine() as engine:
        load_trace(path, engine)
        engine.register_package(PACKAGE, modules())
        yield lambda module, sql: rows(engine, module, sql)
