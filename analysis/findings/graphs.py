"""CUDA and HIP graphs: unused in launch-bound decoding, or with many launches besides them."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings.gpu_idle import LEAST_LAUNCH_RATIO, launch_gaps
from molprof.analysis.findings.scope import LEAST_GAIN, Rule, Scope
from molprof.common.values import count_text, number_text, percent_text, time_text

# Fewer launches per step besides graphs are normal: inputs, sampling.
LEAST_LAUNCHES_PER_STEP = 20
# Share of kernels outside graphs, from which graphs count as broken.
LEAST_KERNEL_RATIO = 0.2

# Of decode steps. In a captured run only of the forward phase, because a graph holds nothing else.
_RUN = Query(
    "phase_work",
    """
SELECT COUNT() AS steps, SUM(launches) AS launches, SUM(graph_launches) AS graph_launches,
  (SELECT COUNT() FROM molprof_work_phase AS place
   JOIN molprof_gpu_work_call AS link ON link.work_id = place.id
   JOIN molprof_gpu_call AS call ON call.id = link.call_id
   JOIN molprof_gpu_work AS work ON work.id = place.id
   JOIN molprof_phase AS phase ON phase.id = place.phase_id
   WHERE call.kind = 'graph_launch' AND work.category = 'kernel' AND phase.phase = 'forward') AS graph_kernels,
  SUM(kernels) AS kernels
FROM molprof_phase_work
WHERE phase = 'forward'
""",
)
_FOREIGN = Query(
    "step_launches",
    """
SELECT SUM(steps) AS steps, SUM(launches) AS launches, SUM(graph_launches) AS graph_launches,
  (SELECT COUNT() FROM molprof_gpu_work_call AS link
   JOIN molprof_gpu_call AS call ON call.id = link.call_id
   JOIN molprof_gpu_work AS work ON work.id = link.work_id
   JOIN molprof_call_step AS place ON place.id = link.call_id
   JOIN molprof_any_step AS step ON step.id = place.step_id
   WHERE call.kind = 'graph_launch' AND work.category = 'kernel' AND step.kind IN ('decode', 'mixed')) AS graph_kernels,
  SUM(kernels) AS kernels
FROM molprof_step_launch_summary
WHERE kind IN ('decode', 'mixed')
""",
)


def _find(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Gain: as of `launch_bound`, of gaps that end with a launch of the forward phase, which alone a graph can hold.

    A foreign trace has no phases: there all gaps count.
    """
    if scope is None or not scope.devices:
        return
    run = report.run is not None
    counts = query_row(engine, _RUN if run else _FOREIGN)
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


RULE = Rule(("graphs_unused", "graphs_broken"), _find, (_RUN, _FOREIGN))
