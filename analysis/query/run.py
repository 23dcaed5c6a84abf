"""Runs a query over loaded traces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from molprof.analysis.frame import Frame
from molprof.analysis.query.statement import Statement, statements
from molprof.analysis.reader import TraceInfo
from molprof.analysis.reader.open import values_named
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import UsageError
from molprof.queries import PACKAGE

TRACE_COLUMN = "trace"


class Result(Struct, frozen=True):
    """The frames that the statements of a query gave, in order, and notes about the traces.

    Of several traces, the first column `trace` holds each row's path. Statements such as INCLUDE or CREATE give no
    frame.
    """

    frames: tuple[Frame, ...]
    notes: tuple[str, ...] = ()

    @property
    def frame(self) -> Frame:
        """The only frame. Raises UsageError if there are several."""
        if len(self.frames) > 1:
            hint = "leave one SELECT in it, or use --format table or markdown"
            raise UsageError(f"the query gives {len(self.frames)} results, and this format holds one", hint)
        return self.frames[0]


def run_statement(engine: TraceProcessor, info: TraceInfo, statement: Statement) -> Result:
    """What each statement of the query gives for a trace, in order.

    Raises QueryError, UsageError if none gives rows, TraceError, EngineError.
    """
    notes = info.notes()
    if info.lost_events:
        notes.append(f"{info.path}: the trace processor lacks {info.lost_events} events")
    # Apart from the statement, whose errors count lines.
    with values_named(engine, info.path):
        for module in statement.modules:
            engine.query(f"INCLUDE PERFETTO MODULE {PACKAGE}.{module}; SELECT 1")
    answers = [engine.query(part, shown=statement.sql) for part in statements(statement.sql)]
    frames = tuple(Frame(columns) for columns in answers if columns)
    if not frames:
        raise UsageError("the query gives no result", hint="end it with a SELECT")
    return Result(frames, tuple(notes))


def joined(traces: Sequence[str], results: Sequence[Result]) -> Result:
    """The results of one query over several traces as one; each frame has the rows of all traces below each other."""
    if len(results) == 1:
        return results[0]
    frames = (_stacked(traces, same) for same in zip(*(result.frames for result in results), strict=True))
    return Result(tuple(frames), tuple(note for result in results for note in result.notes))


def _stacked(traces: Sequence[str], found: Sequence[Frame]) -> Frame:
    """The columns of all traces below each other, the traces' paths before them."""
    stacked = {TRACE_COLUMN: np.repeat(np.array(traces, dtype=object), [len(frame) for frame in found])}
    for name in found[0].names:
        parts = [frame[name] for frame in found if len(frame)] or [found[0][name]]
        # As the engine renames a second column of one name. Mixed types become objects.
        key = f"{name}:1" if name == TRACE_COLUMN else name
        stacked[key] = np.concatenate(parts, dtype=object if len({part.dtype for part in parts}) > 1 else None)
    return Frame(stacked)
