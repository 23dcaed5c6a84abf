"""Results of sweeps and benchmarks: tables, plots, and the fastest valid configuration."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.analysis.documents.plots import BENCH_PLOTS, plot_file
from molprof.commands.command import Command
from molprof.commands.options import (
    PLOT_FORMATS,
    TRACE,
    PlotCommand,
    ResultOptions,
    engine_options,
    note,
    plot_format,
    result_options,
    write,
)
from molprof.common.errors import UsageError


@click.command("show", cls=PlotCommand, kinds={name: kind.help for name, kind in BENCH_PLOTS.items()})
@click.argument("file", type=click.Path(path_type=Path, readable=False), metavar="FILE|DIR")
@click.option(
    "--plot", "kind", type=click.Choice(list(BENCH_PLOTS)), help="Write this plot to -o OUT instead of tables."
)
@result_options()
def show(file: Path, kind: str | None, result: ResultOptions) -> None:
    """Show the results of a benchmark (FILE) or of a sweep (DIR) as tables, or as a plot.

    \b
    Examples:
      molprof sweep show attention
      molprof sweep show attention -o attention.csv
      molprof sweep show batch --plot batch -o batch.svg
      molprof bench show sdpa.jsonl
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


@click.command("recommend", cls=Command)
@click.argument("file", type=click.Path(path_type=Path, readable=False), metavar="DIR")
@click.option("--trace", type=TRACE, metavar="TRACE", help="Trace that bounds the gain of each change (Amdahl).")
@result_options()
@engine_options
def recommend(file: Path, trace: Path | None, result: ResultOptions, native_path: str | None) -> None:
    """Recommend the fastest valid configuration in the sweep DIR for each machine, model, processor and batch size.

    Also prints its speed over the default (sdpa, dynamic cache, not compiled) with the confidence, the speed of each
    single change, and why other configurations were rejected. A configuration is valid if every process succeeded, and
    as many answers are valid as with the default.

    \b
    Examples:
      molprof sweep recommend matrix
      molprof sweep recommend matrix --trace qwen-lp.json.gz
    """
    result.check([file, *filter(None, [trace])])
    from molprof.analysis.reader.source import is_trace

    if file.is_file() and is_trace(file):
        raise UsageError(
            f"{file} is a trace, and sweep recommend reads the results of a sweep",
            hint="molprof sweep matrix, then molprof sweep recommend matrix",
        )
    from molprof.analysis.bench.recommend import read_bounds
    from molprof.analysis.bench.recommend import recommend as recommended
    from molprof.analysis.documents.advice import advice_document
    from molprof.api import load
    from molprof.common.bench_records import read_results

    results = read_results(file)
    note(*results.notes)
    advice = recommended(results)
    bounds = None if trace is None else load(trace, native_path=native_path).read(read_bounds)
    result.deliver(advice_document(advice, results, bounds))
