"""A trace file in, its report out: engine, reader and metrics in one call."""

from __future__ import annotations

import os

from molprof.analysis.engine import open_engine
from molprof.analysis.metrics import Report, build_report
from molprof.analysis.reader import load_trace


def load_report(
    path: str | os.PathLike[str],
    *,
    native_path: str | None = None,
    stacks: bool = False,
    partial: bool = False,
) -> Report:
    """The report of the trace at `path`.

    Args:
        path: trace in Chrome format, packed or not.
        native_path: `trace_processor_shell` to use instead of the embedded engine.
        stacks: read Python stacks too; no figure needs them, and they are most of many traces.
        partial: of a damaged file, report what is whole.

    Raises:
        TraceError: the file cannot be read or trusted.
        EngineError: the trace processor cannot be had, or failed.
    """
    with open_engine(native_path) as engine:
        return build_report(engine, load_trace(path, engine, stacks=stacks, partial=partial))
