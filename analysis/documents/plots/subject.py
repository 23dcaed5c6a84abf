"""What plots of traces show: reports with distinct labels and the differences between several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from molprof.analysis.compare import Comparison, compare, run_labels
from molprof.analysis.compare.model import Difference, TraceDifference
from molprof.analysis.documents.plots import PLOTS, plot_section
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import StepTime
from molprof.common.document import Section

T = TypeVar("T")
_BAND = "; the band holds the middle 80 %"
_GPU = "phases and calls on the host, below them the GPU work that they started. Gaps in a GPU's row are idle time"
_NO_GPU = "phases and operators on the host. No GPU work is recorded"


class Subject(Struct, frozen=True):
    """One report or several, and how each but the first differs from it."""

    labels: tuple[str, ...]
    reports: tuple[Report, ...]
    differences: tuple[Difference | None, ...]  # None: no unprofiled times
    trace_differences: tuple[TraceDifference | None, ...]  # of recorded device time, without unprofiled times

    def of_each(self, value: Callable[[Report], T | None]) -> list[tuple[str, T]]:
        """Label and value of each report that has one, neither None nor empty."""
        found = [(label, value(report)) for label, report in zip(self.labels, self.reports, strict=True)]
        return [(label, item) for label, item in found if item]

    def step_times(self) -> list[tuple[str, tuple[StepTime, ...]]]:
        """The unprofiled times of decode steps, for each run that has any."""
        return self.of_each(lambda report: None if report.run is None else report.run.step_times[1:])  # no prefill


def subject_of(item: Report | Comparison | Sequence[Report], anyway: bool = False) -> Subject:
    """The subject of plots. Raises NotComparableError for runs of unlike work, unless `anyway`."""
    if isinstance(item, Report):
        return Subject(run_labels([item]), (item,), (), ())
    if isinstance(item, Comparison):
        return Subject(item.labels, item.runs, item.differences, item.trace_differences)
    return subject_of(item[0] if len(item) == 1 else compare(item, anyway=anyway))


def is_spread(points: Sequence[StepTime]) -> bool:
    """Whether steps were timed more than once, which gives a band."""
    return any(point.high_ns > point.low_ns for point in points)


def plot_sections(subject: Subject) -> Section:
    """Every plot, in the order in which they explain the summary; the waterfall only where there are two runs."""
    has_gpu = any(report.trace.gpu_recorded for report in subject.reports)
    runs = [report.run for report in subject.reports if report.run is not None]
    plain = bool(runs) and not any(run.of_molecules for run in runs)  # prompts have no coordinates
    band = _BAND if any(is_spread(points) for _, points in subject.step_times()) else ""
    kinds = [
        kind for kind in PLOTS if (kind != "waterfall" or len(subject.reports) > 1) and (kind != "drift" or not plain)
    ]
    return plot_section(kinds, subject, band=band, shown=_GPU if has_gpu else _NO_GPU)
