"""`molprof report --by` and `--graph-capture`: where the GPU work of a trace comes from, also that of its graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from molprof.analysis.render import render
from molprof.api import load, origins
from molprof.commands.options import TRACE, Result, deliver_texts, note
from molprof.common.errors import UsageError
from molprof.common.reading import Reading

BYS = ("module", "source", "operator", "kernel")
SPEEDSCOPE = "speedscope"

graph_capture_option = click.option(
    "--graph-capture",
    type=TRACE,
    metavar="CAPTURE",
    help="Open the graphs that TRACE replays with CAPTURE, the trace in which they were captured.",
)


def check_by(by: str | None, result: Result, excluded: Sequence[object]) -> None:
    """Raises UsageError for options that exclude each other."""
    if by is None and result.style == SPEEDSCOPE:
        raise UsageError("speedscope shows a tree, and none is chosen", hint=f"--by {', '.join(BYS[:-1])} or {BYS[-1]}")
    if by is not None and excluded:
        raise UsageError("--by takes no --fail-if, --tokens or --molecules", hint="leave --by or these out")


def report_by(
    traces: Sequence[Path],
    outputs: Sequence[Path | None],
    by: str,
    capture: Path | None,
    reading: Reading,
    result: Result,
) -> None:
    """Write the tree of each trace to its file, or all to stdout; `capture` is of the graphs that a trace replays."""
    from molprof import __version__
    from molprof.analysis.documents.origin import origin_document
    from molprof.analysis.origin.speedscope import speedscope_text

    texts: list[str] = []
    notes: list[str] = []
    for trace in traces:
        found, _, remarks = origins(trace, replace(reading, cached=False), capture)
        notes += remarks
        if result.style == SPEEDSCOPE:
            texts.append(speedscope_text(found, by, f"molprof {__version__}"))
        else:
            texts.append(render(origin_document(found, by), result.style, result.columns))
    note(*notes)
    deliver_texts(texts, outputs, result.style)


def check_graph_capture(traces: Sequence[Path], excluded: Sequence[object], cluster: object) -> None:
    """Raises UsageError for several traces, and for options that exclude --graph-capture."""
    if len(traces) > 1:
        raise UsageError("--graph-capture takes one TRACE", hint="report the traces one by one")
    if excluded or cluster is not None:
        raise UsageError("--graph-capture takes no --fail-if, --tokens, --molecules or --submit", hint="leave them out")


def report_graphs(trace: Path, capture: Path, reading: Reading, result: Result) -> None:
    """Write the report of the trace with its graphs opened, to OUT or stdout."""
    from molprof.analysis.documents.opened import opened_data, opened_sections
    from molprof.analysis.documents.report import report_document

    _, opened, _ = origins(trace, replace(reading, cached=False), capture)
    with load(trace, reading) as read:
        report = read.report
    note(*report.trace.remarks)
    document = report_document(report)
    # Below the findings: the figures of a replay alone come after what its kernels are.
    place = next(number for number, section in enumerate(document.sections, 1) if section.title == "Findings")
    sections = (*document.sections[:place], *opened_sections(opened), *document.sections[place:])
    data = document.data
    result.deliver(replace(document, sections=sections, data=lambda: {**data(), "graphs_opened": opened_data(opened)}))
