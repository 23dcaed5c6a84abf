"""What a comparison holds, and its JSON: `compare --format json` is `Comparison.to_json()`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from molprof.analysis.compare.statistics import Interval
from molprof.analysis.metrics import Report
from molprof.analysis.metrics.model import Cell

SCHEMA = 1

Verdict = Literal["confirmed", "refuted", "not significant", "not recorded"]
Direction = Literal["lower", "higher"]
Noise = Literal["repeats", "once", "exact"]
Unit = Literal["ns", "ratio", "count", "number", "text"]


@dataclass(frozen=True)
class ComparedRow:
    """One figure of every run.

    Attributes:
        unit: ns; ratio (1 = all); count (integer); number (with decimals); text.
        values: one per run, None where not recorded.
        ratios: each value over the first run's; None for text, if one is not recorded or the first 0.
        noise: repeats, a time of unprofiled passes; once, measured in the recorded steps alone; exact, a count,
            which is the same in every pass.
        intervals: of each run's median, for noise `repeats` with enough of them; else None.
        ratio_intervals: of each ratio, as above; None for the first run.
        significant: whether a run differs from the first: beyond noise, or at all for noise `exact`. None for the first
            run, for noise `once`, and where too few repeats or what is not recorded leave it open.
    """

    id: str
    group: str
    label: str
    unit: Unit
    values: tuple[Cell, ...]
    ratios: tuple[float | None, ...]
    noise: Noise
    intervals: tuple[Interval | None, ...]
    ratio_intervals: tuple[Interval | None, ...]
    significant: tuple[bool | None, ...]


@dataclass(frozen=True)
class Difference:
    """Unprofiled median wall time of a run minus the first run's, as parts that add up to it.

    Attributes:
        parts: by group of phases, ns; positive where the run takes longer than the first.
        residual_ns: what no part accounts for; residual_ratio: the same over |wall_ns|, None where that is 0.
    """

    wall_ns: int
    parts: dict[str, int]
    residual_ns: int
    residual_ratio: float | None


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
    """Two or more runs, each against the first; `notes` say what to keep in mind, one line each."""

    schema: int
    labels: tuple[str, ...]
    runs: tuple[Report, ...]
    rows: tuple[ComparedRow, ...]
    differences: tuple[Difference | None, ...]
    predictions: tuple[Prediction, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready dicts and lists; `difference` is one object for two runs, else a list."""
        differences = [None if item is None else asdict(item) for item in self.differences]
        return {
            "schema": self.schema,
            "labels": list(self.labels),
            "runs": [run.to_json() for run in self.runs],
            "rows": [
                {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(row).items()}
                for row in self.rows
            ],
            "difference": differences[0] if len(differences) == 1 else differences,
            "predictions": [asdict(prediction) for prediction in self.predictions],
            "notes": list(self.notes),
        }
