"""Totals of all steps of a run: exact where all were recorded, else estimated from those that were."""

from __future__ import annotations

from collections.abc import Sequence

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_rows
from molprof.analysis.figures.run_model import RunTotal

_STEPS = Query(
    "phase_work",
    "SELECT step = 0 AS is_prefill, SUM(launches) AS launches, SUM(kernels) AS kernels,"
    " SUM(leaf_operators) AS leaf_operators FROM molprof_phase_work WHERE step IS NOT NULL"
    " GROUP BY batch, step ORDER BY batch, step",
)


def read_totals(engine: Engine, steps: int, prefills: int, gpu: bool) -> dict[str, RunTotal]:
    """Launches and kernels, or leaf operators without a GPU, of a run of so many steps; empty without recorded steps.

    Args:
        steps: of all batches, prefills included.
    """
    _, rows = query_rows(engine, _STEPS)
    names = {"launches": 1, "kernels": 2} if gpu else {"leaf_operators": 3}
    groups = [([row for row in rows if row[0]], prefills), ([row for row in rows if not row[0]], steps - prefills)]
    if not all(found for found, _ in groups):  # steps of a kind that was not recorded count as those of the other
        groups = [(list(rows), steps)]
    return {
        name: _total([([row[place] for row in found], count) for found, count in groups])
        for name, place in names.items()
        if rows
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
