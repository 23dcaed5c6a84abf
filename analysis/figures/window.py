"""Figures of the recorded steps, and of their phases."""

from __future__ import annotations

from msgspec.structs import replace

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_dicts, query_row, query_rows
from molprof.analysis.figures.run_model import ClassFigures, PhaseBound, PhaseFigures, Run, WindowFigures, filled
from molprof.common.manifest import Manifest

_PHASES = Query(
    "phase_work",
    "SELECT phase, host_ns, gpu_ns, launches, graph_launches, kernels, syncs, sync_ns, leaf_operators"
    " FROM molprof_phase_summary ORDER BY phase IS NULL, phase",
)
# Columns that mean nothing where the trace holds no GPU work.
_OF_GPU = ("gpu_ns", "launches", "graph_launches", "kernels", "syncs", "sync_ns")
_BOUNDS = Query(
    "phase_bound",
    "SELECT phase, count, gpu_busy_ns, sync_idle_ns, launch_ns"
    " FROM molprof_phase_bound_summary WHERE gpu_busy_ns IS NOT NULL ORDER BY phase",
)
_STEPS = Query(
    "phase_work",
    """
INCLUDE PERFETTO MODULE molprof.tokens;
SELECT
  (SELECT COUNT() FROM molprof_step) AS steps,
  (SELECT COUNT(slice_id) FROM molprof_token) AS tokens,
  IFNULL(SUM(launches), 0) AS launches,
  IFNULL(SUM(graph_launches), 0) AS graph_launches,
  IFNULL(SUM(kernels), 0) AS kernels,
  IFNULL(SUM(gpu_ns), 0) AS gpu_ns,
  IFNULL(SUM(syncs), 0) AS syncs,
  IFNULL(SUM(leaf_operators), 0) AS leaf_operators
FROM molprof_phase_work
WHERE step IS NOT NULL
""",
)
_CLASSES = Query("step_work", "SELECT class, count, time_ns FROM molprof_step_class ORDER BY time_ns DESC, class")


def read_window(engine: Engine, manifest: Manifest, gpu: bool) -> tuple[WindowFigures, dict[str | None, PhaseFigures]]:
    """The recorded steps, and each recorded phase by name (None: outside any phase)."""
    bounds = {phase: PhaseBound(*figures) for phase, *figures in query_rows(engine, _BOUNDS)[1]}
    phases = {}
    for row in query_dicts(engine, _PHASES):
        phase = row.pop("phase")
        if not gpu:
            row.update(dict.fromkeys(_OF_GPU))
        phases[phase] = PhaseFigures(wall_ns=None, **row, bound=bounds.get(phase))
    outside = phases.get(None)
    step = query_row(engine, _STEPS)
    if not gpu:
        step.update(dict.fromkeys(set(_OF_GPU) & set(step)))
    classes = {name: ClassFigures(*figures) for name, *figures in query_rows(engine, _CLASSES)[1]}
    window = filled(
        WindowFigures,
        manifest.window,
        **step,
        gpu_recorded=gpu,
        classes=classes if gpu else None,
        unattributed_gpu_ns=None if not gpu else outside.gpu_ns if outside else 0,
    )
    return window, phases


def phase_figures(wall_ns: int | None, recorded: PhaseFigures | None) -> PhaseFigures:
    """Those of the recorded steps, if any, with the unprofiled time."""
    return replace(recorded or PhaseFigures(None, None, None, None, None, None, None, None), wall_ns=wall_ns)


def without_steps(run: Run) -> Run:
    """The run without figures of steps and phases, for a trace that lacks parts of them."""
    unknown = (*set(_OF_GPU) - {"sync_ns"}, "leaf_operators", "classes", "unattributed_gpu_ns")
    return replace(
        run,
        launches_per_token=None,
        launches_per_step=None,
        launches_per_molecule=None,
        totals=None,
        leaf_operators_per_token=None,
        leaf_operators_per_step=None,
        phases={name: phase_figures(phase.wall_ns, None) for name, phase in run.phases.items()},
        window=replace(run.window, **dict.fromkeys(unknown)),  # type: ignore[arg-type]
    )
