"""`molprof report --graph-capture`: a report whose graphs are opened with the trace of their capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from molprof.commands.options import TRACE, deliver, note
from molprof.commands.report_by import Reading
from molprof.common.errors import UsageError

graph_capture_option = click.option(
    "--graph-capture",
    type=TRACE,
    metavar="CAPTURE",
    help="Open the graphs that TRACE replays with CAPTURE, the trace in which they were captured.",
)


def check_graph_capture(traces: Sequence[Path], excluded: Sequence[object], cluster: object) -> None:
    """Raises UsageError for several traces, and for options that exclude --graph-capture."""
    if len(traces) > 1:
        raise UsageError("--graph-capture takes one TRACE", hint="report the traces one by one")
    if excluded or cluster is not None:
        raise UsageError("--graph-capture takes no --fail-if, --tokens, --molecules or --submit", hint="leave them out")


def report_graphs(trace: Path, output: Path | None, style: str, reading: Reading, cached: bool) -> None:
    """Write the report of the trace with its graphs opened, to OUT or stdout."""
    from molprof.analysis.documents.opened import opened_data, opened_sections
    from molprof.analysis.documents.report import report_document
    from molprof.analysis.origin.opened import read_opened
    from molprof.analysis.reports.load import ReportOptions, load_report

    native_path, partial, capture = reading
    _, opened, _ = read_opened(trace, capture, native_path=native_path, partial=partial)
    report = load_report(trace, ReportOptions(native_path, False, partial, cached))
    for remark in report.trace.remarks:
        note(remark)
    document = report_document(report)
    # Below the findings: the figures of a replay alone come after what its kernels are.
    place = next(number for number, section in enumerate(document.sections, 1) if section.title == "Findings")
    sections = (*document.sections[:place], *opened_sections(opened), *document.sections[place:])
    data = document.data
    deliver(
        replace(document, sections=sections, data=lambda: {**data(), "graphs_opened": opened_data(opened)}),
        style,
        output,
    )
