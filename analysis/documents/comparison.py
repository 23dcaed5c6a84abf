"""A comparison as a document: the verdict, figures side by side, the difference, predictions, how sure it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from molprof.analysis.compare import SCHEMA, Comparison
from molprof.analysis.compare.rows import ComparedRow
from molprof.analysis.compare.statistics import LEVEL, ConfidenceInterval
from molprof.analysis.compare.thresholds import BUILT_IN, ExpectationVerdict
from molprof.analysis.documents.difference import differences
from molprof.analysis.documents.differing import compare_command, first_screen
from molprof.analysis.documents.figures import (
    compared_certificates,
    compared_figures,
    reports_of,
    settings_section,
)
from molprof.analysis.documents.findings import findings_section
from molprof.analysis.documents.questions import not_answered
from molprof.analysis.documents.report import plots_section, report_sections, warnings
from molprof.analysis.documents.runs import runs_section, told_once
from molprof.analysis.documents.verdict import comparison_verdict
from molprof.common.document import Cell, Column, Document, Field, Section, Table, table_of
from molprof.common.values import Unit, counted


def comparison_document(comparison: Comparison) -> Document:
    """Return the document; findings and the tables of each report are for pages alone."""
    first, *others = comparison.labels
    reports = reports_of(comparison)
    of_molecules = any(report.given.molecules or (report.run and report.run.of_molecules) for report in comparison.runs)
    return Document(
        f"molprof compare: {others[0] if len(others) == 1 else f'{len(others)} runs'} against {first}",
        (
            *compared_certificates(reports),
            plots_section(reports),
            replace(findings_section(reports), page_only=True),
            settings_section(reports),
            compared_figures(comparison),
            *differences(comparison),
            *_predictions(comparison, of_molecules),
            *_confidence(comparison),
            *(replace(section, page_only=True) for section in report_sections(reports)),
        ),
        lambda: {**comparison.to_json(), "not_answered": [not_answered(report) for report in comparison.runs]},
        lambda: _records(comparison),
        told_once(reports.labels, warnings(reports)),
        comparison_verdict(comparison),
        (*first_screen(comparison, reports), *_predictions(comparison, built_in=False), _next(comparison)),
        lead=runs_section(comparison),
    )


def groups_document(groups: Sequence[tuple[str, Comparison]]) -> Document:
    """Return several comparisons, each named by what its runs share: one table of all, then each in full."""
    documents = [(name, comparison_document(item)) for name, item in groups]
    rows: list[tuple[str | Cell, ...]] = [
        (name if index == 0 else "", label, *(cell for row in (item.wall, item.tokens) for cell in _cells(row, index)))
        for name, item in groups
        for index, label in enumerate(item.labels)
    ]
    titles = [Column("equal"), Column("run"), Column("total time", "number"), Column("ratio", "factor", joined=True)]
    titles += [Column("time per token", "number"), Column("ratio", "factor", joined=True)]
    table = Section("Groups", ("ratios are to the first run of each group",), Table(tuple(titles), rows, keys=2))
    return Document(
        f"molprof compare: {counted(len(groups), 'group')} of runs that differ in one option",
        (
            table,
            *(
                Section(name, item.summary, parts=(*([item.lead] if item.lead else ()), *item.sections))
                for name, item in documents
            ),
        ),
        lambda: {"schema": SCHEMA, "groups": [{"group": name, **item.to_json()} for name, item in groups]},
        lambda: _group_records(groups),
        tuple(dict.fromkeys(text for _, item in documents for text in item.warnings)),
        screen=(
            table,
            *(Section(name, item.summary) for name, item in documents),
            Section("Next", tuple(dict.fromkeys(_next(item).notes[0] for _, item in groups))),
        ),
    )


def _cells(row: ComparedRow, index: int) -> tuple[Cell, Cell]:
    """Return the cells of a run: its value, and its ratio to the first."""
    ratio = row.ratios[index] if index else None
    return Cell(row.values[index], row.figure.unit), Cell(ratio or "", "factor", noise=row.within_noise(index))


def _group_records(groups: Sequence[tuple[str, Comparison]]) -> Table:
    """Return a row for each figure of each run."""
    titles = tuple(map(Column, ("group", "run", "id", "unit", "value", "ratio")))
    return Table(titles, [
        (name, label, row.figure.id, row.figure.unit, row.values[index], row.ratios[index])
        for name, item in groups
        for index, label in enumerate(item.labels)
        for row in item.rows
    ])  # fmt: skip


def _next(comparison: Comparison) -> Section:
    runs = comparison.runs
    again = compare_command([report.trace.path for report in runs])
    by_kernel = len(runs) == 2 and len({report.counts.kernels > 0 for report in runs}) == 1
    return Section("Next", (f"{again} --all", *([f"{again} --by kernel"] if by_kernel else [])))


def _records(comparison: Comparison) -> Table:
    """Return one row per figure: a column per run, then each run's ratio to the first."""
    labels = comparison.labels
    titles = ("id", "unit", *labels, *(f"{label} ratio" for label in labels[1:]))
    rows = [(row.figure.id, row.figure.unit, *row.values, *row.ratios[1:]) for row in comparison.rows]
    return Table(tuple(map(Column, titles)), rows)


