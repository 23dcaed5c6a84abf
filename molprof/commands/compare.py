"""`molprof compare`: two or more traces side by side."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.options import (
    TRACE,
    check_result,
    deliver,
    note,
    reading_options,
    result_options,
)


@click.command("compare")
@click.argument("traces", type=TRACE, nargs=-1, required=True)
@reading_options
@result_options("table", "json", "markdown", "csv", "html")
def command(
    traces: tuple[Path, ...],
    partial: bool,
    cached: bool,
    trace_processor: str | None,
    style: str,
    output: Path | None,
    force: bool,
) -> None:
    """Sets TRACES side by side; ratios and differences are against the first.

    \b
    Examples:
      molprof compare llama.json.gz qwen.json.gz
      molprof compare qwen.json.gz qwen-lp.json.gz --format json -o comparison.json
      molprof compare llama.json.gz qwen.json.gz --format html -o comparison.html
    """
    if sum(str(trace) == "-" for trace in traces) > 1:
        raise click.UsageError("standard input (-) can be read once only")
    if len(traces) < 2:
        raise click.UsageError("compare needs at least two traces; for one: molprof report TRACE")
    check_result(output, force)
    from molprof.analysis.compare import compare
    from molprof.analysis.parallel import load_reports
    from molprof.analysis.render import render
    from molprof.analysis.reports import ReportOptions

    reports = load_reports(traces, ReportOptions(trace_processor, partial=partial, cached=cached))
    for report in reports:
        for remark in report.trace.remarks:
            note(remark)
    deliver(render(compare(reports), style), output)
