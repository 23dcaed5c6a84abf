"""Histories of results as a document: changes with their time and settings, and a plot of each figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from molprof.analysis.documents.plots import plot_svg
from molprof.analysis.figures.catalog import METRICS
from molprof.analysis.history import SCHEMA, Change, History, differing, when_text
from molprof.common.document import Cell, Document, Field, Plot, Section, named, objects, pairs, records, table_of
from molprof.common.values import counted

_RESULT = ("time", "commit", "file", "digest", "version", "environment", "finding", "finding_title", "figures")


def history_document(histories: Sequence[History], where: str) -> Document:
    """Return all histories of a folder."""
    return Document(
        f"History of {where}",
        tuple(section for history in histories for section in _sections(history)),
        lambda: {"schema": SCHEMA, "histories": list(map(_data, histories))},
        lambda: records(_record(history.name, change) for history in histories for change in _changes(history)),
        summary=tuple(map(_summary, histories)),
    )


def _summary(history: History) -> str:
    points = dict.fromkeys(change.first for change in history.changes)
    text = f"{history.name}: {counted(len(history.entries), 'result')}, "
    if not points:
        return text + "no figure changed"
    last = history.entries[list(points)[-1]]
    figures = len({change.figure for change in history.changes})
    return text + f"{counted(figures, 'figure')} changed at {counted(len(points), 'result')}, last at {when_text(last)}"


def _sections(history: History) -> Iterator[Section]:
    entries = history.entries
    yield Section(
        history.name,
        (f"{counted(len(entries), 'result')}, {entries[0].time[:19]} to {entries[-1].time[:19]} UTC", *_notes(history)),
        table_of(
            history.changes,
            ("from", "text", lambda change: when_text(entries[change.first])),
            ("figure", "text", lambda change: METRICS[change.figure].label),
            _mean("before"), _mean("after"), ("change", "change_ratio", "ratio"), ("p-value", "text", _p_value),
        ),
        parts=tuple(_differences(history)),
    )  # fmt: skip
    figures = [(figure, history.values(figure)) for figure in history.figures]
    counts = [change.figure for change in history.changes]
    yield Section(
        f"Figures of {history.name}",
        table=table_of(
            figures,
            ("figure", "text", "0.label"), ("results", "count", lambda item: len(item[1])),
            ("first", "number", lambda item: Cell(item[1][0][1], item[0].unit)),
            ("last", "number", lambda item: Cell(item[1][-1][1], item[0].unit)),
            ("changes", "count", lambda item: counts.count(item[0].id)),
        ),
        detail=True,
    )  # fmt: skip
    # Those that changed come first; what is always equal needs no plot.
    drawn = sorted(
        (item for item in figures if len({value for _, value in item[1]}) > 1),
        key=lambda item: item[0].id not in counts,
    )
    caption = "By result, oldest first. Steps: the mean between changes, at dashed lines."
    plots = [
        Section(figure.label, plot=Plot(caption, partial(plot_svg, "history", (history, figure)), across=False))
        for figure, _ in drawn
    ]
    if plots:
        yield Section("", parts=tuple(plots))


def _p_value(change: Change) -> str:
    """Return the p-value as text; Otava prints six digits, so 0 is less than the last."""
    return f"{change.p_value:.3g}" if change.p_value else "< 0.000001"


def _notes(history: History) -> tuple[str, ...]:
    if not history.changes:
        return ("Apache Otava found no change of a figure in these results",)
    return ("change points by Apache Otava; before and after: means of the results up to the next change",)


def _mean(name: str) -> Field:
    return name, "number", lambda change: Cell(getattr(change, name), change.unit)


def _differences(history: History) -> Iterator[Section]:
    """Yield the settings that changed together with figures, for each result at which figures changed."""
    for last, first in dict.fromkeys((change.last, change.first) for change in history.changes):
        before, after = history.entries[last], history.entries[first]
        rows = [(name, f"{old} -> {new}") for name, (old, new) in differing(before, after).items()]
        notes = () if rows else ("nothing that is recorded",)
        old, new = (entry.finding_title or "none" for entry in (before, after))
        rows.append(("first finding", f"{old} -> {new}" if old != new else f"before and after: {new}"))
        yield Section(f"What else changed from {when_text(before)} to {when_text(after)}", notes, pairs(rows))


def _data(history: History) -> dict[str, Any]:
    return {"name": history.name, "results": objects(history.entries, *_RESULT), "changes": _changes(history)}


def _changes(history: History) -> list[dict[str, Any]]:
    return [_change(history, change) for change in history.changes]


def _record(name: str, change: dict[str, Any]) -> dict[str, Any]:
    """Return a change as a row of CSV."""
    texts = (f"{what}: {old} -> {new}" for what, (old, new) in change["differing"].items())
    return {"name": name, **change, "differing": "; ".join(texts)}


def _change(history: History, change: Change) -> dict[str, Any]:
    before, after = history.entries[change.last], history.entries[change.first]
    return {
        **named(change, "figure", "before", "after", ("change_ratio", "ratio"), "p_value"),
        "last_before": before.time,
        "first_after": after.time,
        "commit_before": before.commit,
        "commit_after": after.commit,
        "finding_before": before.finding,
        "finding_after": after.finding,
        "differing": {name: list(pair) for name, pair in differing(before, after).items()},
    }