def _predictions(comparison: Comparison, built_in: bool) -> Iterator[Section]:
    """Yield one section of predictions per pair of runs, and one for those without a pair."""
    built_in_ids = {item.id for item in BUILT_IN} if not built_in else ()
    shown = [item for item in comparison.predictions if item.id not in built_in_ids]
    for compared, items in groupby(shown, key=lambda item: tuple(item.figures)):
        verdicts = list(items)
        if not compared:
            yield Section("Predictions without runs to compare", _reasons(verdicts))
            continue
        table = table_of(
            verdicts,
            ("expected of the first", "text", _expected), ("verdict", "text"), *map(_figure_of, compared),
            ("ratio", "factor"),
            missing="-",
        )  # fmt: skip
        yield Section(f"Predictions: {compared[0]} against {compared[-1]}", _reasons(verdicts), table)


def _figure_of(label: str) -> Field:
    return label, "number", lambda item: Cell(item.figures[label], item.unit)


def _expected(item: ExpectationVerdict) -> str:
    return item.text if item.bound == 1 else f"{item.text} ({item.direction} than {item.bound:g}x)"


def _reasons(items: Iterable[ExpectationVerdict]) -> tuple[str, ...]:
    """Return why there is no verdict, one line per reason."""
    texts: dict[str, list[str]] = {}
    for item in items:
        if item.reason is not None:
            texts.setdefault(item.reason, []).append(item.text)
    return tuple(f"{', '.join(predictions)}: {reason}" for reason, predictions in texts.items())


def _confidence(comparison: Comparison) -> Iterator[Section]:
    """Yield the section on how far noise explains the times, and on other doubts."""
    wall = comparison.wall
    figures: list[tuple[str, Unit, Sequence[ConfidenceInterval | None]]] = [
        ("total time", "ns", wall.intervals), ("ratio", "factor", wall.ratio_intervals),
    ]  # fmt: skip
    rows = [
        (f"{what} of {label}", Cell((item.low, item.high), unit), item.level)
        for what, unit, intervals in figures
        for label, item in zip(comparison.labels, intervals, strict=True)
        if item is not None
    ]
    note = (
        f"~: the confidence interval of the ratio, from all timed passes, contains 1 ({100 * LEVEL:.0f} % where "
        "there are enough passes). Counts are the same in every pass. GPU times are measured once, in the "
        "recorded steps."
    )
    notes = (*comparison.notes, *((note,) if rows else ()))
    columns = (Column("figure"), Column("interval", "number"), Column("confidence", "ratio"))
    if notes:
        yield Section("Confidence and notes", notes, Table(columns, rows))
