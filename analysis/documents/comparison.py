"""A comparison as a document: the runs side by side, then where the difference lies, then the predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.model import ComparedRow, Prediction
from molprof.analysis.compare.statistics import LEVEL, Interval
from molprof.analysis.documents.difference import difference_sections
from molprof.analysis.documents.verdict import comparison_verdict
from molprof.common.document import PAIR, Column, Document, Section
from molprof.common.values import NOT_RECORDED, by_unit, time_text

# More do not fit beside the labels and the first run.
_OTHERS_PER_TABLE = 3


def comparison_document(comparison: Comparison) -> Document:
    """The document; more than four runs go into several tables, each beginning with the first run."""
    others = range(1, len(comparison.runs))
    chunks = [others[start : start + _OTHERS_PER_TABLE] for start in range(0, len(others), _OTHERS_PER_TABLE)]
    sections = [Section("", notes=comparison_verdict(comparison))]
    shown = [row for row in comparison.rows if any(value is not None for value in row.values)]
    for chunk in chunks:
        for group, rows in groupby(shown, key=lambda row: row.figure.group):
            sections.append(_group(comparison, group, list(rows), chunk))
    sections.extend(_missing(comparison.rows))
    sections.extend(difference_sections(comparison))
    sections.extend(_predictions(comparison))
    sections.extend(_certainty(comparison))
    title = f"molprof compare: {len(comparison.runs)} runs, ratios to {comparison.labels[0]}"
    return Document(title, tuple(sections))


def _missing(rows: Iterable[ComparedRow]) -> list[Section]:
    """One line on what no trace records, a group of which nothing is recorded as one."""
    names = []
    for group, items in groupby(rows, key=lambda row: row.figure.group):
        found = list(items)
        missing = [row.figure.label.strip() for row in found if all(value is None for value in row.values)]
        if len(missing) == len(found):
            names.append(group)
        elif missing:
            names.append(f"{group} ({', '.join(missing)})")
    return [Section("", notes=(f"{NOT_RECORDED} in any of them: {'; '.join(names)}",))] if names else []


def _group(comparison: Comparison, group: str, rows: list[ComparedRow], chunk: range) -> Section:
    labels = comparison.labels
    columns = (Column("", "left"), Column(labels[0]), *(Column(labels[index]) for index in chunk))
    cells = [
        [
            row.figure.label,
            by_unit(row.figure.unit, row.values[0]),
            *(by_unit(row.figure.unit, row.values[index]) for index in chunk),
        ]
        for row in rows
    ]
    for place, index in enumerate(chunk, 2):
        ratios = ["~" if row.within_noise(index) else _ratio(row.ratios[index]) for row in rows]
        size = max(len(ratio) for ratio in ratios)
        for row, line, ratio in zip(rows, cells, ratios, strict=True):
            # A ratio stands in the run's own cell, at its right edge, so that values stay aligned.
            if line[place] != NOT_RECORDED and row.figure.unit != "text":
                line[place] = f"{line[place]} {ratio:>{size}}" if size else line[place]
    return Section(group, columns, tuple(tuple(line) for line in cells))


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}x" if ratio < 100 else f"{ratio:,.0f}x"


def _predictions(comparison: Comparison) -> list[Section]:
    """One section per pair of runs, and one for what has no pair."""
    sections = []
    for compared, items in groupby(comparison.predictions, key=lambda item: tuple(item.figures)):
        if not compared:
            sections.append(Section("Predictions without runs to compare", notes=_reasons(items)))
            continue
        columns = (Column("", "left"), Column("verdict", "left"), *map(Column, compared), Column("ratio"))
        found = list(items)
        title = f"Predictions: {compared[0]}, against {compared[-1]}, has"
        sections.append(Section(title, columns, tuple(map(_prediction, found)), _reasons(found)))
    return sections


def _reasons(items: Iterable[Prediction]) -> tuple[str, ...]:
    """Why there is no verdict, once for all predictions of one reason."""
    texts: dict[str, list[str]] = {}
    for item in items:
        if item.reason is not None:
            texts.setdefault(item.reason, []).append(item.text)
    return tuple(f"{', '.join(found)}: {reason}" for reason, found in texts.items())


def _prediction(item: Prediction) -> tuple[str, ...]:
    bounded = "" if item.bound == 1 else f" ({item.direction} than {item.bound:g}x)"
    figures = (by_unit(item.unit, figure) for figure in item.figures.values())
    return (f"{item.text}{bounded}", item.verdict, *figures, _ratio(item.ratio))


def _certainty(comparison: Comparison) -> list[Section]:
    """What is known of noise, and what else to keep in mind."""
    row = next(row for row in comparison.rows if row.figure.id == "wall_ns")
    lines = []
    for label, interval in zip(comparison.labels, row.intervals, strict=True):
        if interval is not None:
            lines.append((f"total time of {label}", _between(interval, time_text)))
    for label, interval in zip(comparison.labels, row.ratio_intervals, strict=True):
        if interval is not None:
            lines.append((f"ratio of {label}", _between(interval, _ratio)))
    notes = list(comparison.notes)
    if lines:
        notes.append(
            f"~: the interval of the ratio, from all repeats, holds 1 (level {100 * LEVEL:.0f} % where they reach it). "
            "Counts are the same in every pass. GPU times are measured once, in the recorded steps"
        )
    if not notes:
        return []
    return [Section("How sure, and what to keep in mind", PAIR, tuple(lines), tuple(notes))]


def _between(interval: Interval, text: Callable[[float], str]) -> str:
    return f"{text(interval.low)} to {text(interval.high)} ({100 * interval.level:.0f} %)"
