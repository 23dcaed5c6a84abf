"""Figures of several reports side by side."""

from __future__ import annotations

from collections.abc import Sequence

from molprof.analysis.compare.model import ComparedRow
from molprof.analysis.compare.statistics import median_interval, ratio_interval, significant
from molprof.analysis.figures.catalog import COMPARED
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report
from molprof.common.values import Value, per


def compared_rows(reports: Sequence[Report]) -> tuple[ComparedRow, ...]:
    """Every compared figure of every report, with ratios to the first."""
    return tuple(_compared(figure, reports) for figure in COMPARED.values())


def _compared(figure: Figure, reports: Sequence[Report]) -> ComparedRow:
    values = [figure.value(report) for report in reports]
    samples = [figure.samples(report) for report in reports]
    intervals = [None, *(ratio_interval(mine, samples[0]) for mine in samples[1:])]
    if figure.noise == "exact":
        differs = [None, *(_differs(value, values[0]) for value in values[1:])]
    else:
        differs = [significant(interval) for interval in intervals]
    return ComparedRow(
        figure=figure,
        values=tuple(values),
        ratios=tuple(_number_ratio(value, values[0]) for value in values),
        intervals=tuple(median_interval(mine) for mine in samples),
        ratio_intervals=tuple(intervals),
        significant=tuple(differs),
    )


def _differs(value: Value, first: Value) -> bool | None:
    if value is None or first is None or isinstance(value, str) or isinstance(first, str):
        return None
    return value != first


def _number_ratio(value: Value, first: Value) -> float | None:
    if isinstance(value, str) or isinstance(first, str):
        return None
    return per(value, first)
