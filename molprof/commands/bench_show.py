"""`molprof bench show`: the results in a file, as tables or as a plot."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.options import check_result, deliver, note, result_options, write

_FIGURE_FORMATS = ("png", "svg", "pdf")
# Kinds and what they show; a test holds them against the figures that there are.
KINDS = {
    "batch": "Speed by batch size, a line for each configuration.",
    "cache": "Static against dynamic KV cache, first pass and steady state.",
    "heat": "Speed of every configuration at every batch size.",
    "sdpa": "Time of the attention kernel by backend.",
}


@click.command("show")
@click.argument("file", type=click.Path(path_type=Path, readable=False))
@click.option("--plot", "kind", type=click.Choice(list(KINDS)), help="Write this plot to -o OUT instead of tables.")
@result_options()
def show(file: Path, kind: str | None, style: str, output: Path | None, force: bool) -> None:
    """Shows the results in FILE as tables, or as a plot.

    \b
    Plots (--plot):
      batch  speed by batch size, a line for each configuration
      cache  static against dynamic KV cache, first pass and steady state
      heat   speed of every configuration at every batch size
      sdpa   time of the attention kernel by backend

    \b
    Examples:
      molprof bench show bench.jsonl
      molprof bench show bench.jsonl --format csv -o bench.csv
      molprof bench show bench.jsonl --plot batch -o batch.svg
    """
    context = click.get_current_context()
    if kind is not None and context.get_parameter_source("style") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--format is for tables; the ending of OUT selects the format of a plot")
    if kind is not None:
        suffix = "" if output is None else output.suffix.removeprefix(".").lower()
        if suffix not in _FIGURE_FORMATS:
            raise click.UsageError(f"--plot {kind} needs -o OUT that ends in .png, .svg or .pdf")
    check_result(output, force)
    from molprof.analysis.bench.results import read_results

    results = read_results(file)
    if kind is not None:
        from molprof.analysis.plots.benchmark import bench_figure

        write(bench_figure(kind, results, suffix), output)
        return
    from molprof.analysis.documents.benchmark import bench_document

    for line in results.notes:
        note(line)
    deliver(bench_document(results, f"Benchmark results: {file.name}"), style, output)
