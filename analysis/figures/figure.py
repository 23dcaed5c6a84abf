"""A figure of a report, declared once: reports, comparisons, thresholds, predictions and pages read it from here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from molprof.analysis.figures.certificate.model import Group
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import RepeatFigures, Run, RunTotal
from molprof.analysis.figures.tables import TableQuery
from molprof.common.values import Unit, Value

Noise = Literal["repeats", "once", "exact"]
Role = Literal["measure", "subject", "setting", "work"]
# The number of recorded steps, in figures' own SQL.
STEPS_SQL = "(SELECT SUM(steps) FROM molprof_step_launch_summary WHERE steps > 0)"


class Figure(Struct, frozen=True):
    """One figure.

    A `setting` is a difference that `compare` names, a `subject` what runs are compared for, such as the model. Runs
    that differ in their `work` are not comparable. Pages mark what differs, except measures.
    """

    id: str  # name in JSON, CSV, `--fail-if` and predictions; never changes
    group: str  # heading that the figure stands under
    label: str
    unit: Unit
    value: Callable[[Report], Value]  # reads it from a report; None: not recorded
    # The query whose result it is, or that it is worked out from; None: the file or its manifest gives it.
    sql: str | Callable[[Report], str] | None = None
    rests_on: tuple[Group, ...] = ()  # groups of the certificate; none: on the file and its manifest alone
    repeat: Callable[[Run, RepeatFigures], float | None] | None = None  # of one timed pass, where they measure it
    once: bool = False  # measured in the recorded steps only, so its variation is unknown
    role: Role = "measure"
    tables: tuple[TableQuery, ...] = ()  # read for this figure; a stored report may lack them
    total: Callable[[Report], RunTotal | None] | None = None  # the estimate that it is the value of
    compared: bool = True  # in comparisons, --fail-if and predictions
    of_molecules: bool = False  # not shown of runs of plain-text prompts, where it means nothing
    usual: Value = None  # a setting's default: one that all runs have is not shown
    stands_in: bool = False  # for a figure that a trace lacks (`without_gpu`, `--tokens`), so that it is not missed

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


def of_run(value: Callable[[Run], Value]) -> Callable[[Report], Value]:
    """A figure of the run; not recorded in a foreign trace."""
    return lambda report: None if report.run is None else value(report.run)


def of_gpu(value: Callable[[Report], Value]) -> Callable[[Report], Value]:
    """A figure of the trace's GPU calls or work; not recorded where the trace has neither."""
    return lambda report: value(report) if report.trace.gpu_recorded else None


def without_gpu(value: Callable[[Report], Value]) -> Callable[[Report], Value]:
    """A figure that stands in for one of the GPU; None where the trace has GPU calls or work."""
    return lambda report: None if report.trace.gpu_recorded else value(report)
