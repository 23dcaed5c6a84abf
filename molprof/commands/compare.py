"""`molprof compare`: two or more traces side by side."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.options import TRACE, check_result, deliver, engine_options, result_options


@click.command("compare")
@click.argument("traces", type=TRACE, nargs=-1, required=True)
@engine_options
@result_options("table", "json", "markdown", "csv")
def command(
    traces: tuple[Path, ...], trace_processor: str | None, style: str, output: Path | None, force: bool
) -> None:
    """Sets TRACES side by side; ratios and differences are against the first.

    \b
    Examples:
      molprof compare llama.json.gz qwen.json.gz
      molprof compare qwen.json.gz qwen-lp.json.gz --format json -o comparison.json
    """
    if len(traces) < 2:
        raise click.UsageError("compare needs at least two traces; for one: molprof report TRACE")
    check_result(output, force)
    from molprof.analysis.compare import compare
    from molprof.analysis.render import render
    from molprof.analysis.reports import load_report

    reports = [load_report(trace, native_path=trace_processor) for trace in traces]
    deliver(render(compare(reports), style), output)
