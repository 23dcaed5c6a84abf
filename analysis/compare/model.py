"""What a comparison holds, its figures side by side, and its JSON: `Comparison.to_json()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct, field, to_builtins

from molprof.analysis.compare.rounds import in_rounds, interval_of_ratio
from molprof.analysis.compare.statistics import Interval, median_interval, paired_ratio, significant
from molprof.analysis.figures.catalog import COMPARED
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report, plain
from molprof.common.values import Unit, Value, per

SCHEMA = 1

Verdict = Literal["confirmed", "refuted", "equal", "not significant", "not recorded"]
Direction = Literal["lower", "higher"]
# A part is of unprofiled times and counts, or of unprofiled time divided as in the recorded steps.
Basis = Literal["measured", "window"]


class ComparedRow(Struct, frozen=True):
    """One figure of every run, and against the first; intervals for times of enough passes."""

    figure: Figure
    values: tuple[Value, ...]
    ratios: tuple[float | None, ...]
    intervals: tuple[Interval | None, ...]
    ratio_intervals: tuple[Interval | None, ...]
    significant: tuple[bool | None, ...]  # differs from the first, beyond noise if there is any; None: unknown

    def within_noise(self, index: int) -> bool:
        """Noise explains the difference between the run at `index` and the first."""
        return self.figure.noise == "repeats" and self.significant[index] is False

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self.figure, name) for name in ("id", "group", "label", "unit")},
            "values": list(self.values),
            "ratios": list(self.ratios),
            "noise": self.figure.noise,
            "intervals": [item and to_builtins(item) for item in self.intervals],
            "ratio_intervals": [item and to_builtins(item) for item in self.ratio_intervals],
            "significant": list(self.significant),
        }


def compared_rows(reports: Sequence[Report]) -> tuple[ComparedRow, ...]:
    """Every compared figure of every report, with ratios to the first."""
    return tuple(_compared(figure, reports) for figure in COMPARED.values())


def _compared(figure: Figure, reports: Sequence[Report]) -> ComparedRow:
    values = tuple(figure.value(report) for report in reports)
    numbers = [None if isinstance(value, str) else value for value in values]
    intervals = (None, *(interval_of_ratio(figure, reports[0], report) for report in reports[1:]))
    ratios = [per(number, numbers[0]) for number in numbers]
    for place, report in enumerate(reports[1:], start=1):
        pairs = in_rounds(figure, reports[0], report)
        if pairs is not None and (ratio := paired_ratio(pairs[1], pairs[0])) is not None:
            ratios[place] = ratio
    differs = [significant(interval) for interval in intervals]
    if figure.noise == "exact":
        differs[1:] = [None if None in (number, numbers[0]) else number != numbers[0] for number in numbers[1:]]
    return ComparedRow(
        figure=figure,
        values=values,
        ratios=tuple(ratios),
        intervals=tuple(median_interval(figure.samples(report)) for report in reports),
        ratio_intervals=intervals,
        significant=tuple(differs),
    )


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
    paired: bool = False
    rounds: int = 0  # that were compared, or pairs of passes of other runs
    significant: bool | None = None  # the total differs from 0 beyond noise; None: unknown
    causes: tuple[str, ...] = ()
    intervals: dict[str, Interval] = field(default_factory=dict)  # by part, ns
    wall_interval: Interval | None = None  # ns
    within_noise_ns: int = 0  # sum of the parts whose interval holds 0
    # how much longer or shorter equal work took in a separate capture: a ratio minus 1; None: paired, or none is equal
    drift_ratio: float | None = None
    doubts: tuple[str, ...] = ()  # why the times are not reliable


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
