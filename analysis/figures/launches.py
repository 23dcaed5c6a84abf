"""Launches and leaf operators: of the trace, per token, step and molecule."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.figures.figure import Figure, of_gpu, of_run
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run
from molprof.common.values import Cell, per

_GROUP = "Launches"


def _launches_per(figure: Callable[[Run], float | None], column: str) -> Callable[[Report], Cell]:
    """Launches by steps or tokens: of the run, else of all steps that the engine of a foreign trace marked."""

    def value(report: Report) -> Cell:
        if report.run is not None:
            return figure(report.run)
        marked = [row for row in report.table("steps").to_json() if row["steps"]]
        if len({row["source"] for row in marked}) > 1:
            return None  # marks of two programs may lie in each other
        launches, parts = ([row[name] for row in marked] for name in ("launches", column))
        if None in launches or None in parts:
            return None
        return per(_sum(launches), _sum(parts))

    return value


def _sum(values: list[Cell]) -> int:
    return sum(value for value in values if isinstance(value, int))


LAUNCHES = (
    Figure("launches", _GROUP, "in the trace", "count", of_gpu(lambda report: report.counts.launches)),
    Figure(
        "launches_without_gpu_work",
        _GROUP,
        "launches without GPU work",
        "count",
        of_gpu(lambda report: report.counts.launches_without_gpu_work),
        compared=False,
    ),
    Figure(
        "launches_per_token",
        _GROUP,
        "per token",
        "number",
        _launches_per(lambda run: run.launches_per_token, "tokens"),
    ),
    Figure(
        "launches_per_step",
        _GROUP,
        "per step",
        "number",
        _launches_per(lambda run: run.launches_per_step, "steps"),
    ),
    Figure(
        "launches_per_molecule",
        _GROUP,
        "per molecule",
        "number",
        of_run(lambda run: run.launches_per_molecule),
    ),
    Figure(
        "graph_launches",
        _GROUP,
        "graph launches in the trace",
        "count",
        of_gpu(lambda report: report.counts.graph_launches),
    ),
    Figure(
        "leaf_operators_per_token",
        _GROUP,
        "leaf CPU operators per token",
        "number",
        of_run(lambda run: run.leaf_operators_per_token),
    ),
    Figure(
        "leaf_operators_per_step",
        _GROUP,
        "leaf CPU operators per step",
        "number",
        of_run(lambda run: run.leaf_operators_per_step),
    ),
)
