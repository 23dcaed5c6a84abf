"""A statement over traces, one after the other; the results under each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from molprof.analysis.engine import Columns
from molprof.analysis.query.statement import Statement
from molprof.analysis.reader import TraceInfo
from molprof.analysis.reports import open_trace
from molprof.analysis.wrong_values import wrong_value
from molprof.errors import QueryError
from molprof.queries import PACKAGE, modules

TRACE_COLUMN = "trace"


@dataclass(frozen=True)
class Result:
    """Columns of equal length, and what a reader of them should know about the traces.

    `columns` are int64, float64 or object arrays (text, blobs, anything with None). Of several traces, the first
    column `trace` holds the path of each row's trace.
    """

    columns: Columns
    notes: tuple[str, ...]


def run_statement(
    statement: Statement,
    traces: Sequence[str | os.PathLike[str]],
    *,
    native_path: str | None = None,
    stacks: bool = False,
    partial: bool = False,
) -> Result:
    """The rows that `statement` gives for each of the traces, in their order.

    Args:
        native_path: `trace_processor_shell` to use instead of the embedded engine.
        stacks: read Python stacks too (category `python_function`), often most of a trace's events.
        partial: of a damaged file, take what is whole.

    Raises:
        QueryError: the trace processor refused the statement.
        TraceError: a file cannot be read or trusted.
        EngineError: the trace processor cannot be had, or failed.
    """
    found: list[Columns] = []
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
            found.append(engine.query(statement.sql))
    if len(found) == 1:
        return Result(found[0], tuple(notes))
    return Result(_stacked([os.fspath(trace) for trace in traces], found), tuple(notes))


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
