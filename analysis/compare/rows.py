"""Figures of several runs side by side, and the ratio of each to the first.

Computed here only: tables, causes, verdicts, thresholds and predictions read these rows. One estimate stands for the
times of a run wherever they are compared, so ratios, differences and their parts follow from the times beside them:
runs of one capture are compared round by round, by the means of their passes; other runs by their median passes, with
intervals from all ratios of a pass of one to a pass of the other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from msgspec import UNSET, Struct, to_builtins
from msgspec.structs import replace

from molprof.analysis.compare.statistics import (
    ConfidenceInterval,
    mean_interval,
    median_interval,
    paired_ratio,
    ratio_interval,
    significant,
)
from molprof.analysis.figures.catalog import COMPARED
from molprof.analysis.figures.figure import MEDIAN_PASS, Figure
from molprof.analysis.figures.model import Report, ServedTimes
from molprof.analysis.figures.requests import mean_latency, with_values
from molprof.analysis.figures.run_model import PassTimes, RepeatFigures, Run
from molprof.common.document import named
from molprof.common.values import Value, per, plain

MEANS, MEDIAN_OF_PASSES = "mean of the rounds", "median of the passes"


class ComparedRow(Struct, frozen=True):
    """One figure of every run, with its ratio to the first; times of enough passes have intervals."""

    figure: Figure
    values: tuple[Value, ...]
    ratios: tuple[float | None, ...]
    intervals: tuple[ConfidenceInterval | None, ...]
    ratio_intervals: tuple[ConfidenceInterval | None, ...]
    significant: tuple[bool | None, ...]  # differs from the first, beyond noise if there is any; None: unknown
    paired: bool = False  # times are means of rounds
    estimate: str | None = None  # which time of several passes stands for a run; None: passes do not measure it

    def within_noise(self, index: int) -> bool:
        """Return True if noise explains the difference between the run at `index` and the first."""
        return self.figure.noise == "repeats" and self.significant[index] is False

    def numbers(self, index: int) -> tuple[float | None, float | None]:
        """Return the figure of the run at `index` and of the first."""
        here, first = self.values[index], self.values[0]
        return None if isinstance(here, str) else here, None if isinstance(first, str) else first

    def factor(self, index: int) -> float:
        """Return the ratio of figures that both runs record: 1 of two zeros, infinite for a change from 0."""
        ratio, (here, first) = self.ratios[index], self.numbers(index)
        return ratio if ratio is not None else 1.0 if here == first else math.copysign(math.inf, here or 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the row as it is written to JSON."""
        figure = {name: getattr(self.figure, name) for name in ("id", "group", "label", "unit")}
        names = "values", "ratios", ("noise", "figure.noise"), "estimate", "intervals", "ratio_intervals", "significant"
        document: dict[str, Any] = plain(to_builtins(figure | named(self, *names)))
        return document


def compared_rows(reports: Sequence[Report], paired: bool = False) -> tuple[ComparedRow, ...]:
    """Return a row for every compared figure. paired: the reports are those that `by_rounds` made."""
    return tuple(compared_row(figure, reports, paired) for figure in COMPARED.values())


def compared_row(figure: Figure, reports: Sequence[Report], paired: bool = False) -> ComparedRow:
    """Return the row of one figure; `paired` as above."""
    values = tuple(figure.value(report) for report in reports)
    numbers = [None if isinstance(value, str) else value for value in values]
    passes = [figure.samples(report) for report in reports]
    intervals: list[ConfidenceInterval | None] = [None]
    for here in passes[1:]:
        if not paired:
            intervals.append(ratio_interval(here, passes[0]))
        elif figure.unit == "ns" or not all((*here, *passes[0])):
            intervals.append(paired_ratio(here, passes[0]) if here and passes[0] else None)
        else:  # a rate: the times are its reciprocals
            intervals.append(paired_ratio([1 / item for item in passes[0]], [1 / item for item in here]))
    differs = [significant(interval) for interval in intervals]
    if figure.noise == "exact":
        differs[1:] = [None if None in (number, numbers[0]) else number != numbers[0] for number in numbers[1:]]
    estimate = MEDIAN_OF_PASSES if isinstance(reports[0].served, ServedTimes) else MEDIAN_PASS
    if paired:
        figure, estimate = replace(figure, label=figure.label.replace("(median)", "(mean of rounds)")), MEANS
    return ComparedRow(
        figure=figure,
        values=values,
        ratios=tuple(per(number, numbers[0]) for number in numbers),
        intervals=tuple(map(mean_interval if paired else median_interval, passes)),
        ratio_intervals=tuple(intervals),
        significant=tuple(differs),
        paired=paired,
        estimate=estimate if figure.noise == "repeats" else None,
    )


def by_rounds(reports: Sequence[Report]) -> tuple[Report, ...] | None:
    """Return the reports with the timed passes of common rounds in one order, and the means of their times.

    None if not one capture made all runs, each once. Foreign traces have no times, and stay as they are. Passes of a
    client that took turns are rounds too.
    """
    served = [report.served for report in reports if isinstance(report.served, ServedTimes)]
    if (
        len(served) == len(reports) == len({item.run for item in served})
        and len({item.session for item in served}) == 1
    ):
        return tuple(
            replace(report, served=with_values(item, statistics.fmean))
            for report, item in zip(reports, served, strict=True)
        )
    runs = [report.run for report in reports if report.run is not None]
    sessions = [run.session for run in runs if run.session is not None]
    session_runs = {(item.id, item.run) for item in sessions}
    if reports[0].run is None or len({item.id for item in sessions}) > 1 or not 1 < len(runs) == len(session_runs):
        return None
    passes = [dict(zip(item.rounds, run.repeats, strict=False)) for item, run in zip(sessions, runs, strict=True)]
    common = [number for number in passes[0] if all(number in numbers for numbers in passes)]
    each = iter(passes)

    def of_rounds(run: Run) -> Run:
        times = next(each)
        return _mean_run(run, [times[number] for number in common])

    return tuple(report if report.run is None else replace(report, run=of_rounds(report.run)) for report in reports)


def _mean_run(run: Run, passes: Sequence[RepeatFigures]) -> Run:
    """Return the run with these timed passes alone, and the means of their times in place of medians."""
    walls_ns = [item.wall_ns for item in passes]
    phases = {
        name: replace(figures, wall_ns=_mean([item.phases_ns.get(name) for item in passes]))
        for name, figures in run.phases.items()
    }
    spread = PassTimes(_mean(walls_ns), min(walls_ns, default=None), max(walls_ns, default=None), len(walls_ns))
    return replace(run, wall_ns=spread, phases=phases, repeats=tuple(passes), latency=mean_latency(passes) or UNSET)


def _mean(times_ns: Sequence[int | None]) -> int | None:
    recorded = [item for item in times_ns if item is not None]
    return round(Fraction(sum(recorded), len(recorded))) if recorded and len(recorded) == len(times_ns) else None
