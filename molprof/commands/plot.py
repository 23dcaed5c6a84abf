"""`molprof plot`: one figure of one trace or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from molprof.commands.options import TRACE, file_option, reading_options, sweeps_expanded, write
from molprof.common.files import check_output

_FORMATS = ("png", "svg", "pdf")
# Kinds and what they show; a test holds them against the figures that there are.
KINDS = {
    "waterfall": "Where the difference in time to the first run lies, part by part.",
    "timeline": "What ran when in a typical step: phases, launches, GPU work.",
    "phases": "What an unprofiled step spends its time on.",
    "classes": "GPU time by class of kernel.",
    "latency": "Unprofiled time of a step over its position in the sequence.",
    "drift": "Drift of coordinate blocks, and their junk and filler tokens.",
}


class _PlotCommand(click.Command):
    """A command whose help lists the kinds of figures."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Kinds"):
            formatter.write_dl(list(KINDS.items()))
        super().format_options(ctx, formatter)


@click.command("plot", cls=_PlotCommand)
@click.argument("kind", type=click.Choice(list(KINDS)), metavar="KIND")
@click.argument("traces", type=TRACE, nargs=-1, required=True)
@file_option(*(f".{form}" for form in _FORMATS))
@click.option("--anyway", is_flag=True, help="Compare runs of other molecules or other sampling too.")
@reading_options
def command(
    kind: str,
    traces: Sequence[Path],
    output: Path,
    force: bool,
    anyway: bool,
    partial: bool,
    cached: bool,
    trace_processor: str | None,
) -> None:
    """Draws the figure KIND of TRACES; the page that --format html makes has all of them.

    A trace may be a stored report or the folder of a sweep instead, as for molprof compare.

    \b
    Examples:
      molprof plot waterfall llama.json.gz qwen.json.gz -o difference.svg
      molprof plot timeline trace.json.gz -o step.png
    """
    if sum(str(trace) == "-" for trace in traces) > 1:
        raise click.UsageError("standard input (-) can be read once only")
    traces = sweeps_expanded(traces)
    check_output(output, force)
    from molprof.analysis.plots import plot_file, subject_of
    from molprof.analysis.reports.load import ReportOptions
    from molprof.analysis.reports.stored import load_compared

    reports = load_compared(traces, ReportOptions(trace_processor, partial=partial, cached=cached))
    write(plot_file(kind, subject_of(reports, anyway), output.suffix.removeprefix(".").lower()), output)
