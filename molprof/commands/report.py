"""`molprof report`: what one trace holds."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.options import TRACE, check_result, deliver, engine_options, result_options


@click.command("report")
@click.argument("trace", type=TRACE)
@engine_options
@result_options("table", "json", "markdown", "csv")
def command(trace: Path, trace_processor: str | None, style: str, output: Path | None, force: bool) -> None:
    """Launches, kernels, copies, syncs, phases and tokens of TRACE.

    TRACE is a torch.profiler trace, .json or .json.gz, recorded by molprof or by any other program.

    \b
    Examples:
      molprof report trace.json.gz
      molprof report trace.json.gz --format json | jq .counts
      molprof report trace.json.gz --format markdown -o report.md
    """
    check_result(output, force)
    from molprof.analysis.render import render
    from molprof.analysis.reports import load_report

    deliver(render(load_report(trace, native_path=trace_processor), style), output)
