"""Figures of several reports side by side."""

from __future__ import annotations

from collections.abc import Sequence

from molprof.analysis.compare.model import ComparedRow
from molprof.analysis.compare.statistics import median_interval, ratio_interval, significant
from molprof.analysis.figures.catalog import COMPARED
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report
from molprof.common.values import per


def compared_rows(reports: Sequence[Report]) -> tuple[ComparedRow, ...]:
    """Every compared figure of every report, with ratios to the first."""
    return tuple(_compared(figure, reports) for figure in COMPARED.values())


def _compared(figure: Figure, reports: Sequence[Report]) -> ComparedRow:
    values = tuple(figure.value(report) for report in reports)
    numbers = [None if isinstance(value, str) else value for value in values]
    samples = [figure.samples(report) for report in reports]
    intervals = (None, *(ratio_interval(mine, samples[0]) for mine in samples[1:]))
    differs = [significant(interval) for interval in intervals]
    if figure.noise == "exact":
        differs[1:] = [None if None in (number, numbers[0]) else number != numbers[0] for number in numbers[1:]]
    return ComparedRow(
        figure=figure,
        values=values,
        ratios=tuple(per(number, numbers[0]) for number in numbers),
        intervals=tuple(median_interval(mine) for mine in samples),
        ratio_intervals=intervals,
        significant=tuple(differs),
    )
