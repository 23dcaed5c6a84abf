"""`molprof export`: write a trace with its facts, for other trace processors."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.command import Command
from molprof.commands.options import TRACE, engine_options, file_option, note, refuse_streams
from molprof.common.files import check_output
from molprof.common.values import bytes_text


@click.command("export", cls=Command)
@click.argument("trace", type=TRACE)
@click.option("--no-stacks", is_flag=True, help="Leave out Python stacks, often most events of a trace.")
@file_option(".json", ".json.gz")
@engine_options
def command(trace: Path, no_stacks: bool, output: Path, force: bool, native_path: str | None) -> None:
    """Write TRACE to OUT with what molprof computes of it, for any Perfetto shell or UI.

    A process "molprof facts" shows the idle time of each device by its cause, and holds the facts that the SQL package
    reads: gaps, chains of kernels, the step and phase of calls. Times count from the earliest event, and slices that
    partly overlap are on tracks of their own, so that Perfetto drops none and keeps every nanosecond. molprof reads OUT
    as it reads TRACE.

    \b
    Examples:
      molprof export trace.json.gz -o facts.json.gz
      molprof export trace.json.gz --no-stacks -o facts.json.gz
      trace_processor_shell --add-sql-package ./queries@molprof facts.json.gz
    """
    refuse_streams(trace)
    check_output(output, force, [trace])
    from molprof.analysis.export import export

    note(f"reading {trace}")
    outcome = export(trace, output, stacks=not no_stacks, native_path=native_path, force=force)
    note(*outcome.notes)
    size = bytes_text(output.stat().st_size)
    note(f"wrote {output}: {outcome.slices:,} slices and {outcome.derived:,} events with facts, {size}")
