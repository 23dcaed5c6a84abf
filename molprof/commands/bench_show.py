"""`molprof bench show`: the results in a file, as tables or as a plot."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.analysis.documents.plots import BENCH_PLOTS, plot_file
from molprof.commands.options import (
    PLOT_FORMATS,
    PlotCommand,
    Result,
    note,
    plot_format,
    result_options,
    write,
)

KINDS = {name: kind.help for name, kind in BENCH_PLOTS.items()}


@click.command("show", cls=PlotCommand, kinds=KINDS)
@click.argument("file", type=click.Path(path_type=Path, readable=False))
@click.option("--plot", "kind", type=click.Choice(list(KINDS)), help="Write this plot to -o OUT instead of tables.")
@result_options()
def show(file: Path, kind: str | None, result: Result) -> None:
    """Show the results in FILE as tables, or as a plot.

    \b
    Examples:
      molprof bench show bench.jsonl
      molprof bench show bench.jsonl -o bench.csv
      molprof bench show bench.jsonl --plot batch -o batch.svg
    """
    context = click.get_current_context()
    if kind is not None and context.get_parameter_source("style") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--format is for tables; the ending of OUT selects the format of a plot")
    if kind is not None and plot_format(result.output) not in PLOT_FORMATS:
        raise click.UsageError(f"--plot {kind} requires -o OUT that ends in .png, .svg or .pdf")
    result.check([file])
    from molprof.common.bench_records import read_results

    results = read_results(file)
    if kind is not None:
        write(plot_file(kind, results, plot_format(result.output)), result.output)
        return
    from molprof.analysis.documents.benchmark import bench_document

    note(*results.notes)
    result.deliver(bench_document(results, f"Benchmark results: {file.name}"))
