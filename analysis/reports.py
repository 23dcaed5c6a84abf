"""A trace file in, its report out: engine, reader and metrics in one call."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from molprof.analysis.engine import Engine, open_engine
from molprof.analysis.metrics import Report, build_report
from molprof.analysis.reader import TraceInfo, load_trace


@contextmanager
def open_trace(
    path: str | os.PathLike[str],
    *,
    native_path: str | None = None,
    stacks: bool = True,
    all_args: bool = True,
    partial: bool = False,
) -> Generator[tuple[Engine, TraceInfo], None, None]:
    """An engine that holds the trace at `path`, large enough for it, and what is known of the trace.

    Arguments and errors are those of `load_trace` and `open_engine`.
    """
    with ExitStack() as stack:
        engines: list[Engine] = []

        def start(large: bool) -> Engine:
            engines.append(stack.enter_context(open_engine(native_path, memory64=large)))
            return engines[0]

        info = load_trace(path, start, stacks=stacks, all_args=all_args, partial=partial)
        yield engines[0], info


def load_report(
    path: str | os.PathLike[str],
    *,
    native_path: str | None = None,
    stacks: bool = False,
    partial: bool = False,
) -> Report:
    """The report of the trace at `path`.

    Args:
        path: trace in Chrome or Perfetto format, packed or not; `-` for standard input.
        native_path: `trace_processor_shell` to use instead of the embedded engine.
        stacks: read Python stacks too; no figure needs them, and they are most of many traces.
        partial: of a damaged file, report what is whole.

    Raises:
        TraceError: the file cannot be read or trusted.
        EngineError: the trace processor cannot be had, or failed.
    """
    with open_trace(path, native_path=native_path, stacks=stacks, all_args=False, partial=partial) as (engine, info):
        return build_report(engine, info)
