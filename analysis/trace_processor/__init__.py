"""The trace processor: feed it a trace, register SQL packages, query numpy columns.

It runs embedded (`trace_processor.wasm`, in this process) or native (`trace_processor_shell`, a process of its own),
with the same protocol and the same results.
"""

from __future__ import annotations

import json
import os

from molprof.analysis.trace_processor.protocol import Columns
from molprof.analysis.trace_processor.session import TraceProcessor
from molprof.common.errors import EngineError

__all__ = ["NATIVE_PATH_VARIABLE", "Columns", "TraceProcessor", "engine_version", "open_engine", "selftest"]

NATIVE_PATH_VARIABLE = "MOLPROF_TRACE_PROCESSOR"


def open_engine(
    native_path: str | None = None, memory64: bool = False, state: memoryview | None = None
) -> TraceProcessor:
    """Start a trace processor without a trace, or with that of a kept `state` of the embedded one.

    native_path: a `trace_processor_shell` binary; by default the one in MOLPROF_TRACE_PROCESSOR, else the embedded one.
    memory64: the embedded module that can hold more than 4 GiB, which is slower; the native one always can.

    Raises EngineError.
    """
    # Imported on use: each of the two pulls in packages that the other does not need.
    path = native_path or os.environ.get(NATIVE_PATH_VARIABLE)
    if path:
        from molprof.analysis.trace_processor.native import NativeTransport

        return TraceProcessor(NativeTransport(path))
    from molprof.analysis.trace_processor.wasm import WasmTransport

    return TraceProcessor(WasmTransport(memory64, state))


def engine_version() -> str:
    """Return the version of the embedded trace processor for cache keys. Raises EngineError."""
    from molprof.analysis.trace_processor.wasm import find_wasm

    path = find_wasm(False)
    return f"{path.parent.name} {path.stat().st_size}"


def selftest() -> dict[str, int]:
    """Return the events counted in a trace of one event. Raises EngineError for any other number than 1."""
    trace = {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}
    with open_engine() as engine:
        engine.feed(json.dumps(trace).encode())
        engine.finish()
        events = int(engine.query("SELECT COUNT(*) AS events FROM slice")["events"][0])
    if events != 1:
        raise EngineError(f"the trace processor counts {events} events in a trace of 1")
    return {"events": events}
