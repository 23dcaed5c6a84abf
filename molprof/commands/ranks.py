"""`molprof ranks`: the ranks of a distributed job side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from molprof.commands.options import (
    PLOT_FORMATS,
    TRACE,
    check_result,
    deliver,
    engine_options,
    partial_option,
    result_options,
    write,
)


@click.command("ranks")
@click.argument("traces", type=TRACE, nargs=-1, required=True, metavar="DIR|TRACE...")
@partial_option
@engine_options
@result_options(*PLOT_FORMATS)
def command(
    traces: Sequence[Path],
    partial: bool,
    trace_processor: str | None,
    style: str,
    output: Path | None,
    force: bool,
) -> int:
    """Show the ranks of a distributed job side by side: compute, communication, waiting for each other, idle.

    Give the folder with one trace of each rank, or the traces, or one trace merged from those of all ranks. A file's
    rank is read from its content (distributedInfo), whatever its name. The clocks are aligned by collectives.

    The formats png, svg and pdf are a timeline of all ranks. The exit code is 3 if times do not add up.

    \b
    Examples:
      molprof ranks traces/
      molprof ranks rank0.json.gz rank1.json.gz
      molprof ranks traces/ --format json | jq '.steps[].straggler'
      molprof ranks traces/ --format html -o ranks.html
      molprof ranks traces/ --format png -o ranks.png
    """
    if style in PLOT_FORMATS and output is None:
        raise click.UsageError(f"--format {style} requires -o OUT")
    check_result(output, force)
    return show_ranks(traces, partial, trace_processor, style, output)


def show_ranks(
    traces: Sequence[Path], partial: bool, trace_processor: str | None, style: str, output: Path | None
) -> int:
    """Write the document or the timeline of ranks; the exit code."""
    from molprof.analysis.documents.ranks import ranks_document
    from molprof.analysis.ranks import ReadOptions, load_job

    job = load_job(traces, ReadOptions(trace_processor, partial))
    if style in PLOT_FORMATS:
        from molprof.analysis.plots.ranks import ranks_figure

        write(ranks_figure(job, style), output)
    else:
        deliver(ranks_document(job), style, output)
    return 0 if all(check.holds for check in job.checks) else 3
