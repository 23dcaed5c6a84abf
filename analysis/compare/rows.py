"""Figures of several runs side by side, and the ratio of each to the first.

Computed here only: tables, causes, verdicts, thresholds and predictions read these rows. Runs of one capture are
compared round by round, other runs by all ratios of a pass of one to a pass of the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, to_builtins

from molprof.analysis.compare.statistics import Interval, median_interval, paired_ratio, ratio_interval, significant
from molprof.analysis.figures.catalog import COMPARED
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run
from molprof.common.values import Value, per


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

    def numbers(self, index: int) -> tuple[float | None, float | None]:
        """The figure of the run at `index` and of the first."""
        here, first = self.values[index], self.values[0]
        return None if isinstance(here, str) else here, None if isinstance(first, str) else first

    def factor(self, index: int) -> float:
        """The ratio of figures that both are recorded: 1 of two zeros, infinite for a change from 0."""
        ratio, (here, first) = self.ratios[index], self.numbers(index)
        return ratio if ratio is not None else 1.0 if here == first else math.copysign(math.inf, here or 0.0)

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
    """Every compared figure of every report."""
    return tuple(compared_row(figure, reports) for figure in COMPARED.values())


def compared_row(figure: Figure, reports: Sequence[Report]) -> ComparedRow:
    values = tuple(figure.value(report) for report in reports)
    numbers = [None if isinstance(value, str) else value for value in values]
    ratios = [per(number, numbers[0]) for number in numbers]
    intervals: list[Interval | None] = [None] * len(reports)
    for place, report in enumerate(reports[1:], start=1):
        passes = figure.samples(report), figure.samples(reports[0])
        rounds = paired_rounds(reports[0].run, report.run)
        if rounds is None:
            intervals[place] = ratio_interval(*passes)
        elif all(passes):
            here, first = (
                [samples[pair[side]] for pair in rounds] for side, samples in ((1, passes[0]), (0, passes[1]))
            )
            ratio, intervals[place] = paired_ratio(here, first)
            ratios[place] = ratios[place] if ratio is None else ratio
    differs = [significant(interval) for interval in intervals]
    if figure.noise == "exact":
        differs[1:] = [None if None in (number, numbers[0]) else number != numbers[0] for number in numbers[1:]]
    return ComparedRow(
        figure=figure,
        values=values,
        ratios=tuple(ratios),
        intervals=tuple(median_interval(figure.samples(report)) for report in reports),
        ratio_intervals=tuple(intervals),
        significant=tuple(differs),
    )


def paired_rounds(first: Run | None, other: Run | None) -> tuple[tuple[int, int], ...] | None:
    """The timed passes of each round, of the first run and of the other; None if not one capture made both runs."""
    one, two = (None if run is None else run.session for run in (first, other))
    if first is None or other is None or one is None or two is None or one.id != two.id or one.run == two.run:
        return None
    passes = dict(zip(two.rounds, range(len(other.repeats)), strict=False))
    found = zip(one.rounds, range(len(first.repeats)), strict=False)
    return tuple((place, passes[number]) for number, place in found if number in passes)
