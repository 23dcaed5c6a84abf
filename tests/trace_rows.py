"""Events written by hand, loaded into an engine, and read back as rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from molprof.analysis.reader import TraceInfo
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import Columns, TraceProcessor

ARGS = """
    SELECT s.name, a.key, COALESCE(int_value, real_value, string_value) AS value, value_type AS type
    FROM slice AS s JOIN args AS a USING (arg_set_id) WHERE key != 'args.molprof_tid' ORDER BY s.ts, s.name, s.id, a.key
"""
SLICES = """
    SELECT s.name, s.category, s.ts, s.dur, t.tid, t.name AS thread, p.pid, p.name AS process,
        EXTRACT_ARG(s.arg_set_id, 'args.molprof_tid') AS home_tid, s.depth
    FROM slice AS s
    LEFT JOIN thread_track AS tt ON tt.id = s.track_id
    LEFT JOIN thread AS t USING (utid)
    LEFT JOIN process AS p USING (upid)
    ORDER BY s.ts, -s.dur, s.name, s.id
"""


def x(name: str, ts: Any, dur: Any, pid: Any = 1, tid: Any = 2, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, **more}


def load(engine: TraceProcessor, tmp_path: Path, trace: Any, **options: Any) -> TraceInfo:
    """Loads a trace given as a list of events, as a whole document, or as text."""
    path = tmp_path / "trace.json"
    if isinstance(trace, list):
        trace = {"traceEvents": trace}
    path.write_bytes(trace if isinstance(trace, bytes) else json.dumps(trace).encode())
    return load_trace(path, engine, **options)


def rows(columns: Columns, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(columns[name].tolist() for name in names or columns), strict=True))


def losses(engine: TraceProcessor) -> dict[str, int]:
    """The engine's own counters of errors and data losses that are not 0, by name."""
    sql = "SELECT name, SUM(value) FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0 GROUP BY name"
    return dict(rows(engine.query(sql)))
