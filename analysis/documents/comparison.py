"""A comparison as a document: figures side by side, where the difference lies, predictions, how sure it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.model import Prediction
from molprof.analysis.compare.statistics import LEVEL
from molprof.analysis.documents.difference import difference_sections
from molprof.analysis.documents.figures import compared_figures, settings_section
from molprof.analysis.documents.findings import findings_section
from molprof.analysis.documents.report import report_sections, warnings
from molprof.analysis.documents.rows import Reports
from molprof.analysis.documents.verdict import comparison_verdict
from molprof.analysis.plots import subject_of
from molprof.analysis.plots.sections import plot_sections
from molprof.common.document import Cell, Column, Document, Section, Table


def comparison_document(comparison: Comparison) -> Document:
    """The document; findings and the tables of each report are for pages alone."""
    labels = comparison.labels
    reports = Reports(labels, comparison.runs)
    return Document(
        f"molprof compare: {', '.join(labels[1:])} against {labels[0]}",
        (
            plot_sections(subject_of(comparison)),
            replace(findings_section(reports), page_only=True),
            settings_section(labels, comparison.runs),
            compared_figures(comparison),
            *difference_sections(comparison),
            *_predictions(comparison),
            *_confidence(comparison),
            *(replace(section, page_only=True) for section in report_sections(reports)),
        ),
        comparison.to_json,
        lambda: _records(comparison),
        warnings(reports),
        comparison_verdict(comparison),
    )


def _records(comparison: Comparison) -> Table:
    """One row per figure, one column per run, then each run's ratio to the first."""
    labels = comparison.labels
    titles = ("id", "unit", *labels, *(f"{label} ratio" for label in labels[1:]))
    rows = [(row.figure.id, row.figure.unit, *row.values, *row.ratios[1:]) for row in comparison.rows]
    return Table(tuple(map(Column, titles)), rows)


def _predictions(comparison: Comparison) -> Iterator[Section]:
    """One section per pair of runs, and one for what has no pair."""
    for compared, items in groupby(comparison.predictions, key=lambda item: tuple(item.figures)):
        found = list(items)
        if not compared:
            yield Section("Predictions without runs to compare", _reasons(found))
            continue
        columns = (
            Column("expected of the first"), Column("verdict"), *(Column(label, "number") for label in compared),
            Column("ratio", "factor"),
        )  # fmt: skip
        rows = [
            (_expected(item), item.verdict, *(Cell(value, item.unit) for value in item.figures.values()), item.ratio)
            for item in found
        ]
        yield Section(
            f"Predictions: {compared[0]} against {compared[-1]}", _reasons(found), Table(columns, rows, missing="-")
        )


def _expected(item: Prediction) -> str:
    return item.text if item.bound == 1 else f"{item.text} ({item.direction} than {item.bound:g}x)"


def _reasons(items: Iterable[Prediction]) -> tuple[str, ...]:
    """Why there is no verdict, once for all predictions of one reason."""
    texts: dict[str, list[str]] = {}
    for item in items:
        if item.reason is not None:
            texts.setdefault(item.reason, []).append(item.text)
    return tuple(f"{', '.join(found)}: {reason}" for reason, found in texts.items())


def _confidence(comparison: Comparison) -> list[Section]:
    """How far chance explains the times, and what else to keep in mind."""
    row = next(row for row in comparison.rows if row.figure.id == "wall_ns")
    rows = [
        (f"total time of {label}", Cell((item.low, item.high), "ns"), item.level)
        for label, item in zip(comparison.labels, row.intervals, strict=True)
        if item is not None
    ] + [
        (f"ratio of {label}", Cell((item.low, item.high), "factor"), item.level)
        for label, item in zip(comparison.labels, row.ratio_intervals, strict=True)
        if item is not None
    ]
    notes = comparison.notes
    if rows:
        notes += (
            f"~: the confidence interval of the ratio, from all timed passes, contains 1 ({100 * LEVEL:.0f} % where "
            "there are enough passes). Counts are the same in every pass. GPU times are measured once, in the "
            "recorded steps.",
        )
    columns = (Column("figure"), Column("interval", "number"), Column("confidence", "ratio"))
    return [Section("Confidence and notes", notes, Table(columns, rows))] if notes else []
