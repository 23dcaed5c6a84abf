"""The GPU is idle most of the time, or waits for kernel launches, where graphs are unused or broken."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row
from molprof.analysis.figures.certificate.model import Group
from molprof.analysis.figures.model import IDLE_CAUSES, Finding, Report
from molprof.analysis.findings.scope import LEAST_GAIN, Rule, Scope
from molprof.common.values import count_text, counted, number_text, percent_text, time_text

# Share of unprofiled time in which devices are idle.
LEAST_IDLE_RATIO = 0.5
# Share of the time that waits for launches take in a launch-bound run.
LEAST_LAUNCH_RATIO = 0.2
# Python and torch take 5 to 200 us per operator under the profiler. In a longer gap the CPU does something else.
LONGEST_GAP_NS = 1_000_000
# Fewer launches per step besides graphs are normal: inputs, sampling.
LEAST_LAUNCHES_PER_STEP = 20
# Share of kernels outside graphs, from which graphs count as broken.
LEAST_KERNEL_RATIO = 0.2

_GAP = """
FROM _molprof_cpu_busy_gap AS gap
JOIN molprof_gpu_work_call AS link ON link.work_id = gap.next_id
JOIN molprof_gpu_call AS call ON call.id = link.call_id AND call.kind = 'launch'
"""
_CHOSEN = f"WHERE gap.dur <= {LONGEST_GAP_NS}"
# In a foreign trace all gaps lie in the recorded time.
_SUMS = Query(
    "idle_causes",
    "INCLUDE PERFETTO MODULE molprof.work_calls;\n"
    f"SELECT COUNT() AS count, IFNULL(SUM(gap.dur), 0) AS time_ns {_GAP} {_CHOSEN}",
)
_GAPS = Query(
    "idle_causes",
    f"""
INCLUDE PERFETTO MODULE molprof.placement;
INCLUDE PERFETTO MODULE molprof.work_calls;
SELECT gap.ts, gap.ts + gap.dur AS ts_end, phase.phase
{_GAP}
LEFT JOIN molprof_work_phase AS place ON place.id = gap.next_id
LEFT JOIN molprof_phase AS phase ON phase.id = place.phase_id
{_CHOSEN}
ORDER BY gap.ts
""",
)
# Of decode steps. In a captured run only of the forward phase, because a graph holds nothing else.
_GRAPHS_OF_RUN = Query(
    "phase_work",
    """
INCLUDE PERFETTO MODULE molprof.placement;
SELECT COUNT() AS steps, SUM(launches) AS launches, SUM(graph_launches) AS graph_launches,
  (SELECT COUNT() FROM molprof_work_phase AS place
   JOIN molprof_gpu_work AS work ON work.id = place.id
   JOIN molprof_gpu_call AS call ON call.id = work.call_id
   JOIN molprof_phase AS phase ON phase.id = place.phase_id
   WHERE call.kind = 'graph_launch' AND work.category = 'kernel' AND phase.phase = 'forward') AS graph_kernels,
  SUM(kernels) AS kernels
FROM molprof_phase_work
WHERE phase = 'forward'
""",
)
_GRAPHS_OF_STEPS = Query(
    "step_launches",
    """
INCLUDE PERFETTO MODULE molprof.work_calls;
SELECT SUM(steps) AS steps, SUM(launches) AS launches, SUM(graph_launches) AS graph_launches,
  (SELECT IFNULL(SUM(started.kernels), 0) FROM _molprof_graph_call AS call
   CROSS JOIN molprof_call_work AS started ON started.call_id = call.id
   CROSS JOIN molprof_call_step AS place ON place.id = call.id
   CROSS JOIN molprof_any_step AS step ON step.id = place.step_id
   WHERE step.kind IN ('decode', 'mixed')) AS graph_kernels,
  SUM(kernels) AS kernels
FROM molprof_step_launch_summary
WHERE kind IN ('decode', 'mixed')
""",
)


class LaunchGaps(Struct, frozen=True):
    """Gaps of the recorded time in which the GPU waited for a launch: no host sync, and no graph ended them."""

    count: int
    time_ns: int
    gain_ratio: float


def launch_gaps(engine: Engine, scope: Scope, phase: str | None = None) -> LaunchGaps:
    """Those that a launch of `phase` ended, or of any."""
    if scope.run is None:
        sums = query_row(engine, _SUMS)
        return LaunchGaps(sums["count"], sums["time_ns"], scope.idle_part(sums["time_ns"]))
    columns = engine.query(_GAPS.text)
    inside = scope.stretches.covered(columns["ts"], columns["ts_end"])
    if phase is not None:
        inside = inside[columns["phase"] == phase]
    time_ns = int(inside.sum())
    return LaunchGaps(int((inside > 0).sum()), time_ns, scope.idle_part(time_ns))


def _launch_bound(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Gain: unprofiled idle time, 1 - busy / base, times the share of such gaps in recorded idle time."""
    if scope is None or not scope.devices or report.counts.launches == 0:
        return
    gaps = launch_gaps(engine, scope)
    if gaps.gain_ratio < LEAST_LAUNCH_RATIO * scope.wall_ratio:
        return
    busy_ratio = scope.busy_ns / (scope.recorded_ns * scope.devices)
    yield Finding(
        id="launch_bound",
        title="The GPU waits for kernel launches",
        evidence=(
            f"{counted(gaps.count, 'gap')}, {time_text(gaps.time_ns)} of {scope.recorded_text}, in which the queue was "
            f"empty and the CPU was preparing the next launch; the GPU was busy for "
            f"{percent_text(busy_ratio)} of that time{scope.caution}"
        ),
        gain_ratio=gaps.gain_ratio,
        fix="Launch fewer kernels: graphs (mode='reduce-overhead', a static cache), fused kernels, larger batches.",
        explanation="The CPU takes longer to launch a small operator than the GPU takes to run it.",
        query="idle_causes",
        figures={
            "gap_count": gaps.count,
            "gap_ns": gaps.time_ns,
            "recorded_ns": scope.recorded_ns,
            "busy_ratio": busy_ratio,
            "launches": report.counts.launches,
        },
    )


