"""What a comparison holds, and its JSON: `Comparison.to_json()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct, to_builtins

from molprof.analysis.compare.rows import ComparedRow
from molprof.analysis.compare.statistics import Interval
from molprof.analysis.figures.model import Report, plain
from molprof.common.values import Unit

SCHEMA = 1

Verdict = Literal["confirmed", "refuted", "equal", "not significant", "not recorded"]
Direction = Literal["lower", "higher"]
# A part is of unprofiled times and counts, or of unprofiled time divided as in the recorded steps.
Basis = Literal["measured", "window"]


class Difference(Struct, frozen=True):
    """Unprofiled median wall time of a run minus the first run's, as parts that add up to it (docs/comparing.md).

    `gpu_beyond_ns` is recorded GPU time of the first and the run for which unprofiled steps have no room: above 0 where
    the recorded steps are not like the run, None if no part is divided as in them. The product of `factors`, the run's
    over the first's, is the ratio of the wall times; empty where a run has no tokens, steps or time.

    Of paired runs it is the mean of the rounds. `causes` are the parts that a verdict names: they differ from 0 beyond
    their interval, or are of counts, and are not of equal work. `intervals` are empty with too few passes.
    """

    wall_ns: int
    parts: dict[str, int]  # by id of `parts.py`, ns; with `residual_ns` they make `wall_ns`
    residual_ns: int  # unexplained time
    residual_ratio: float | None  # over |wall_ns|; None where that is 0
    basis: dict[str, Basis]
    gpu_beyond_ns: tuple[int, int] | None
    factors: dict[str, float]  # tokens, steps_per_token and time_per_step
    factor_values: dict[str, tuple[float, float]]  # of the first and of the run; time_per_step in ns
    paired: bool
    rounds: int  # that were compared, or pairs of passes of other runs
    significant: bool | None  # the wall times differ beyond noise, as their row says; None: unknown
    causes: tuple[str, ...]
    intervals: dict[str, Interval]  # by part, ns
    wall_interval: Interval | None  # ns
    within_noise_ns: int  # sum of the parts whose interval holds 0
    # how much longer or shorter equal work took in a separate capture: a ratio minus 1; None: paired, or none is equal
    drift_ratio: float | None
    doubts: tuple[str, ...]  # why the times are not reliable


class TraceDifference(Struct, frozen=True):
    """Recorded, so profiled, device time of a trace minus the first's: for traces without unprofiled time."""

    span_ns: int
    parts: dict[str, int]  # `busy`, and `idle.` with a cause of molprof_idle_cause, ns
    residual_ns: int  # unexplained time
    devices: tuple[int, int]


class Prediction(Struct, frozen=True):
    """An expectation, and the verdict on the ratio of its metric."""

    id: str
    text: str
    verdict: Verdict
    unit: Unit
    figures: dict[str, float | None]  # by label of run; empty without two runs to compare
    metric: str
    direction: Direction
    bound: float
    ratio: float | None
    interval: Interval | None
    reason: str | None  # why there is no verdict


class Comparison(Struct, frozen=True):
    """Two or more runs, each against the first."""

    schema: int
    labels: tuple[str, ...]
    runs: tuple[Report, ...]
    rows: tuple[ComparedRow, ...]
    differences: tuple[Difference | None, ...]
    trace_differences: tuple[TraceDifference | None, ...]  # where a run has no unprofiled time
    predictions: tuple[Prediction, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready dicts and lists; `difference` and `trace_difference` are one object for two runs, else a list."""
        return {
            "schema": self.schema,
            "labels": list(self.labels),
            "runs": [run.to_json() for run in self.runs],
            "rows": [row.to_json() for row in self.rows],
            "difference": _one_or_all(self.differences),
            "trace_difference": _one_or_all(self.trace_differences),
            "predictions": [to_builtins(prediction) for prediction in self.predictions],
            "notes": list(self.notes),
        }


def _one_or_all(items: Sequence[Difference | None] | Sequence[TraceDifference | None]) -> Any:
    found = [None if item is None else plain(to_builtins(item)) for item in items]
    return found[0] if len(found) == 1 else found
