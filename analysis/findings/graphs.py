"""CUDA and HIP graphs: not used where launches are the bound, or with many launches beside them."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings.launch_bound import LEAST_RATIO, launch_gaps
from molprof.analysis.findings.rule import Rule
from molprof.analysis.findings.scope import LEAST_GAIN, Scope
from molprof.common.values import count_text, number_text, percent_text, time_text

# Fewer launches per step than this beside graphs are normal: inputs, sampling.
LEAST_LAUNCHES_PER_STEP = 20
# Share of the kernels that plain launches started, from which on graphs count as broken.
LEAST_KERNEL_RATIO = 0.2

# Of steps that generate: in a trace of molprof's the forward phase, as nothing else can be in a graph.
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
    """Not used: decode steps are launch-bound (LEAST_RATIO) and launch no graph. Broken: they launch graphs, and plain
    launches too: LEAST_LAUNCHES_PER_STEP, which start LEAST_KERNEL_RATIO of the kernels.

    Gain: as of `launch_bound`, but only gaps that end with a plain launch of the forward phase, the only one that a
    graph can hold (any phase in a trace of other origin, where phases are not recorded).
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
    explanation = (
        "A graph replays a whole step with one call of the CPU. Whatever runs beside it (a changed shape, a host "
        "sync, an operator that cannot be captured) is launched one by one."
    )
    if not counts["graph_launches"]:
        if gaps.gain_ratio < LEAST_RATIO * scope.wall_ratio:
            return
        yield Finding(
            id="graphs_unused",
            title="Launch-bound decoding without graphs",
            evidence=f"{per_step}, none of a graph; {waits}",
            gain_ratio=gaps.gain_ratio,
            fix=(
                "a static cache and a compiled forward (cache_implementation='static' compiles with "
                "mode='reduce-overhead'); warm up before timing"
            ),
            explanation=explanation,
            query="step_launches",
            figures=figures,
        )
        return
    ratio = plain_kernels / counts["kernels"] if counts["kernels"] else 0.0
    if (
        figures["launches_per_step"] < LEAST_LAUNCHES_PER_STEP
        or ratio < LEAST_KERNEL_RATIO
        or gaps.gain_ratio < LEAST_GAIN
    ):
        return
    yield Finding(
        id="graphs_broken",
        title="Graphs are used, and many kernels run outside them",
        evidence=(
            f"{per_step} beside {number_text(figures['graph_launches_per_step'])} graph launches: they start "
            f"{count_text(plain_kernels)} of {count_text(counts['kernels'])} kernels ({percent_text(ratio)}); "
            f"{waits}"
        ),
        gain_ratio=gaps.gain_ratio,
        fix="find the graph breaks (TORCH_LOGS=graph_breaks,cudagraphs), keep shapes fixed, remove host syncs",
        explanation=explanation,
        query="graphs",
        figures=figures,
    )


RULE = Rule(("graphs_unused", "graphs_broken"), _find, (_RUN, _FOREIGN))
