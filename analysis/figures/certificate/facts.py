"""Counts and times of a trace that checks set their bounds against."""

from __future__ import annotations

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row, query_rows
from molprof.analysis.figures.certificate.model import Facts, Group
from molprof.analysis.reader import TraceInfo

_COUNTS = Query(
    "launches",
    "SELECT launches, graph_launches, kernels, kernel_time_ns, kernels_with_call,"
    " launches_without_gpu_work FROM molprof_launch_count",
)
_STEPS = Query(
    "step_launches",
    "SELECT COUNT(step_id) AS steps, IFNULL(SUM(kernels) FILTER (WHERE step_id IS NOT NULL), 0) AS kernels"
    " FROM molprof_step_launch",
)
_DEVICES = Query("devices", "SELECT device, busy_ns, idle_ns FROM molprof_device ORDER BY device")
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
QUERIES = (_COUNTS, _STEPS, _DEVICES, _RECORDED)


def read_facts(engine: Engine, info: TraceInfo) -> Facts:
    counts, found = query_row(engine, _COUNTS), query_row(engine, _RECORDED)
    parts: dict[Group, bool] = {
        "gpu_work": found["work"],
        "gpu_time": found["work"],
        "gpu_idle": found["work"],
        "launches": found["calls"],
        "links": found["work"] and found["calls"],
        "graphs": counts["graph_launches"] > 0,
        "steps": found["steps"],
        "host_time": found["host"],
        "allocations": info.memory_events > 0,
    }
    steps = query_row(engine, _STEPS)
    return Facts(
        kernels=counts["kernels"],
        kernel_time_ns=counts["kernel_time_ns"],
        launches=counts["launches"],
        graph_launches=counts["graph_launches"],
        linked_kernels=counts["kernels_with_call"],
        launches_without_work=counts["launches_without_gpu_work"],
        steps=steps["steps"],
        step_kernels=steps["kernels"],
        devices={device: (busy_ns, idle_ns) for device, busy_ns, idle_ns in query_rows(engine, _DEVICES)[1]},
        recorded=frozenset(group for group, present in parts.items() if present),
    )
