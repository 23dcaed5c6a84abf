"""What a comparison holds, and its JSON: `compare --format json` is `Comparison.to_json()`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from molprof.analysis.compare.statistics import Interval
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report, plain
from molprof.common.values import Unit, Value

SCHEMA = 1

Verdict = Literal["confirmed", "refuted", "not significant", "not recorded"]
Direction = Literal["lower", "higher"]
# A part is of unprofiled times and counts, or of unprofiled time divided as in the recorded steps.
Basis = Literal["measured", "window"]


@dataclass(frozen=True)
class ComparedRow:
    """One figure of every run, and against the first: ratios, and whether a difference is beyond noise (None: unknown).

    Intervals are of medians and of ratios, for times of enough passes; None else.
    """

    figure: Figure
    values: tuple[Value, ...]
    ratios: tuple[float | None, ...]
    intervals: tuple[Interval | None, ...]
    ratio_intervals: tuple[Interval | None, ...]
    significant: tuple[bool | None, ...]

    def within_noise(self, index: int) -> bool:
        """Noise explains the difference between the run at `index` and the first."""
        return self.figure.noise == "repeats" and self.significant[index] is False

    def to_json(self) -> dict[str, Any]:
        """JSON-ready dicts and lists."""
        return {
            **{name: getattr(self.figure, name) for name in ("id", "group", "label", "unit")},
            "values": list(self.values),
            "ratios": list(self.ratios),
            "noise": self.figure.noise,
            "intervals": [item and asdict(item) for item in self.intervals],
            "ratio_intervals": [item and asdict(item) for item in self.ratio_intervals],
            "significant": list(self.significant),
        }


@dataclass(frozen=True)
class Difference:
    """Unprofiled median wall time of a run minus the first run's, as parts that add up to it (docs/comparing.md).

    `gpu_beyond_ns` is recorded GPU time of the first and the run for which unprofiled steps have no room: above 0 where
    the recorded steps are not like the run, None if no part is divided as in them. The product of `factors`, the run's
    over the first's, is the ratio of the wall times; empty where a run has no tokens, steps or time.
    """

    wall_ns: int
    parts: dict[str, int]  # by id of `parts.py`, ns; with `residual_ns` they make `wall_ns`
    residual_ns: int  # unexplained time
    residual_ratio: float | None  # over |wall_ns|; None where that is 0
    basis: dict[str, Basis]
    gpu_beyond_ns: tuple[int, int] | None
    factors: dict[str, float]  # tokens, steps_per_token and time_per_step
    factor_values: dict[str, tuple[float, float]]  # of the first and of the run; time_per_step in ns


@dataclass(frozen=True)
class TraceDifference:
    """Recorded, so profiled, device time of a trace minus the first's: for traces without unprofiled time.

    Parts are `busy`, and `idle.` with a cause of molprof_idle_cause, ns; `residual_ns` is unexplained.
    """

    span_ns: int
    parts: dict[str, int]
    residual_ns: int
    devices: tuple[int, int]


@dataclass(frozen=True)
class Prediction:
    """An expectation, the metric by label of run (empty without two runs to compare), and the verdict on their ratio.

    `reason` is why there is no verdict.
    """

    id: str
    text: str
    verdict: Verdict
    unit: Unit
    figures: dict[str, float | None]
    metric: str
    direction: Direction
    bound: float
    ratio: float | None
    interval: Interval | None
    reason: str | None


@dataclass(frozen=True)
class Comparison:
    """Two or more runs, each against the first.

    Of runs without unprofiled time, `trace_differences` has the recorded difference, if any.
    """

    schema: int
    labels: tuple[str, ...]
    runs: tuple[Report, ...]
    rows: tuple[ComparedRow, ...]
    differences: tuple[Difference | None, ...]
    trace_differences: tuple[TraceDifference | None, ...]
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
            "predictions": [asdict(prediction) for prediction in self.predictions],
            "notes": list(self.notes),
        }


def _one_or_all(items: Sequence[Difference | None] | Sequence[TraceDifference | None]) -> Any:
    found = [None if item is None else plain(asdict(item)) for item in items]
    return found[0] if len(found) == 1 else found