def _idle(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Gain: 1 - busy / base, with the unprofiled time of the recorded steps as base."""
    if scope is None or not scope.devices or scope.idle_ratio < LEAST_IDLE_RATIO * scope.wall_ratio:
        return
    causes: dict[str, tuple[int, int]] = {}
    for _, cause, _, time_ns, _, longest_ns in report.table("idle_causes").rows:
        before_ns, before_longest_ns = causes.get(str(cause), (0, 0))
        causes[str(cause)] = (before_ns + int(time_ns or 0), max(before_longest_ns, int(longest_ns or 0)))
    ordered = sorted(causes.items(), key=lambda item: (-item[1][0], item[0]))[:2]
    devices = f"{scope.devices} devices, in all" if scope.devices > 1 else "GPU"
    unprofiled = " unprofiled" if scope.run is not None else ""
    idle_ratio = scope.idle_ratio / scope.wall_ratio
    yield Finding(
        id="gpu_idle",
        title="The GPU is idle most of the time",
        evidence=(
            f"{devices} busy for {time_text(scope.busy_ns)} of {scope.recorded_text}{scope.caution}"
            f", idle {percent_text(idle_ratio)} of the{unprofiled} time"
            + "".join(
                f"; {IDLE_CAUSES.get(cause, cause)}: {time_text(time_ns)}, longest gap {time_text(longest_ns)}"
                for cause, (time_ns, longest_ns) in ordered
            )
        ),
        gain_ratio=scope.idle_ratio,
        fix=(
            f"{IDLE_CAUSES['cpu_busy']}: less Python, fewer launches. {IDLE_CAUSES['cpu_waited']}: fewer syncs. "
            "The rest: larger batches."
        ),
        explanation="The GPU does not set the time of a step. Faster kernels gain little.",
        query="idle_causes",
        figures={
            "busy_ns": scope.busy_ns,
            "recorded_ns": scope.recorded_ns,
            "devices": scope.devices,
            "idle_ratio": idle_ratio,
            **{f"{cause}_ns": time_ns for cause, (time_ns, _) in ordered},
        },
    )


def _graphs(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Gain: as of `launch_bound`, of gaps that a launch of the forward phase ends (all, in a foreign trace)."""
    if scope is None or not scope.devices:
        return
    run = report.run is not None
    counts = query_row(engine, _GRAPHS_OF_RUN if run else _GRAPHS_OF_STEPS)
    if not counts["steps"] or counts["launches"] is None:
        return
    gaps = launch_gaps(engine, scope, "forward" if run else None)
    plain_kernels = counts["kernels"] - counts["graph_kernels"]
    figures: dict[str, int | float] = {
        "decode_steps": counts["steps"],
        "launches_per_step": counts["launches"] / counts["steps"],
        "graph_launches_per_step": counts["graph_launches"] / counts["steps"],
        "kernels_by_launch": plain_kernels,
        "kernels_by_graph": counts["graph_kernels"],
        "gap_ns": gaps.time_ns,
    }
    per_step = f"{number_text(figures['launches_per_step'])} launches per decode step"
    waits = f"the GPU waited {time_text(gaps.time_ns)} for them"
    explanation = "A graph replays a whole step with one CPU call. Everything outside it is launched one by one."
    if not counts["graph_launches"]:
        if gaps.gain_ratio < LEAST_LAUNCH_RATIO * scope.wall_ratio:
            return
        yield Finding(
            id="graphs_unused",
            title="Decoding is launch-bound and uses no graphs",
            evidence=f"{per_step}, no graph launches; {waits}",
            gain_ratio=gaps.gain_ratio,
            fix="Use a static cache and a forward compiled with mode='reduce-overhead'. Warm up before timing.",
            explanation=explanation,
            query="step_launches",
            figures=figures,
        )
        return
    ratio = plain_kernels / counts["kernels"] if counts["kernels"] else 0.0
    few = figures["launches_per_step"] < LEAST_LAUNCHES_PER_STEP or ratio < LEAST_KERNEL_RATIO
    if few or gaps.gain_ratio < LEAST_GAIN:
        return
    yield Finding(
        id="graphs_broken",
        title="Many kernels run outside graphs",
        evidence=(
            f"{per_step} besides {number_text(figures['graph_launches_per_step'])} graph launches; they start "
            f"{count_text(plain_kernels)} of {count_text(counts['kernels'])} kernels ({percent_text(ratio)}); {waits}"
        ),
        gain_ratio=gaps.gain_ratio,
        fix="Find graph breaks (TORCH_LOGS=graph_breaks,cudagraphs), keep shapes fixed, and remove host syncs.",
        explanation=explanation,
        query="graphs",
        figures=figures,
    )


_OF_GRAPHS: tuple[Group, ...] = ("gpu_idle", "links", "steps", "graphs")
LAUNCH_BOUND = Rule({"launch_bound": ("gpu_idle", "links")}, _launch_bound, (_SUMS,), (_GAPS,))
GPU_IDLE = Rule({"gpu_idle": ("gpu_idle",)}, _idle)
GRAPHS = Rule(
    {"graphs_unused": _OF_GRAPHS, "graphs_broken": _OF_GRAPHS}, _graphs, (_GRAPHS_OF_STEPS,), (_GRAPHS_OF_RUN,)
)
