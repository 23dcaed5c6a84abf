"""Tests whether the trace processor runs here."""

from __future__ import annotations

import json

from molprof.analysis.engine import open_engine
from molprof.common.errors import EngineError

_TRACE = {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}


def selftest() -> dict[str, int]:
    """The events counted in a trace of one event. Raises EngineError for any other number than 1."""
    with open_engine() as engine:
        engine.feed(json.dumps(_TRACE).encode())
        engine.finish()
        events = int(engine.query("SELECT COUNT(*) AS events FROM slice")["events"][0])
    if events != 1:
        raise EngineError(f"the trace processor counts {events} events in a trace of 1")
    return {"events": events}
