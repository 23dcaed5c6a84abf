"""`molprof compare`: two or more traces side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from molprof.commands.options import (
    TRACE,
    check_result,
    deliver,
    fail_if_option,
    judged,
    note,
    reading_options,
    result_options,
    sweeps_expanded,
)


@click.command("compare")
@click.argument("traces", type=TRACE, nargs=-1, required=True)
@fail_if_option("'launches_per_token>+5%'")
@click.option(
    "--predictions",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML file of expectations to test, beside the built-in ones.",
)
@click.option("--anyway", is_flag=True, help="Compare runs of other molecules or other sampling too.")
@reading_options
@result_options("table", "json", "markdown", "csv", "html")
def command(
    traces: Sequence[Path],
    thresholds: tuple[str, ...],
    predictions: Path | None,
    anyway: bool,
    partial: bool,
    cached: bool,
    trace_processor: str | None,
    style: str,
    output: Path | None,
    force: bool,
) -> int:
    """Sets TRACES side by side; ratios and differences are against the first.

    A trace may be a stored report instead: molprof report TRACE --format json -o baseline.json; the folder of a
    molprof sweep stands for its traces. A ratio of times that
    noise explains is printed as ~. Thresholds are changes against the first (a sign and %) or values (wall_ns>2s);
    one of a time is broken only where its whole interval is beyond. Exit codes: 1 for a broken one, 3 for one that
    cannot be told.

    \b
    Examples:
      molprof compare llama.json.gz qwen.json.gz
      molprof compare qwen.json.gz qwen-lp.json.gz --format json -o comparison.json
      molprof compare llama.json.gz qwen.json.gz --format html -o comparison.html
      molprof compare baseline.json new.json.gz --fail-if 'launches_per_token>+5%' --fail-if 'wall_ns>+10%'
      molprof compare llama.json.gz qwen.json.gz --predictions mine.toml
      molprof compare my-sweep
    """
    if sum(str(trace) == "-" for trace in traces) > 1:
        raise click.UsageError("standard input (-) can be read once only")
    traces = sweeps_expanded(traces)
    if len(traces) < 2:
        raise click.UsageError("compare needs at least two traces; for one: molprof report TRACE")
    check_result(output, force)
    from molprof.analysis.compare import compare
    from molprof.analysis.compare.predictions import read_expectations
    from molprof.analysis.compare.thresholds import judge_comparison, parse_threshold
    from molprof.analysis.render import render
    from molprof.analysis.reports.load import ReportOptions
    from molprof.analysis.reports.stored import load_compared

    bounds = [parse_threshold(text) for text in thresholds]
    expectations = () if predictions is None else read_expectations(predictions)
    reports = load_compared(traces, ReportOptions(trace_processor, partial=partial, cached=cached))
    for report in reports:
        for remark in report.trace.remarks:
            note(remark)
    comparison = compare(reports, anyway=anyway, expectations=expectations)
    deliver(render(comparison, style), output)
    return judged(judge_comparison(comparison.labels, reports, bounds))
