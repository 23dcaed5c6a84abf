"""Certificate: can the trace bear each group of figures? One line per check below."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from molprof.analysis.figures.certificate import launches, recording, work
from molprof.analysis.figures.certificate.model import ALL, Certificate, Certified, Doubt, Facts, Group, combined, worst
from molprof.analysis.figures.counts import Counts, DeviceTime
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_row

__all__ = ["CHECKS", "Certificate", "certify"]

CHECKS = (
    recording.FILE,
    launches.STARTED_LATE,
    launches.CUT_END,
    launches.NO_WORK,
    launches.DROPPED,
    launches.EARLIER_WORK,
    work.OVERLAP,
    work.GRAPHS,
    work.STEPS,
    recording.CLOCKS,
    recording.CYCLES,
    recording.RANKS,
    recording.START,
    recording.MEMORY,
)
# Counts and times of a trace that checks set their bounds against.
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
QUERIES = (_STEPS, _RECORDED, *(query for check in CHECKS if check.asks for query in check.queries))


def certify(engine: TraceProcessor, info: TraceInfo, counts: Counts, devices: Mapping[str, DeviceTime]) -> Certificate:
    """The certificate of the trace that `load_trace(path, engine)` described by `info`.

    The package's SQL is registered already. Raises EngineError or QueryError of the trace processor.
    """
    known = _facts(engine, info, counts, devices)
    doubts = [
        replace(doubt, check=check.id, query=check.queries[0].module, sql=check.queries[0].text)
        for check in CHECKS
        for doubt in check.find(engine, info, known)
    ]
    groups = tuple(_certified(group, doubts, known) for group in ALL)
    return Certificate(worst(doubt.verdict for doubt in doubts), groups)


def _certified(group: Group, doubts: list[Doubt], known: Facts) -> Certified:
    mine = tuple(doubt for doubt in doubts if doubt.group == group)
    if not mine and group not in known.recorded:
        return Certified(group, "not_to_be_had", "not recorded", (), ())
    verdict = worst(doubt.verdict for doubt in mine)
    reason = "; ".join(dict.fromkeys(doubt.reason for doubt in mine)) or None
    bounds = combined(bound for doubt in mine for bound in doubt.bounds) if verdict == "bounded" else ()
    return Certified(group, verdict, reason, bounds, mine)


def _facts(engine: TraceProcessor, info: TraceInfo, counts: Counts, devices: Mapping[str, DeviceTime]) -> Facts:
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
