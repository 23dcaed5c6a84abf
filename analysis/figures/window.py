"""Figures of the recorded steps and their phases, and totals of all steps of the run, estimated from those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from molprof.analysis.figures.model import TraceFigures
from molprof.analysis.figures.run_model import ClassFigures, PhaseBound, PhaseFigures, RunTotal, WindowFigures
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_dicts, query_row, query_rows
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
_SIZES = Query(
    "tokens",
    "INCLUDE PERFETTO MODULE molprof.phases;\n"
    "SELECT (SELECT COUNT() FROM molprof_step) AS steps, (SELECT COUNT(slice_id) FROM molprof_token) AS tokens",
)
_COLUMNS = ("launches", "graph_launches", "kernels", "gpu_ns", "syncs", "leaf_operators")
_STEPS = Query(
    "phase_work",
    f"SELECT step = 0 AS is_prefill, {', '.join(f'IFNULL(SUM({name}), 0) AS {name}' for name in _COLUMNS)}"
    " FROM molprof_phase_work WHERE step IS NOT NULL GROUP BY batch, step ORDER BY batch, step",
)
_CLASSES = Query("step_work", "SELECT class, count, time_ns FROM molprof_step_class ORDER BY time_ns DESC, class")
_Read = tuple[WindowFigures, dict["str | None", PhaseFigures], "dict[str, RunTotal] | None"]


def read_window(engine: TraceProcessor, manifest: Manifest, trace: TraceFigures) -> _Read:
    """The recorded steps, each recorded phase by name (None: outside any phase), and totals of all steps.

    A trace that lacks parts of steps has no figures of them.
    """
    gpu, whole = trace.gpu_recorded, trace.whole_steps
    steps = query_dicts(engine, _STEPS) if whole else []
    known = [name for name in _COLUMNS if whole and (gpu or name not in _OF_GPU)]
    phases = _read_phases(engine, gpu) if whole else {}
    classes = {name: ClassFigures(*figures) for name, *figures in query_rows(engine, _CLASSES)[1]}
    outside = phases.get(None)
    sums: dict[str, Any] = {name: sum(step[name] for step in steps) if name in known else None for name in _COLUMNS}
    window = WindowFigures(
        **asdict(manifest.window),
        **query_row(engine, _SIZES),
        **sums,
        gpu_recorded=gpu,
        classes=classes if gpu and whole else None,
        unattributed_gpu_ns=None if not gpu or not whole else outside.gpu_ns if outside else 0,
    )
    return window, phases, _totals(steps, manifest, gpu) if whole else None


def _read_phases(engine: TraceProcessor, gpu: bool) -> dict[str | None, PhaseFigures]:
    bounds = {phase: PhaseBound(*figures) for phase, *figures in query_rows(engine, _BOUNDS)[1]}
    phases = {}
    for row in query_dicts(engine, _PHASES):
        phase = row.pop("phase")
        unknown = {} if gpu else dict.fromkeys(_OF_GPU)
        phases[phase] = PhaseFigures(**{**row, **unknown}, bound=bounds.get(phase))
    return phases


def _totals(steps: Sequence[dict[str, Any]], manifest: Manifest, gpu: bool) -> dict[str, RunTotal]:
    """Launches and kernels, or leaf operators without a GPU; empty without recorded steps."""
    prefills, count = len(manifest.steps_per_batch), sum(manifest.steps_per_batch)
    groups = [
        ([step for step in steps if step["is_prefill"]], prefills),
        ([step for step in steps if not step["is_prefill"]], count - prefills),
    ]
    if not all(found for found, _ in groups):  # steps of a kind that was not recorded count as those of the other
        groups = [(list(steps), count)]
    return {
        name: _total([([step[name] for step in found], count) for found, count in groups])
        for name in (("launches", "kernels") if gpu else ("leaf_operators",))
        if steps
    }


def _total(groups: Sequence[tuple[Sequence[int], int]]) -> RunTotal:
    """The sum over groups: counts of recorded steps, and the number of all steps of that kind."""
    recorded = sum(len(counts) for counts, _ in groups)
    value = low = high = 0.0
    for counts, steps in groups:
        others = max(steps - len(counts), 0)
        value += sum(counts) + others * sum(counts) / len(counts)
        low += sum(counts) + others * min(counts)
        high += sum(counts) + others * max(counts)
    steps = sum(steps for _, steps in groups)
    return RunTotal(round(value), round(low), round(high), recorded >= steps, min(recorded, steps), steps)
