"""A comparison as a document: the runs side by side, then where the difference lies, then the predictions."""

from __future__ import annotations

from itertools import groupby

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.model import ComparedRow, Prediction
from molprof.analysis.render.difference import difference_sections
from molprof.analysis.render.document import Column, Document, Section
from molprof.analysis.render.values import NOT_RECORDED, by_unit
from molprof.analysis.render.verdict import comparison_verdict

# More do not fit beside the labels and the first run.
_OTHERS_PER_TABLE = 3


def comparison_document(comparison: Comparison) -> Document:
    """The document; more than four runs go into several tables, each beginning with the first run."""
    others = range(1, len(comparison.runs))
    chunks = [others[start : start + _OTHERS_PER_TABLE] for start in range(0, len(others), _OTHERS_PER_TABLE)]
    sections = [Section("", notes=comparison_verdict(comparison))]
    for chunk in chunks:
        for group, rows in groupby(comparison.rows, key=lambda row: row.group):
            sections.append(_group(comparison, group, list(rows), chunk))
    sections.extend(difference_sections(comparison))
    sections.append(_predictions(comparison))
    title = f"molprof compare: {len(comparison.runs)} runs, ratios to {comparison.labels[0]}"
    return Document(title, tuple(sections))


def _group(comparison: Comparison, group: str, rows: list[ComparedRow], chunk: range) -> Section:
    labels = comparison.labels
    columns = (Column("", "left"), Column(labels[0]), *(Column(labels[index]) for index in chunk))
    cells = [
        [
            row.label,
            by_unit(row.unit, row.values[0]),
            *(by_unit(row.unit, row.values[index]) for index in chunk),
        ]
        for row in rows
    ]
    for place, index in enumerate(chunk, 2):
        ratios = [_ratio(row.ratios[index]) for row in rows]
        size = max(len(ratio) for ratio in ratios)
        for row, line, ratio in zip(rows, cells, ratios, strict=True):
            # A ratio stands in the run's own cell, at its right edge, so that values stay aligned.
            if line[place] != NOT_RECORDED and row.unit != "text":
                line[place] = f"{line[place]} {ratio:>{size}}" if size else line[place]
    return Section(group, columns, tuple(tuple(line) for line in cells))


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}x" if ratio < 100 else f"{ratio:,.0f}x"


def _predictions(comparison: Comparison) -> Section:
    compared = list(comparison.predictions[0].figures) if comparison.predictions else []
    columns = (Column("", "left"), Column("verdict", "left"), *(Column(label) for label in compared))
    title = "Predictions: LLaMA, against Qwen, has" if not compared else f"Predictions: {compared[0]} has"
    if not compared:
        need = "no verdict: it takes a LLaMA and a Qwen run, both with a processor or both without"
        return Section(title, columns, (), (need,))
    rows = tuple(_prediction(item) for item in comparison.predictions)
    return Section(title, columns, rows)


def _prediction(item: Prediction) -> tuple[str, ...]:
    return (item.text, item.verdict, *(by_unit(item.unit, figure) for figure in item.figures.values()))
