"""The checks of a report as a document."""

from __future__ import annotations

from molprof.analysis.figures import Report
from molprof.common.document import Document, Section, table_of


def checks_document(report: Report) -> Document:
    """Return one row for each check."""
    table = table_of(
        report.checks,
        ("check", "text", "text"),
        ("left", "count"),
        ("right", "count"),
        ("holds", "text", lambda check: "yes" if check.holds else "no"),
    )
    return Document(
        f"molprof checks: {report.trace.path}",
        (Section("Checks", table=table),),
        data=lambda: {"checks": report.checks},
        records=lambda: table,
    )
