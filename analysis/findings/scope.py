"""What rules share: the time that gains are ratios of, and how recorded times become shares of it.

A captured run has recorded steps, profiled, and the wall time of timed passes, unprofiled. The profiler does not slow
the GPU, so GPU time is divided by the unprofiled time of the recorded steps. It slows the host, so the share of host
time in its recorded phase stands for the share of that phase's unprofiled time. Both assume that the recorded steps
represent all of their kind. A foreign trace has one clock: gains are ratios of its profiled span.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run
from molprof.analysis.figures.union import Union
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.manifest import STEP_PHASES
from molprof.common.values import percent_text, time_text

_STEPS = Query("phases", "SELECT ts, ts + dur AS ts_end FROM molprof_step ORDER BY ts")
_CATEGORIES = "('cpu_op', 'cuda_runtime', 'cuda_driver', 'kernel', 'gpu_memcpy', 'gpu_memset')"
SPAN = Query(
    "phases",
    f"""
WITH
  -- The engine finds the ends of one column without reading all rows.
  bound AS (
    SELECT
      (SELECT ts FROM slice WHERE category IN {_CATEGORIES} ORDER BY ts LIMIT 1) AS ts,
      (SELECT ts FROM slice WHERE category IN {_CATEGORIES} ORDER BY ts DESC LIMIT 1) AS last_ts,
      (SELECT dur FROM slice WHERE category IN {_CATEGORIES} ORDER BY dur DESC LIMIT 1) AS longest_ns
  )
SELECT
  bound.ts,
  MAX(slice.ts + slice.dur) AS ts_end
FROM bound
CROSS JOIN slice
WHERE slice.ts >= bound.last_ts - bound.longest_ns AND slice.category IN {_CATEGORIES}
GROUP BY bound.ts
""",
)
_WORK = Query("gpu_work", "SELECT device, ts, ts + dur AS ts_end FROM molprof_gpu_work ORDER BY ts")


class Scope(Struct, frozen=True):
    """Recorded time, and what it stands for."""

    stretches: Union  # the recorded steps, or the whole span of a foreign trace
    steps: int | None  # recorded steps; None for a foreign trace
    recorded_ns: int  # length of the stretches, profiled
    base_ns: float  # the same unprofiled, where known
    wall_ratio: float  # share of the run's wall time that steps of the recorded kind take; 1 for a foreign trace
    devices: int  # devices with work
    busy_ns: int  # time of the stretches in which each device worked, summed over devices
    run: Run | None  # the run's figures; None for a foreign trace

    @property
    def idle_ratio(self) -> float:
        """Share of unprofiled wall time in which a device is idle, mean over devices; 0 if no work was timed."""
        if not self.devices or not self.busy_ns:
            return 0.0
        return max(0.0, 1 - self.busy_ns / (self.base_ns * self.devices)) * self.wall_ratio

    @property
    def caution(self) -> str:
        """What evidence of idle time in a foreign trace must add."""
        return "" if self.run is not None else ", including the profiler's cost on the CPU"

    @property
    def recorded_text(self) -> str:
        return f"{'the whole trace' if self.run is None else 'the recorded steps'}, {time_text(self.recorded_ns)}"

    @property
    def base_text(self) -> str:
        """What GPU time is a share of."""
        if self.run is None:
            return self.recorded_text
        kind = f" (such steps take {percent_text(self.wall_ratio)} of the run)" if self.wall_ratio < 1 else ""
        return f"the recorded steps, {time_text(self.base_ns)} unprofiled{kind}"

    def _phase(self, name: str | None) -> tuple[int, int, int] | None:
        """Recorded host time of a phase, its unprofiled time, and that of the run."""
        if self.run is None or name is None:
            return None
        phase, wall_ns = self.run.phases[name], self.run.wall_ns.median
        if not phase.host_ns or phase.wall_ns is None or not wall_ns:
            return None
        return phase.host_ns, phase.wall_ns, wall_ns

    def host_text(self, host_ns: float, phase: str) -> str:
        """The figures that `host_part` is made of."""
        if (found := self._phase(phase)) is None:
            return f"{time_text(host_ns)} of {self.recorded_text}"
        recorded_ns, phase_ns, wall_ns = found
        return (
            f"{time_text(host_ns)} of {time_text(recorded_ns)} recorded in {phase} "
            f"({percent_text(min(1.0, host_ns / recorded_ns))}), a phase that takes "
            f"{percent_text(phase_ns / wall_ns)} of unprofiled time"
        )

    def idle_part(self, part_ns: float) -> float:
        """Share of wall time of a part of the recorded idle time, which is as large a part of the unprofiled one."""
        idle_ns = self.recorded_ns * self.devices - self.busy_ns
        return self.idle_ratio * part_ns / idle_ns if idle_ns > 0 else 0.0

    def gpu_part(self, gpu_ns: float) -> float:
        """Share of wall time of work of the recorded steps on one device."""
        return min(1.0, gpu_ns / self.base_ns) * self.wall_ratio

    def host_part(self, host_ns: float, phase: str | None = None) -> float:
        """Share of wall time of host time in the recorded steps, of one phase where it lies in one."""
        if (found := self._phase(phase)) is None:
            return min(1.0, host_ns / self.recorded_ns) * self.wall_ratio
        recorded_ns, phase_ns, wall_ns = found
        return min(1.0, host_ns / recorded_ns) * phase_ns / wall_ns

    def host_parts(self, times: Iterable[tuple[float, str]]) -> float:
        """Share of wall time of host times in several phases."""
        return sum(self.host_part(*time) for time in times)


def read_scope(engine: TraceProcessor, report: Report) -> Scope | None:
    """None where no time is recorded."""
    run = report.run
    _, rows = query_rows(engine, SPAN if run is None else _STEPS)
    if not rows:
        return None
    stretches = Union([ts for ts, _ in rows], [end for _, end in rows])
    recorded_ns = stretches.length_ns
    if recorded_ns <= 0:
        return None
    # The span of a foreign trace holds all work.
    all_busy_ns = sum(device.busy_ns for device in report.devices.values())
    profiled_ratio = run.profiled_ratio if run is not None else None
    return Scope(
        stretches=stretches,
        steps=None if run is None else len(rows),
        recorded_ns=recorded_ns,
        base_ns=recorded_ns / profiled_ratio if profiled_ratio and profiled_ratio > 0 else recorded_ns,
        wall_ratio=1.0 if run is None else _wall_ratio(run),
        devices=len(report.devices),
        busy_ns=all_busy_ns if run is None else _busy_ns(engine, stretches),
        run=run,
    )


def _busy_ns(engine: TraceProcessor, stretches: Union) -> int:
    """Time of the stretches in which each device worked, summed over devices."""
    columns = engine.query(_WORK.text)
    masks = [columns["device"] == device for device in set(columns["device"].tolist())]
    return sum(stretches.common_ns(Union(columns["ts"][mine], columns["ts_end"][mine])) for mine in masks)


def _wall_ratio(run: Run) -> float:
    """Share of unprofiled wall time of the phases that the recorded steps consist of; 1 where it is not timed."""
    wall_ns = run.wall_ns.median
    if not wall_ns:
        return 1.0
    names = [name for name in (*STEP_PHASES, "prefill") if run.phases[name].host_ns is not None]
    return min(1.0, sum(run.phases[name].wall_ns or 0 for name in names) / wall_ns)
