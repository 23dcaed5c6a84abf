"""Launches and leaf operators: of the trace, per token, step and molecule."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.figures.figure import Figure, of_gpu, of_run
from molprof.analysis.figures.model import Counts, Report
from molprof.analysis.figures.run_model import Run
from molprof.analysis.figures.tables import STEPS
from molprof.common.values import Value, per

_GROUP = "Launches"


def _of_trace(name: str, label: str, value: Callable[[Counts], int], compared: bool = True) -> Figure:
    return Figure(name, _GROUP, label, "count", of_gpu(lambda report: value(report.counts)), compared=compared)


def _of_run(name: str, label: str, value: Callable[[Run], float | None]) -> Figure:
    return Figure(name, _GROUP, label, "number", of_run(value))


def _of_steps(name: str, label: str, value: Callable[[Run], float | None], column: str) -> Figure:
    """Launches by steps or tokens: of the run, else of all steps that the engine of a foreign trace marked."""

    def figure(report: Report) -> Value:
        if report.run is not None:
            return value(report.run)
        marked = [row for row in report.table(STEPS.name).to_json() if row["steps"]]
        if len({row["source"] for row in marked}) > 1:
            return None  # marks of two programs may lie in each other
        launches, parts = ([row[key] for row in marked] for key in ("launches", column))
        return None if None in launches or None in parts else per(_sum(launches), _sum(parts))

    return Figure(name, _GROUP, label, "number", figure, tables=(STEPS,))


def _sum(values: list[Value]) -> int:
    return sum(value for value in values if isinstance(value, int))


LAUNCHES = (
    _of_trace("launches", "launches in the trace", lambda counts: counts.launches),
    _of_trace(
        "launches_without_gpu_work",
        "launches without GPU work",
        lambda counts: counts.launches_without_gpu_work,
        compared=False,
    ),
    _of_steps("launches_per_token", "launches per token", lambda run: run.launches_per_token, "tokens"),
    _of_steps("launches_per_step", "launches per step", lambda run: run.launches_per_step, "steps"),
    _of_run("launches_per_molecule", "launches per molecule", lambda run: run.launches_per_molecule),
    _of_trace("graph_launches", "graph launches in the trace", lambda counts: counts.graph_launches),
    _of_run("leaf_operators_per_token", "leaf operators per token", lambda run: run.leaf_operators_per_token),
    _of_run("leaf_operators_per_step", "leaf operators per step", lambda run: run.leaf_operators_per_step),
)
