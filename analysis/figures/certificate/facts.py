"""Counts and times of a trace that checks set their bounds against."""

from __future__ import annotations

from collections.abc import Mapping

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row
from molprof.analysis.figures.certificate.model import Facts, Group
from molprof.analysis.figures.counts import Counts, DeviceTime
from molprof.analysis.reader import TraceInfo

_STEPS = Query(
    "step_launches",
    "SELECT COUNT(step_id) AS steps, IFNULL(SUM(kernels) FILTER (WHERE step_id IS NOT NULL), 0) AS kernels"
    " FROM molprof_step_launch",
)
_RECORDED = Query(
    "steps",
    """
SELECT
  EXISTS(SELECT 1 FROM slice WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset')) AS work,
  EXISTS(SELECT 1 FROM slice WHERE category IN ('cuda_runtime', 'cuda_driver')) AS calls,
  EXISTS(SELECT 1 FROM slice WHERE category IN ('cpu_op', 'user_annotation', 'cuda_runtime', 'cuda_driver')) AS host,
  EXISTS(SELECT 1 FROM molprof_any_step) AS steps
""",
)
QUERIES = (_STEPS, _RECORDED)


def read_facts(engine: Engine, info: TraceInfo, counts: Counts, devices: Mapping[str, DeviceTime]) -> Facts:
    found, steps = query_row(engine, _RECORDED), query_row(engine, _STEPS)
    parts: dict[Group, bool] = {
        "gpu_work": found["work"],
        "gpu_time": found["work"],
        "gpu_idle": found["work"],
        "launches": found["calls"],
        "links": found["work"] and found["calls"],
        "graphs": counts.graph_launches > 0,
        "steps": found["steps"],
        "host_time": found["host"],
        "allocations": info.memory_events > 0,
    }
    recorded = frozenset(group for group, present in parts.items() if present)
    return Facts(counts, devices, steps["steps"], steps["kernels"], recorded)
