"""`molprof report plot`: one plot of one trace or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from molprof.analysis.documents.plots import PLOTS, plot_file
from molprof.analysis.reader import Reading
from molprof.api import reports
from molprof.commands.options import (
    PLOT_FORMATS,
    TRACE,
    PlotCommand,
    file_option,
    plot_format,
    reading_options,
    sweeps_expanded,
    write,
)
from molprof.common.files import check_output

KINDS = {name: kind.help for name, kind in PLOTS.items()}


@click.command("plot", cls=PlotCommand, kinds=KINDS)
@click.argument("kind", type=click.Choice(list(KINDS)), metavar="KIND")
@click.argument("traces", type=TRACE, nargs=-1, required=True)
@file_option(*(f".{form}" for form in PLOT_FORMATS))
@click.option("--anyway", is_flag=True, help="Compare runs of different prompts or sampling too.")
@reading_options
def command(kind: str, traces: Sequence[Path], output: Path, force: bool, anyway: bool, reading: Reading) -> None:
    """Draw the plot KIND of TRACES. Pages of molprof report and compare --format html have all plots.

    Instead of a trace, give a stored report or the folder of a sweep, as for molprof compare.

    \b
    Examples:
      molprof report plot waterfall llama.json.gz qwen.json.gz -o difference.svg
      molprof report plot timeline trace.json.gz -o step.png
    """
    traces = sweeps_expanded(traces)
    check_output(output, force, traces)
    from molprof.analysis.documents.figures import reports_of

    write(plot_file(kind, reports_of(reports(traces, reading), anyway), plot_format(output)), output)
