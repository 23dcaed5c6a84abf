"""The GPU waits for kernel launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings.intervals import inside_ns
from molprof.analysis.findings.rule import Rule
from molprof.analysis.findings.scope import Scope
from molprof.common.values import counted, percent_text, time_text

# Share of the time that waits for launches take in a launch-bound run.
LEAST_RATIO = 0.2
# Python and torch take 5 to 200 us per operator under the profiler. In a longer gap the CPU does something else.
LONGEST_GAP_NS = 1_000_000

_GAP = """
FROM molprof_idle_gap AS gap
JOIN molprof_gpu_work_call AS link ON link.work_id = gap.next_id
JOIN molprof_gpu_call AS call ON call.id = link.call_id AND call.kind = 'launch'
"""
_CHOSEN = f"WHERE gap.cause = 'cpu_busy' AND gap.dur <= {LONGEST_GAP_NS}"
# In a foreign trace all gaps lie in the recorded time.
_SUMS = Query("idle_causes", f"SELECT COUNT() AS count, IFNULL(SUM(gap.dur), 0) AS time_ns {_GAP} {_CHOSEN}", "foreign")
_GAPS = Query(
    "idle_causes",
    f"""
INCLUDE PERFETTO MODULE molprof.placement;
SELECT gap.ts, gap.ts + gap.dur AS ts_end, phase.phase
{_GAP}
LEFT JOIN molprof_work_phase AS place ON place.id = gap.next_id
LEFT JOIN molprof_phase AS phase ON phase.id = place.phase_id
{_CHOSEN}
ORDER BY gap.ts
""",
    "run",
)


@dataclass(frozen=True)
class LaunchGaps:
    """Gaps of the recorded time in which the GPU waited for a launch: the CPU waited for nothing, no graph ended them.

    Attributes:
        gain_ratio: the most that wall time can shrink if none of them were.
    """

    count: int
    time_ns: int
    gain_ratio: float


def launch_gaps(engine: Engine, scope: Scope, phase: str | None = None) -> LaunchGaps:
    """Those that a launch of `phase` ended, or of any."""
    if scope.run is None:
        sums = query_row(engine, _SUMS)
        return LaunchGaps(sums["count"], sums["time_ns"], scope.idle_part(sums["time_ns"]))
    columns = engine.query(_GAPS.text)
    inside = np.asarray(inside_ns(columns["ts"], columns["ts_end"], scope.stretches))
    if phase is not None:
        inside = inside[columns["phase"] == phase]
    time_ns = int(inside.sum())
    return LaunchGaps(int((inside > 0).sum()), time_ns, scope.idle_part(time_ns))


def _find(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Fires where waits for launches take LEAST_RATIO of the time.

    Gain: unprofiled idle time, 1 - busy / base, times the share of such gaps in recorded idle time.
    """
    if scope is None or not scope.devices or report.counts.launches == 0:
        return
    gaps = launch_gaps(engine, scope)
    if gaps.gain_ratio < LEAST_RATIO * scope.wall_ratio:
        return
    figures = {
        "gap_count": gaps.count,
        "gap_ns": gaps.time_ns,
        "recorded_ns": scope.recorded_ns,
        "busy_ratio": scope.busy_ns / (scope.recorded_ns * scope.devices),
        "launches": report.counts.launches,
    }
    yield Finding(
        id="launch_bound",
        title="The GPU waits for kernel launches",
        evidence=(
            f"{counted(gaps.count, 'gap')}, {time_text(gaps.time_ns)} of {scope.recorded_text}, in which the queue was "
            f"empty and the CPU was preparing the next launch; the GPU was busy for "
            f"{percent_text(figures['busy_ratio'])} of that time{scope.caution}"
        ),
        gain_ratio=gaps.gain_ratio,
        fix=(
            "Launch fewer kernels: graphs (torch.compile with mode='reduce-overhead' and a static cache), fused "
            "kernels, larger batches. Faster kernels do not help."
        ),
        explanation=(
            "The CPU takes longer to launch a small operator than the GPU takes to run it. The queue runs empty, and "
            "the CPU sets the time of a step."
        ),
        query="idle_causes",
        figures=figures,
    )


RULE = Rule(("launch_bound",), _find, (_SUMS, _GAPS))
