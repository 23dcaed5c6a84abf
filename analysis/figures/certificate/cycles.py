"""Check: the file holds one run of the profiler."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row, query_rows
from molprof.analysis.figures.certificate.model import Bound, Check, Doubt, Facts, Group
from molprof.analysis.reader import TraceInfo
from molprof.common.values import time_text

_RUNS = Query("certificate_cycles", "SELECT number, name, ts, dur, gap_ns FROM molprof_profiler_run ORDER BY number")
_PROCESSES = Query("certificate_ranks", "SELECT COUNT() AS processes FROM molprof_host_process")
_IDLE = Query("certificate_cycles", "SELECT device, idle_ns FROM molprof_idle_between_runs ORDER BY device")


def _find(engine: Engine, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    columns, rows = query_rows(engine, _RUNS)
    runs = [dict(zip(columns, row, strict=True)) for row in rows]
    # A merged file has a run for each process; the check of ranks reports those.
    if len(runs) > 1 and len(runs) > query_row(engine, _PROCESSES)["processes"]:
        gap_ns = sum(run["gap_ns"] or 0 for run in runs)
        reason = f"{len(runs)} runs of the profiler in one file, {time_text(gap_ns)} between them"
        between = dict(query_rows(engine, _IDLE)[1])
        bounds = tuple(
            Bound(f"devices.{device}.idle_ns", idle_ns - between.get(device, 0), idle_ns, idle_ns)
            for device, (_, idle_ns) in facts.devices.items()
        )
        group: Group = "gpu_idle" if bounds else "host_time"
        yield Doubt(group, "bounded", reason, bounds, {"runs": len(runs), "gap_ns": gap_ns})


CHECK = Check("cycles", "the file holds one run of the profiler", (_RUNS, _IDLE, _PROCESSES), _find)
