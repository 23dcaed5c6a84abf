"""`molprof ranks`: the ranks of a distributed job side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from molprof.commands.options import TRACE, check_result, deliver, engine_options, partial_option, result_options


@click.command("ranks")
@click.argument("traces", type=TRACE, nargs=-1, required=True, metavar="DIR|TRACE...")
@partial_option
@engine_options
@result_options()
def command(
    traces: Sequence[Path],
    partial: bool,
    trace_processor: str | None,
    style: str,
    output: Path | None,
    force: bool,
) -> None:
    """Show the ranks of a distributed job side by side: computing, exchanging data, idle.

    Give the folder with one trace of each rank, or the traces. A file's rank is read from its content
    (distributedInfo), whatever its name.

    \b
    Examples:
      molprof ranks traces/
      molprof ranks rank0.json.gz rank1.json.gz
      molprof ranks traces/ --format json | jq '.ranks[].devices'
      molprof ranks traces/ --format html -o ranks.html
    """
    check_result(output, force)
    from molprof.analysis.documents.ranks import ranks_document
    from molprof.analysis.ranks import ReadOptions, load_job

    job = load_job(traces, ReadOptions(trace_processor, partial))
    deliver(ranks_document(job), style, output)
