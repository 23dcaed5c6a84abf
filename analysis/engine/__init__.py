"""The trace processor: feed it a trace, register SQL packages, query numpy columns.

Two ways to get it, with the same results: embedded (`trace_processor.wasm`, in process) and
native (`trace_processor_shell`, a process of its own). Both speak the same protocol, so
everything but the few lines that carry bytes to and fro is shared.
"""

from __future__ import annotations

import os

from molprof.analysis.engine.columns import Columns
from molprof.analysis.engine.session import Engine

__all__ = ["NATIVE_PATH_VARIABLE", "Columns", "Engine", "open_engine"]

NATIVE_PATH_VARIABLE = "MOLPROF_TRACE_PROCESSOR"


def open_engine(native_path: str | None = None, memory64: bool = False) -> Engine:
    """Starts a trace processor that holds no trace yet.

    native_path: a `trace_processor_shell` binary; by default the one that the environment
    variable MOLPROF_TRACE_PROCESSOR names, and the embedded one where that is not set.
    memory64: the embedded module that can hold more than 4 GiB; slower, and without meaning
    for the native binary, which has no such bound.

    Raises EngineError when it cannot be found or started.
    """
    # Imported on use: each of the two pulls in packages that the other does not need.
    path = native_path or os.environ.get(NATIVE_PATH_VARIABLE)
    if path:
        from molprof.analysis.engine.native import NativeTransport

        return Engine(NativeTransport(path))
    from molprof.analysis.engine.wasm import WasmTransport

    return Engine(WasmTransport(memory64=memory64))
