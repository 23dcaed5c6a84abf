"""Renderers: a report or a comparison in, one string out. One line per format below."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.compare import Comparison
from molprof.analysis.documents.comparison import comparison_document
from molprof.analysis.documents.report import report_document
from molprof.analysis.figures import Report
from molprof.analysis.render.data import comparison_to_csv, report_to_csv, to_json
from molprof.analysis.render.markdown import to_markdown
from molprof.analysis.render.table import to_table
from molprof.common.errors import UsageError

__all__ = ["COMPARISON_FORMATS", "REPORT_FORMATS", "render"]


def _report_page(report: Report) -> str:
    # Imported here: figures are drawn with what this package has for numbers and names.
    from molprof.analysis.render.html import report_to_html

    return report_to_html(report)


def _comparison_page(comparison: Comparison) -> str:
    from molprof.analysis.render.html import comparison_to_html

    return comparison_to_html(comparison)


REPORT_FORMATS: dict[str, Callable[[Report], str]] = {
    "table": lambda report: to_table(report_document(report)),
    "json": to_json,
    "csv": report_to_csv,
    "markdown": lambda report: to_markdown(report_document(report)),
    "html": _report_page,
}

COMPARISON_FORMATS: dict[str, Callable[[Comparison], str]] = {
    "table": lambda comparison: to_table(comparison_document(comparison)),
    "json": to_json,
    "csv": comparison_to_csv,
    "markdown": lambda comparison: to_markdown(comparison_document(comparison)),
    "html": _comparison_page,
}


def render(subject: Report | Comparison, form: str = "table") -> str:
    """`subject` as text in the format `form`, ending with a newline.

    Raises:
        UsageError: no such format.
    """
    known = sorted(REPORT_FORMATS)
    if form not in REPORT_FORMATS:
        raise UsageError(f"unknown format {form!r}; known: {', '.join(known)}")
    if isinstance(subject, Report):
        return REPORT_FORMATS[form](subject)
    return COMPARISON_FORMATS[form](subject)
