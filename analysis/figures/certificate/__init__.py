"""Certificate: which groups of figures a trace can support, and how exactly."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from molprof.analysis.figures.certificate import file, times, work  # noqa: F401 - they declare the checks
from molprof.analysis.figures.certificate.check import CHECKS, CheckedTrace
from molprof.analysis.figures.model import (
    ALL,
    Bound,
    Certificate,
    Certified,
    Counts,
    DeviceTime,
    Doubt,
    Group,
    SumCheck,
    combined,
    worst,
)
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_row

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
_SPAN = Query("recorded", "SELECT IFNULL(MAX(ts_end) - MIN(ts), 0) AS recorded_ns FROM molprof_recorded")
_STEP_KERNELS = Query(
    "step_launches",
    "SELECT COUNT(step_id) AS steps, IFNULL(SUM(kernels) FILTER (WHERE step_id IS NOT NULL), 0) AS kernels"
    " FROM molprof_step_launch",
)


def certify(
    engine: TraceProcessor,
    info: TraceInfo,
    counts: Counts,
    devices: Mapping[str, DeviceTime],
    sums: tuple[SumCheck, ...],
) -> Certificate:
    """Return the certificate of the trace that `load_trace(path, engine)` described by `info`.

    The package's SQL is registered already. Raises EngineError or QueryError of the trace processor.
    """
    has, steps = query_row(engine, _RECORDED), query_row(engine, _STEP_KERNELS)
    parts: dict[Group, bool] = {
        "gpu_work": has["work"],
        "gpu_time": has["work"],
        "gpu_idle": has["work"],
        "launches": has["calls"],
        "links": has["work"] and has["calls"],
        "graphs": counts.graph_launches > 0,
        "steps": has["steps"],
        "host_time": has["host"],
        "allocations": info.memory_events > 0,
    }
    recorded = frozenset(group for group, present in parts.items() if present)
    span_ns = max((device.span_ns for device in devices.values()), default=0)
    recorded_ns = max(span_ns, query_row(engine, _SPAN)["recorded_ns"])
    trace = CheckedTrace(engine, info, counts, devices, steps["steps"], steps["kernels"], sums, recorded, recorded_ns)
    doubts = [
        replace(doubt, check=check.id, query=check.query.module, sql=check.query.text)
        for check in CHECKS
        for doubt in check.find(trace)
    ]
    groups = tuple(_certified(group, doubts, trace) for group in ALL)
    return Certificate(worst(doubt.verdict for doubt in doubts), groups)


def _certified(group: Group, doubts: list[Doubt], trace: CheckedTrace) -> Certified:
    mine = tuple(doubt for doubt in doubts if doubt.group == group)
    if not mine and group not in trace.recorded:
        return Certified(group, "not_to_be_had", "not recorded", (), ())
    verdict = worst(doubt.verdict for doubt in mine)
    most_ns = trace.recorded_ns if mine else 0
    reason = "; ".join(dict.fromkeys(doubt.reason for doubt in mine)) or None
    together = combined(bound for doubt in mine for bound in doubt.bounds) if verdict == "bounded" else ()
    bounds = tuple(_possible(bound, max(most_ns, int(bound.value))) for bound in together)
    return Certified(group, verdict, reason, bounds, mine)


def _possible(bound: Bound, most_ns: int) -> Bound:
    """Return the bound without impossible values.

    No count and no time is below 0, and no device works longer than `most_ns`.
    """
    low, high = bound.low, bound.high
    if low is not None and bound.figure != "mean_delay_ns":  # which is below 0 where the clocks differ by more
        low = max(0, low)
    if bound.figure.startswith("devices.") and high is not None:
        high = min(high, most_ns)
    return Bound(bound.figure, low, bound.value, high)
