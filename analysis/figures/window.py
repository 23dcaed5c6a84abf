"""Figures of the recorded steps, and of their phases."""

from __future__ import annotations

from dataclasses import replace

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row, query_rows
from molprof.analysis.figures.run_model import ClassFigures, PhaseBound, PhaseFigures, Run, WindowFigures
from molprof.common.manifest import Manifest

_PHASES = Query(
    "phase_work",
    """
SELECT phase, host_ns, gpu_ns, launches, kernels, syncs, sync_ns, leaf_operators
FROM molprof_phase_summary
ORDER BY phase IS NULL, phase
""",
)
# Columns that mean nothing where the trace holds no GPU work.
_OF_GPU = ("gpu_ns", "launches", "kernels", "syncs", "sync_ns")
_BOUNDS = Query(
    "phase_bound",
    """
SELECT phase, count, gpu_busy_ns, sync_idle_ns, launch_ns
FROM molprof_phase_bound_summary
WHERE gpu_busy_ns IS NOT NULL
ORDER BY phase
""",
)
_STEPS = Query(
    "phase_work",
    """
SELECT
  (SELECT COUNT() FROM molprof_step) AS steps,
  IFNULL(SUM(launches), 0) AS launches,
  IFNULL(SUM(kernels), 0) AS kernels,
  IFNULL(SUM(gpu_ns), 0) AS gpu_ns,
  IFNULL(SUM(leaf_operators), 0) AS leaf_operators
FROM molprof_phase_work
WHERE step IS NOT NULL
""",
)
_TOKENS = Query("tokens", "SELECT COUNT(slice_id) AS tokens FROM molprof_token")
_CLASSES = Query("step_work", "SELECT class, count, time_ns FROM molprof_step_class ORDER BY time_ns DESC, class")


def read_window(engine: Engine, manifest: Manifest, gpu: bool) -> tuple[WindowFigures, dict[str | None, PhaseFigures]]:
    """The recorded steps, and each recorded phase by name (None: outside any phase)."""
    step = query_row(engine, _STEPS)
    tokens = query_row(engine, _TOKENS)["tokens"]
    _, classes = query_rows(engine, _CLASSES)
    phases = _read_phases(engine, gpu)
    outside = phases.get(None)
    window = WindowFigures(
        full=manifest.window.full,
        batch=manifest.window.batch,
        first_step=manifest.window.first_step,
        last_step=manifest.window.last_step,
        steps=step["steps"],
        tokens=tokens,
        gpu_recorded=gpu,
        launches=step["launches"] if gpu else None,
        kernels=step["kernels"] if gpu else None,
        gpu_ns=step["gpu_ns"] if gpu else None,
        leaf_operators=step["leaf_operators"],
        classes={name: ClassFigures(count, time_ns) for name, count, time_ns in classes} if gpu else None,
        unattributed_gpu_ns=None if not gpu else (outside.gpu_ns if outside else 0),
    )
    return window, phases


def _read_phases(engine: Engine, gpu: bool) -> dict[str | None, PhaseFigures]:
    bounds = {phase: PhaseBound(*figures) for phase, *figures in query_rows(engine, _BOUNDS)[1]}
    columns, rows = query_rows(engine, _PHASES)
    found = {}
    for phase, *row in rows:
        figures = dict(zip(columns[1:], row, strict=True))
        if not gpu:
            figures.update(dict.fromkeys(_OF_GPU))
        found[phase] = PhaseFigures(wall_ns=None, **figures, bound=bounds.get(phase))
    return found


def phase_figures(wall_ns: int | None, recorded: PhaseFigures | None) -> PhaseFigures:
    """Those of the recorded steps, if any, with the unprofiled time."""
    return replace(recorded or PhaseFigures(None, None, None, None, None, None, None, None), wall_ns=wall_ns)


def without_steps(run: Run) -> Run:
    """The run without figures of steps and phases, for a trace that lacks parts of them."""
    unknown = {
        "launches": None, "kernels": None, "gpu_ns": None, "leaf_operators": None, "classes": None,
        "unattributed_gpu_ns": None,
    }  # fmt: skip
    return replace(
        run,
        launches_per_token=None,
        launches_per_step=None,
        launches_per_molecule=None,
        leaf_operators_per_token=None,
        leaf_operators_per_step=None,
        phases={name: phase_figures(phase.wall_ns, None) for name, phase in run.phases.items()},
        window=replace(run.window, **unknown),  # type: ignore[arg-type]
    )
