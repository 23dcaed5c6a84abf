"""`molprof report`: what one trace holds."""

from __future__ import annotations

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
)


@click.command("report")
@click.argument("trace", type=TRACE)
@click.option("--stacks", is_flag=True, help="Read Python stacks too; no figure needs them.")
@fail_if_option("'junk_tokens>0' or 'wall_ns>2s'")
@reading_options
@result_options("table", "json", "markdown", "csv", "html")
def command(
    trace: Path,
    stacks: bool,
    thresholds: tuple[str, ...],
    partial: bool,
    cached: bool,
    trace_processor: str | None,
    style: str,
    output: Path | None,
    force: bool,
) -> int:
    """Launches, kernels, copies, syncs, phases and tokens of TRACE.

    TRACE is a torch.profiler trace, recorded by molprof or by any other program, or one in Perfetto's own format;
    plain, gzip or zstd, told by its content; - for standard input.

    \b
    Examples:
      molprof report trace.json.gz
      molprof report trace.json.gz --format json | jq .counts
      molprof report trace.json.gz --format markdown -o report.md
      molprof report trace.json.gz --format html -o report.html
      molprof report killed-job.json.gz --partial
      zcat trace.json.gz | molprof report -
      molprof report trace.json.gz --fail-if 'junk_tokens>0' --fail-if 'launches_per_token>30'
    """
    check_result(output, force)
    from molprof.analysis.compare.thresholds import judge_report, parse_threshold
    from molprof.analysis.render import render
    from molprof.analysis.reports import ReportOptions, load_report

    bounds = [parse_threshold(text, relative=False) for text in thresholds]
    report = load_report(trace, ReportOptions(trace_processor, stacks, partial, cached))
    for remark in report.trace.remarks:
        note(remark)
    deliver(render(report, style), output)
    return judged(judge_report(report, bounds))
