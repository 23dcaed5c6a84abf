"""Every figure and every table, in the order in which they are shown."""

from __future__ import annotations

from molprof.analysis.figures.figure import Figure, TableQuery
from molprof.analysis.figures.kernels import COUNTERS, KERNELS, LAUNCHES, WORK
from molprof.analysis.figures.model import FigureTable, Report
from molprof.analysis.figures.requests import LATENCY, of_served
from molprof.analysis.figures.settings import SETTINGS
from molprof.analysis.figures.tables import TABLES as SHARED
from molprof.analysis.figures.times import MASKING, TIMES, TOKENS

_OF_RUNS = (*SETTINGS, *TIMES, *LATENCY, *TOKENS)
FIGURES: tuple[Figure, ...] = (
    *map(of_served, _OF_RUNS),
    *(*LAUNCHES, *KERNELS, *WORK, *COUNTERS, *map(of_served, MASKING)),
)
# Those that comparisons show, by id.
COMPARED = {figure.id: figure for figure in FIGURES if figure.compared}
# Metrics of --fail-if and predictions, by id.
METRICS = {name: figure for name, figure in COMPARED.items() if figure.unit != "text"}
# Tables by name, those of single figures last.
TABLES: dict[str, TableQuery] = {
    table.name: table for table in (*SHARED, *(table for figure in FIGURES for table in figure.tables))
}


def shown_tables(report: Report) -> list[FigureTable]:
    """Return the tables of a report that have rows for people."""
    return [table for table in report.tables if table.rows and table.title]
