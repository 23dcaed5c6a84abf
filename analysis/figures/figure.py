"""A figure of a report, declared once: reports, comparisons, thresholds, predictions and pages read it from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import RepeatFigures, Run
from molprof.analysis.figures.tables import TableQuery
from molprof.common.values import Cell, Unit

Noise = Literal["repeats", "once", "exact"]
Role = Literal["measure", "subject", "setting", "work"]


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        id: name in JSON, CSV, `--fail-if` and predictions; never changes.
        group: heading that the figure stands under.
        value: reads it from a report; None: not recorded.
        repeat: the same figure of one timed pass; None for a figure that passes do not measure.
        once: measured in the recorded steps only, so its variation is unknown.
        role: `measure`; `subject`: what runs are compared for, such as the model; `setting`: a difference in it that
            `compare` names; `work`: runs that differ in it are not comparable. The page marks what differs, except
            measures.
        tables: read into the report for this figure; empty in a stored report that lacks them.
        compared: a row of comparisons, and a metric of `--fail-if` and predictions; others belong to one report.
    """

    id: str
    group: str
    label: str
    unit: Unit
    value: Callable[[Report], Cell]
    repeat: Callable[[Run, RepeatFigures], float | None] | None = None
    once: bool = False
    role: Role = "measure"
    tables: tuple[TableQuery, ...] = ()
    compared: bool = True

    @property
    def noise(self) -> Noise:
        """How its variation is known: from timed passes, not at all, or not needed because counts do not vary."""
        return "repeats" if self.repeat is not None else "once" if self.once else "exact"

    def samples(self, report: Report) -> list[float]:
        """The figure of each timed pass; empty where one lacks it."""
        if self.repeat is None or report.run is None:
            return []
        values = [self.repeat(report.run, repeat) for repeat in report.run.repeats]
        known = [value for value in values if value is not None]
        return known if len(known) == len(values) else []


def of_run(value: Callable[[Run], Cell]) -> Callable[[Report], Cell]:
    """A figure of the run; not recorded in a foreign trace."""
    return lambda report: None if report.run is None else value(report.run)


def of_gpu(value: Callable[[Report], Cell]) -> Callable[[Report], Cell]:
    """A figure of the trace's GPU calls or work; not recorded where the trace has neither."""
    return lambda report: value(report) if report.trace.gpu_recorded else None
