"""One report or several side by side: their figures and settings, and tables whose first column names the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from molprof.analysis.compare import Comparison
from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import FIGURES
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.run_model import Run
from molprof.analysis.figures.settings import SETTINGS
from molprof.common.document import Cell, Column, Field, Row, Section, Table, columns, values
from molprof.common.values import Value


class Reports(Struct, frozen=True):
    labels: tuple[str, ...]
    reports: tuple[Report, ...]

    @property
    def of_prompts(self) -> bool:
        return of_prompts(self.reports)

    def table(
        self,
        items: Callable[[Report], Iterable[Any]],
        *fields: Field,
        missing: str = "-",
        marked: Callable[[Any], bool] = lambda item: False,
    ) -> Table:
        """A row for each item of each report."""
        several = len(self.reports) > 1
        found = [
            (label, item) for label, report in zip(self.labels, self.reports, strict=True) for item in items(report)
        ]
        rows = values((item for _, item in found), *fields)
        places = frozenset(place for place, (_, item) in enumerate(found) if marked(item))
        heads = columns(*fields)
        if several:
            heads = (Column("run"), *heads)
            rows = [(label, *row) for (label, _), row in zip(found, rows, strict=True)]
        return Table(heads, rows, places, keys=1 + several, missing=missing)

    def of_runs(self, items: Callable[[Run], Iterable[Any] | None], *fields: Field) -> Table:
        """A row for each item of each run."""
        return self.table(lambda report: (report.run and items(report.run)) or (), *fields)

    def notes(self, lines: Callable[[Report], Iterable[str]]) -> tuple[str, ...]:
        """The lines of every report, of several each after its label."""
        return tuple(
            f"{label}: {line}" if len(self.reports) > 1 else line
            for label, report in zip(self.labels, self.reports, strict=True)
            for line in lines(report)
        )


def of_prompts(reports: Iterable[Report]) -> bool:
    """Whether some are of runs, and all of these of plain-text prompts."""
    runs = [report.run for report in reports if report.run is not None]
    return bool(runs) and not any(run.of_molecules for run in runs)


def _worded(figure: Figure, plain: bool) -> Figure:
    """The figure; of runs of prompts (`plain`) its label has no word of molecules."""
    return replace(figure, label=figure.label.replace("molecule", "prompt")) if plain else figure


def report_figures(label: str, report: Report) -> Section:
    columns = (Column("figure"), Column(label, "number"))
    rows = ((figure, [Cell(figure.value(report), figure.unit)]) for figure in FIGURES)
    return _section(columns, rows, (), of_prompts([report]))


def figure_values(report: Report) -> dict[str, Value]:
    """Each figure by its id; None: not recorded."""
    return {figure.id: figure.value(report) for figure in FIGURES}


def compared_figures(comparison: Comparison) -> Section:
    """The figures of every run, with ratios to the first."""
    columns = [Column("figure"), Column(comparison.labels[0], "number")]
    for label in comparison.labels[1:]:
        columns += [Column(label, "number"), Column("ratio", "factor", joined=True)]
    rows = []
    for row in comparison.rows:
        cells = [Cell(row.values[0], row.figure.unit)]
        for place, (value, ratio) in enumerate(zip(row.values[1:], row.ratios[1:], strict=True), 1):
            cells.append(Cell(value, row.figure.unit))
            cells.append(Cell("" if ratio is None else ratio, "factor", noise=row.within_noise(place)))
        rows.append((row.figure, cells))
    return _section(tuple(columns), rows, ('"-": not recorded',), of_prompts(comparison.runs))


def _section(
    columns: tuple[Column, ...], rows: Iterable[tuple[Figure, Sequence[Cell]]], notes: tuple[str, ...], plain: bool
) -> Section:
    """A table for each group but the settings; what no trace records, in a line. `plain`: no word of molecules."""
    rows = [
        (_worded(figure, plain), cells)
        for figure, cells in rows
        if figure not in SETTINGS and not (plain and figure.of_molecules)
    ]
    known = [(figure, cells) for figure, cells in rows if any(cell.value not in (None, "") for cell in cells)]
    rows = [row for row in rows if row in known or not row[0].stands_in]
    sections = [
        Section(group, table=Table(columns, [(figure.label, *cells) for figure, cells in found], keys=2, missing="-"))
        for group, found in groupby(known, key=lambda row: row[0].group)
    ]
    notes += _missing([figure for figure, _ in rows], [figure for figure, _ in known])
    return Section("Figures", notes, parts=tuple(sections))


def _missing(figures: Sequence[Figure], known: Sequence[Figure]) -> tuple[str, ...]:
    """The figures that are not known, by group; a group of which nothing is known by its name alone."""
    texts = []
    for group, items in groupby(figures, key=lambda figure: figure.group):
        found = list(items)
        names = [figure.label.strip() for figure in found if figure not in known]
        if len(names) == len(found):
            texts.append(group)
        elif names:
            texts.append(f"{group} ({', '.join(names)})")
    return (f"not recorded: {'; '.join(texts)}",) if texts else ()


def settings_section(reports: Reports) -> Section:
    """One row for each setting that any report has, one column for each report; what differs is marked."""
    plain = reports.of_prompts
    shown = [_worded(figure, plain) for figure in SETTINGS if not (plain and figure.of_molecules)]
    found = [(figure, [figure.value(report) for report in reports.reports]) for figure in shown]
    known = [figure for figure, values in found if any(value is not None for value in values)]
    found = [(figure, values) for figure, values in found if figure in known and set(values) - {None, figure.usual}]
    marked = frozenset(
        place
        for place, (figure, values) in enumerate(found)
        if figure.role != "measure" and len(set(values) - {None}) > 1
    )
    columns = (Column("setting"), *map(Column, reports.labels))
    rows: list[Row] = [(figure.label, *(Cell(value, figure.unit) for value in values)) for figure, values in found]
    notes: tuple[str, ...] = ("rows that differ are marked",) if marked else ()
    asked = [figure for figure in shown if not figure.stands_in]
    notes += _missing(asked, known)
    return Section("Settings", notes, Table(columns, rows, marked))
