"""Findings: all in a table, the largest possible gain first, then each with evidence, fix and query."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.documents.rows import Reports, Row
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import Finding
from molprof.common.document import Column, Section, pairs


def findings_section(reports: Reports) -> Section:
    """The findings of every report."""
    columns = (Column("#", "index"), Column("finding"), Column("gain at most", "ratio"), Column("id"))

    def rows(report: Report) -> Iterator[Row]:
        for number, item in enumerate(report.findings, 1):
            yield number, item.title, item.gain_ratio, item.id

    table = reports.table(columns, rows)
    if not table.rows:
        return Section("Findings", ("none: no rule found evidence",))
    details = [
        _detail(f"{label}: {number}" if len(reports.labels) > 1 else str(number), item)
        for label, report in zip(reports.labels, reports.reports, strict=True)
        for number, item in enumerate(report.findings, 1)
    ]
    notes = ("largest possible gain first; gains overlap and do not add up",)
    return Section("Findings", notes, table, parts=tuple(details))


def _detail(number: str, item: Finding) -> Section:
    query = f'"{item.query}"' if " " in item.query else item.query
    rows = (
        ("evidence", item.evidence),
        ("why", item.explanation),
        ("fix", item.fix),
        ("query", f"molprof query {query} TRACE"),
    )
    return Section(f"{number}. {item.title}", table=pairs(rows))
