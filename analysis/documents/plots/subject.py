"""What a figure shows: reports with distinct labels and the differences between several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from molprof.analysis.compare import Comparison, compare, run_labels
from molprof.analysis.compare.model import Difference, TraceDifference
from molprof.analysis.figures import Report
from molprof.common.errors import TraceError

T = TypeVar("T")


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


class NotRecordedError(TraceError):
    """The traces, or the results of a benchmark, lack what a figure shows."""

    def __init__(self, what: str, hint: str = "molprof report TRACE shows what a trace holds") -> None:
        super().__init__(f"not recorded: {what}", hint)


def subject_of(item: Report | Comparison | Sequence[Report], anyway: bool = False) -> Subject:
    """The subject of figures. Raises NotComparableError for runs of unlike work, unless `anyway`."""
    if isinstance(item, Report):
        return Subject(run_labels([item]), (item,), (), ())
    if isinstance(item, Comparison):
        return Subject(item.labels, item.runs, item.differences, item.trace_differences)
    return subject_of(item[0] if len(item) == 1 else compare(item, anyway=anyway))
