"""What a comparison holds, and its JSON: `compare --format json` is `Comparison.to_json()`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from molprof.analysis.compare.statistics import Interval
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report
from molprof.common.values import Cell, Unit

SCHEMA = 1

Verdict = Literal["confirmed", "refuted", "not significant", "not recorded"]
Direction = Literal["lower", "higher"]
# Where a part comes from: unprofiled times and counts alone, or unprofiled time divided as in the recorded window.
Basis = Literal["measured", "window"]


@dataclass(frozen=True)
class ComparedRow:
    """One figure of every run.

    Attributes:
        values: one per run, None where not recorded.
        ratios: each value over the first run's; None for text, if one is not recorded or the first 0.
        intervals: of each run's median, for times of enough repeats; else None.
        ratio_intervals: of each ratio, as above; None for the first run.
        significant: whether a run differs from the first: beyond noise, or at all for a figure without noise. None for
            the first run, for a figure measured once, and where too few repeats or what is not recorded leave it open.
    """

    figure: Figure
    values: tuple[Cell, ...]
    ratios: tuple[float | None, ...]
    intervals: tuple[Interval | None, ...]
    ratio_intervals: tuple[Interval | None, ...]
    significant: tuple[bool | None, ...]

    def within_noise(self, index: int) -> bool:
        """Noise explains that the run at `index` differs from the first, in a figure that every repeat measures."""
        return self.figure.noise == "repeats" and self.significant[index] is False

    def to_json(self) -> dict[str, Any]:
        """JSON-ready dicts and lists."""
        figure = self.figure
        return {
            "id": figure.id,
            "group": figure.group,
            "label": figure.label,
            "unit": figure.unit,
            "values": list(self.values),
            "ratios": list(self.ratios),
            "noise": figure.noise,
            "intervals": [item and asdict(item) for item in self.intervals],
            "ratio_intervals": [item and asdict(item) for item in self.ratio_intervals],
            "significant": list(self.significant),
        }


@dataclass(frozen=True)
class Difference:
    """Unprofiled median wall time of a run minus the first run's, as parts that add up to it (docs/comparing.md).

    Attributes:
        parts: by id of `parts.py`, in its order, ns; positive where the run takes longer than the first, 0 where
            neither has it. Their sum and `residual_ns` are `wall_ns`, to the nanosecond.
        residual_ns: what no part accounts for; residual_ratio: the same over |wall_ns|, None where that is 0.
        basis: of each part.
        gpu_beyond_ns: recorded GPU time that the first's and the run's unprofiled steps have no room for, over the
            whole run: above 0 where the window is not like the run. None where no part is divided as in the window.
        factors: tokens, steps_per_token and time_per_step, each the run's over the first's: their product is the
            ratio of the wall times. Empty where a run has no tokens, steps or time.
        factor_values: of the first and of the run; time_per_step in ns.
    """

    wall_ns: int
    parts: dict[str, int]
    residual_ns: int
    residual_ratio: float | None
    basis: dict[str, Basis]
    gpu_beyond_ns: tuple[int, int] | None
    factors: dict[str, float]
    factor_values: dict[str, tuple[float, float]]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready dicts and lists."""
        return {
            **asdict(self),
            "gpu_beyond_ns": None if self.gpu_beyond_ns is None else list(self.gpu_beyond_ns),
            "factor_values": {name: list(values) for name, values in self.factor_values.items()},
        }


@dataclass(frozen=True)
class TraceDifference:
    """Recorded, so profiled, device time of a trace minus the first's: for traces without unprofiled time.

    Attributes:
        span_ns: from each device's first work to the end of its last, summed over devices.
        parts: `busy`, and `idle.` and a cause of molprof_idle_cause, ns; 0 where neither has it.
        residual_ns: what no part accounts for.
        devices: number of devices of the first and of the trace.
    """

    span_ns: int
    parts: dict[str, int]
    residual_ns: int
    devices: tuple[int, int]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready dicts and lists."""
        return {**asdict(self), "devices": list(self.devices)}


@dataclass(frozen=True)
class Prediction:
    """An expectation, and what the figures say.

    Attributes:
        text: what the first run of `figures` is expected to have, against the second.
        verdict: confirmed, refuted, not significant (the interval of the ratio holds the bound, or too few repeats
            tell), or not recorded.
        figures: the compared figure by label of run; empty where there are no two runs to compare.
        metric: id of the compared row.
        direction, bound: the ratio of the first figure to the second is expected to be lower or higher than the bound.
        ratio: that ratio; None where it cannot be made.
        interval: of the ratio, for times with enough repeats.
        reason: why there is no verdict; None where there is one.
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

    Attributes:
        differences: None where a run has no unprofiled time; then `trace_differences` has the recorded one, if any.
        notes: what to keep in mind, one line each.
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
        differences = [None if item is None else item.to_json() for item in self.differences]
        recorded = [None if item is None else item.to_json() for item in self.trace_differences]
        return {
            "schema": self.schema,
            "labels": list(self.labels),
            "runs": [run.to_json() for run in self.runs],
            "rows": [row.to_json() for row in self.rows],
            "difference": differences[0] if len(differences) == 1 else differences,
            "trace_difference": recorded[0] if len(recorded) == 1 else recorded,
            "predictions": [asdict(prediction) for prediction in self.predictions],
            "notes": list(self.notes),
        }
