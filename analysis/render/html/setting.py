"""Environment and settings of the runs side by side; what differs stands out."""

from __future__ import annotations

from collections.abc import Sequence

from molprof.analysis.figures.model import Report
from molprof.analysis.figures.settings import SETTINGS
from molprof.analysis.render.html.tables import PageCell, PageTable
from molprof.common.values import by_unit


def setting_table(labels: Sequence[str], reports: Sequence[Report]) -> PageTable:
    """One row for each setting that any report has, one column for each report."""
    found = [(figure, [figure.value(report) for report in reports]) for figure in SETTINGS]
    found = [(figure, values) for figure, values in found if any(value is not None for value in values)]
    marked = frozenset(
        index for index, (figure, values) in enumerate(found) if figure.role != "measure" and len(set(values)) > 1
    )
    notes = ("what differs is marked",) if len(reports) > 1 else ()
    lines = tuple(
        (PageCell(figure.label, figure.label), *(PageCell(by_unit(figure.unit, value), value) for value in values))
        for figure, values in found
    )
    columns = (("setting", False), *((label, False) for label in labels))
    return PageTable("Environment and settings", columns, lines, notes, marked)
