"""An engine with a trace in it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from molprof.analysis.engine import Engine, open_engine
from molprof.analysis.reader.load import TraceInfo, load_trace


@contextmanager
def open_trace(
    path: str | os.PathLike[str],
    *,
    native_path: str | None = None,
    stacks: bool = True,
    all_args: bool = True,
    partial: bool = False,
    processes: int | None = None,
) -> Generator[tuple[Engine, TraceInfo], None, None]:
    """An engine that holds the trace at `path`, and what is known of the trace.

    Arguments and errors are those of `load_trace` and `open_engine`.
    """
    with ExitStack() as stack:
        engines: list[Engine] = []

        def start(large: bool) -> Engine:
            engines.append(stack.enter_context(open_engine(native_path, memory64=large)))
            return engines[0]

        info = load_trace(path, start, stacks=stacks, all_args=all_args, partial=partial, processes=processes)
        yield engines[0], info
