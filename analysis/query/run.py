"""A query over traces, one after the other; the results of each of its statements under each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from molprof.analysis.engine import Columns
from molprof.analysis.query.binding import statements
from molprof.analysis.query.statement import Statement
from molprof.analysis.reader import TraceInfo
from molprof.analysis.reader.open import open_trace
from molprof.analysis.reader.wrong_values import wrong_value
from molprof.common.errors import QueryError, UsageError
from molprof.queries import PACKAGE, modules

TRACE_COLUMN = "trace"


@dataclass(frozen=True)
class Result:
    """What the statements of a query gave, in their order, and what a reader should know about the traces.

    Each of `tables` has columns of equal length: int64, float64 or object arrays (text, blobs, anything with None).
    Of several traces, the first column `trace` holds the path of each row's trace. A statement that gives no rows by
    its kind, as INCLUDE or CREATE, has no table.
    """

    tables: tuple[Columns, ...]
    notes: tuple[str, ...]

    @property
    def columns(self) -> Columns:
        """The only table, for what holds one.

        Raises:
            UsageError: there are several.
        """
        if len(self.tables) > 1:
            raise UsageError(
                f"the query gives {len(self.tables)} results, and this format holds one",
                hint="leave one SELECT in it, or use --format table or markdown",
            )
        return self.tables[0]


def run_statement(
    statement: Statement,
    traces: Sequence[str | os.PathLike[str]],
    *,
    native_path: str | None = None,
    stacks: bool = False,
    partial: bool = False,
) -> Result:
    """The rows that each statement of the query `statement` gives for each of the traces, in their order.

    Args:
        native_path: `trace_processor_shell` to use instead of the embedded engine.
        stacks: read Python stacks too (category `python_function`), often most of a trace's events.
        partial: of a damaged file, take what is whole.

    Raises:
        QueryError: the trace processor refused a statement.
        UsageError: no statement gives rows.
        TraceError: a file cannot be read or trusted.
        EngineError: the trace processor cannot be had, or failed.
    """
    parts = statements(statement.sql)
    found: list[list[Columns]] = []
    notes: list[str] = []
    for trace in traces:
        with open_trace(trace, native_path=native_path, stacks=stacks, partial=partial) as (engine, info):
            notes.extend(_notes(info))
            engine.register_package(PACKAGE, modules())
            # Apart from the statement, so that lines in its errors are its own.
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
        return Result(tuple(found[0]), tuple(notes))
    paths = [os.fspath(trace) for trace in traces]
    return Result(tuple(_stacked(paths, list(same)) for same in zip(*found, strict=True)), tuple(notes))


def _notes(info: TraceInfo) -> list[str]:
    notes = []
    if not info.complete:
        notes.append(f"{info.path} is damaged, and only its whole part was read: {info.problem}")
    if not info.events_by_category:
        notes.append(f"{info.path} holds no events with a duration, so nothing was recorded")
    if info.lost_events:
        notes.append(f"{info.path}: {info.lost_events} events are missing in the engine")
    return notes


def _stacked(traces: list[str], found: list[Columns]) -> Columns:
    """The columns of all traces under each other, the trace's path before them."""
    lengths = [len(next(iter(columns.values()), ())) for columns in found]
    path = np.empty(sum(lengths), dtype=object)
    path[:] = [trace for trace, length in zip(traces, lengths, strict=True) for _ in range(length)]
    stacked = {TRACE_COLUMN: path}
    for name in found[0]:
        # As the engine does where a name occurs twice.
        key = f"{name}:1" if name == TRACE_COLUMN else name
        stacked[key] = _joined([columns[name] for columns in found])
    return stacked


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """One array; integers stay integers, text stays text, and what is mixed becomes objects."""
    filled = [part for part in parts if len(part)] or parts[:1]
    if len({part.dtype for part in filled}) == 1:
        return np.concatenate(filled)
    values = [value for part in filled for value in part.tolist()]
    joined = np.empty(len(values), dtype=object)
    joined[:] = values
    return joined
