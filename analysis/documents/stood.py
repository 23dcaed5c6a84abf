"""Where the tokens of each answer stood: free, in a tag, forced, or inside of a schema, as a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from molprof.analysis.documents.figures import Reports
from molprof.analysis.figures.model import Report, ServedTimes
from molprof.analysis.figures.stood import ServedMasks, count_stood
from molprof.common.answer_counts import STOOD
from molprof.common.document import Field, Section

STOOD_TITLE = "Where tokens stood"
STOOD_FIELDS: tuple[Field, ...] = (
    ("answer", "text"), ("tokens", "count"), *((name, "count") for name in STOOD), ("longest forced run", "count"),
)  # fmt: skip
STOOD_NOTE = (
    "forced: its mask left no other token; free: else nothing constrained it; tag: else it began in what begins or ends"
    " a tag; inside: of a schema or grammar"
)


def stood_section(reports: Reports) -> Section:
    """Return a row for each answer of each run whose masks were filled again."""
    notes = (STOOD_NOTE, *reports.notes(_notes))
    return reports.section(STOOD_TITLE, _rows, *STOOD_FIELDS, notes=notes, detail=True)


def rows_of_masks(masks: ServedMasks) -> list[dict[str, Any]]:
    """Return a row for each answer to a server's client, and one for all."""
    return _with_sum((f"line {answer.line}", answer.stood) for answer in masks.answers if not answer.missing)


def mask_notes(masks: ServedMasks) -> Iterator[str]:
    """Yield what filled the masks, and why those of some answers are not recorded."""
    if masks.engine:
        yield f"masks of the last warm-up pass, filled again by {masks.engine}"
    for answer in masks.answers:
        if answer.missing:
            yield f"masks of line {answer.line} are not recorded: {answer.missing}"


def _rows(report: Report) -> list[dict[str, Any]]:
    if isinstance(report.served, ServedTimes) and report.served.masks is not None:
        return rows_of_masks(report.served.masks)
    sequences = () if report.run is None else report.run.sequences
    return _with_sum((str(item.sequence), item.stood) for item in sequences if item.stood is not None)


def _notes(report: Report) -> Iterator[str]:
    if isinstance(report.served, ServedTimes) and report.served.masks is not None:
        yield from mask_notes(report.served.masks)


def _with_sum(answers: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    rows = [_row(name, len(letters), letters) for name, letters in answers]
    if len(rows) > 1:
        total = {name: sum(row[name] for row in rows) for name in ("tokens", *STOOD)}
        longest = max(row["longest_forced_run"] for row in rows)
        rows.append({"answer": "all", **total, "longest_forced_run": longest})
    return rows


def _row(name: str, tokens: int, letters: str) -> dict[str, Any]:
    forced = STOOD["forced"]
    longest = max(map(len, re.findall(f"{forced}+", letters)), default=0)
    return {"answer": name, "tokens": tokens, **count_stood(letters), "longest_forced_run": longest}
