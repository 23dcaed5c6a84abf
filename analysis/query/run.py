"""Runs a query over traces."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from molprof.analysis.engine import Columns
from molprof.analysis.frame import Frame
from molprof.analysis.query.statement import Statement, statements
from molprof.analysis.reader.open import open_trace, wrong_value
from molprof.common.errors import QueryError, UsageError
from molprof.queries import PACKAGE, modules

TRACE_COLUMN = "trace"


class Result(Struct, frozen=True):
    """The frames that the statements of a query gave, in order, and notes about the traces.

    Of several traces, the first column `trace` holds each row's path. Statements such as INCLUDE or CREATE give no
    frame.
    """

    frames: tuple[Frame, ...]
    notes: tuple[str, ...]

    @property
    def frame(self) -> Frame:
        """The only frame. Raises UsageError if there are several."""
        if len(self.frames) > 1:
            hint = "leave one SELECT in it, or use --format table or markdown"
            raise UsageError(f"the query gives {len(self.frames)} results, and this format holds one", hint)
        return self.frames[0]


def run_statement(
    statement: Statement,
    traces: Sequence[str | os.PathLike[str]],
    *,
    native_path: str | None = None,
    stacks: bool = False,
    partial: bool = False,
    cached: bool = False,
) -> Result:
    """The rows that each statement of the query gives for each of the traces, in order.

    Arguments are those of `open_trace`. Raises QueryError, UsageError if none gives rows, TraceError, EngineError.
    """
    parts = statements(statement.sql)
    found: list[list[Columns]] = []
    notes: list[str] = []
    for trace in traces:
        with open_trace(trace, native_path=native_path, stacks=stacks, partial=partial, cached=cached) as (
            engine,
            info,
        ):
            notes += info.notes()
            if info.lost_events:
                notes.append(f"{info.path}: the trace processor lacks {info.lost_events} events")
            engine.register_package(PACKAGE, modules())
            # Apart from the statement, whose errors count lines.
            for module in statement.modules:
                try:
                    engine.query(f"INCLUDE PERFETTO MODULE {PACKAGE}.{module}; SELECT 1")
                except QueryError as error:
                    raise wrong_value(engine, os.fspath(trace), error) from error
            tables = [engine.query(part, shown=statement.sql) for part in parts]
            found.append([columns for columns in tables if columns])
            if not found[-1]:
                raise UsageError("the query gives no result", hint="end it with a SELECT")
    if len(found) == 1:
        return Result(tuple(map(Frame, found[0])), tuple(notes))
    paths = [os.fspath(trace) for trace in traces]
    return Result(tuple(_stacked(paths, list(same)) for same in zip(*found, strict=True)), tuple(notes))


def _stacked(traces: list[str], found: list[Columns]) -> Frame:
    """The columns of all traces below each other, the traces' paths before them."""
    lengths = [len(next(iter(columns.values()), ())) for columns in found]
    stacked = {TRACE_COLUMN: np.repeat(np.array(traces, dtype=object), lengths)}
    for name in found[0]:
        parts = [columns[name] for columns in found if len(columns[name])] or [found[0][name]]
        # As the engine renames a second column of one name. Mixed types become objects.
        key = f"{name}:1" if name == TRACE_COLUMN else name
        stacked[key] = np.concatenate(parts, dtype=object if len({part.dtype for part in parts}) > 1 else None)
    return Frame(stacked)
