"""The page put together: verdict, figures, findings, settings, tables; nothing is fetched from anywhere.

Everything is escaped on output by the template engine, after invisible characters were made visible; only the
figures' SVG (analysis/plots/output.py), the style sheet and the script go in as they are. The page's own policy forbids
every other style, script and request.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from molprof import __version__
from molprof.analysis.compare import Comparison, run_labels
from molprof.analysis.compare.model import compared_rows
from molprof.analysis.documents.verdict import comparison_verdict, report_verdict
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import Finding
from molprof.analysis.plots import subject_of
from molprof.analysis.render.html.figures import PageFigure, page_figures
from molprof.analysis.render.html.setting import setting_table
from molprof.analysis.render.html.tables import (
    PageTable,
    checks_table,
    difference_table,
    figures_table,
    junk_table,
    metric_tables,
    predictions_table,
    run_tables,
    without_run,
)
from molprof.common.text import escaped
from molprof.common.values import percent_text


@dataclass(frozen=True)
class Page:
    """All that the template shows."""

    title: str
    command: str
    labels: tuple[str, ...]
    verdict: tuple[str, ...]
    warnings: tuple[str, ...]
    figures: tuple[PageFigure, ...]
    notes: tuple[str, ...]
    junk: PageTable
    findings: tuple[tuple[str, Finding], ...]
    predictions: PageTable | None
    setting: PageTable
    checks: PageTable
    tables: tuple[PageTable, ...]


def report_to_html(report: Report) -> str:
    """One report as a page."""
    labels = run_labels([report])
    shown = [without_run(table) for table in _tables(labels, [report]) if table.rows]
    return _html(
        Page(
            title=labels[0],
            command="report",
            labels=labels,
            verdict=report_verdict(report),
            warnings=_warnings(labels, [report]),
            figures=tuple(page_figures(subject_of(report))),
            notes=(),
            junk=without_run(junk_table(labels, [report])),
            findings=tuple((labels[0], finding) for finding in report.findings),
            predictions=None,
            setting=setting_table(labels, [report]),
            checks=without_run(checks_table(labels, [report])),
            tables=(figures_table(labels, compared_rows((report,))), *shown),
        )
    )


def comparison_to_html(comparison: Comparison) -> str:
    """A comparison as a page."""
    labels, reports = comparison.labels, comparison.runs
    tables = [figures_table(labels, comparison.rows), difference_table(comparison), *_tables(labels, reports)]
    return _html(
        Page(
            title=f"{', '.join(labels[1:])} against {labels[0]}",
            command="compare",
            labels=labels,
            verdict=comparison_verdict(comparison),
            warnings=_warnings(labels, reports),
            figures=tuple(page_figures(subject_of(comparison))),
            notes=comparison.notes,
            junk=junk_table(labels, reports),
            findings=tuple(
                (label, finding) for label, report in zip(labels, reports, strict=True) for finding in report.findings
            ),
            predictions=predictions_table(comparison),
            setting=setting_table(labels, reports),
            checks=checks_table(labels, reports),
            tables=tuple(table for table in tables if table.rows),
        )
    )


def _tables(labels: Sequence[str], reports: Sequence[Report]) -> list[PageTable]:
    return [*run_tables(labels, reports), *metric_tables(labels, reports)]


def _warnings(labels: Sequence[str], reports: Sequence[Report]) -> tuple[str, ...]:
    """What a reader must know before believing a figure."""
    found = []
    for label, report in zip(labels, reports, strict=True):
        if not report.trace.complete:
            found.append(f"{label}: the file is damaged, only its whole part was read: {report.trace.problem}")
        broken = [check.text for check in report.checks if not check.holds]
        if broken:
            found.append(f"{label}: sums that must hold do not: {'; '.join(broken)}")
    return tuple(found)


def _html(page: Page) -> str:
    # Imported here: no other format needs a template engine.
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        return value if isinstance(value, Markup) or not isinstance(value, str) else escaped(value)

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["percent"] = percent_text
    style, script = _file("page.css"), _file("page.js")
    return environment.from_string(_file("page.html")).render(
        page=page,
        version=__version__,
        style=Markup(style),
        script=Markup(script),
        policy=(
            f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        ),
        svg=Markup,
    )


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """As a content security policy names an inline style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
