"""Findings as sections: all in a table, the largest possible gain first, then each with evidence, fix and query."""

from __future__ import annotations

from collections.abc import Sequence

from molprof.analysis.figures.model import Finding
from molprof.common.document import Column, Section
from molprof.common.values import percent_text

TITLE = "Findings, by the most that they can gain (gains overlap and do not add up)"
_COLUMNS = (Column("#"), Column("finding", "left"), Column("at most"), Column("id", "left"))


def findings_sections(findings: Sequence[Finding]) -> list[Section]:
    """A table of all findings, then a section for each."""
    if not findings:
        return [Section(TITLE, notes=("none: no rule has evidence in this trace",))]
    rows = tuple((str(number), item.title, _gain(item), item.id) for number, item in enumerate(findings, 1))
    return [Section(TITLE, _COLUMNS, rows), *(_detail(number, item) for number, item in enumerate(findings, 1))]


def _gain(item: Finding) -> str:
    return "-" if item.gain_ratio is None else percent_text(item.gain_ratio)


def _detail(number: int, item: Finding) -> Section:
    query = f'"{item.query}"' if " " in item.query else item.query
    notes = (
        f"seen: {item.evidence}",
        f"why: {item.explanation}",
        f"fix: {item.fix}",
        f"look: molprof query {query} TRACE",
    )
    return Section(f"{number}. {item.title}", notes=notes)
