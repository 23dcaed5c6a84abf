"""`molprof report rows`: one table of many traces, stored rows, and workers that read traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from molprof.analysis.reader import Reading
from molprof.commands.command import Command
from molprof.commands.inputs import expanded, refuse_bad
from molprof.commands.options import (
    FOLDER,
    TRACE,
    ResultOptions,
    make_folder,
    note,
    reading_options,
    result_options,
    sweeps_expanded,
    write,
)
from molprof.commands.progress import Counting
from molprof.commands.submission import ReadSubmission, read_options
from molprof.common.errors import UsageError
from molprof.common.text import escaped
from molprof.common.values import counted


@click.command("rows", cls=Command)
@click.argument("traces", type=TRACE, nargs=-1, required=True, metavar="TRACE...")
@click.option(
    "--parts", type=FOLDER, metavar="DIR",
    help="Keep the row of each trace in DIR, which may be s3:// or gs://, and read only traces without one.",
)  # fmt: skip
@reading_options
@result_options("parquet")
@read_options
def command(
    traces: Sequence[Path],
    parts: Path | None,
    reading: Reading,
    result: ResultOptions,
    submission: ReadSubmission,
) -> None:
    """Show one table with a row for each trace, not a report of each.

    It takes any number of traces, folders of them, reports stored with --format json, or rows that --parts kept. A
    trace that cannot be read becomes a row with the reason. Repeat an interrupted command to go on.

    \b
    Examples:
      molprof report rows traces -o table.csv
      molprof report rows my-sweep reports
      molprof report rows traces --parts parts -o rows.parquet
      molprof report rows traces --on slurm -o rows.csv
    """
    traces = expanded(sweeps_expanded(traces), stored=True)
    result.check(traces)
    if all(trace.is_dir() for trace in traces):
        names = ", ".join(map(str, traces))
        raise UsageError(f"no traces in {names}", hint="give traces, or a folder with .json or .json.gz files in it")
    from molprof.analysis.documents.figures import TraceRow, reports_document
    from molprof.analysis.fleet.row import FleetRow, joined_text, rows_to_parquet
    from molprof.analysis.fleet.rows import Fleet, each_row, joined_files

    traces, remarks = joined_files(traces, reading.partial)
    note(*remarks)
    if not traces:
        raise UsageError("no row is left", hint="read the traces again: molprof report rows TRACES --parts DIR")
    if result.style == "parquet":
        from molprof.analysis.query import check_parquet

        check_parquet()
    counting, fleet_rows = Counting("trace"), list[FleetRow]()
    try:
        with submission.executor("rows") as executor:
            if parts is not None:
                make_folder(parts, "--parts")
            for row in each_row(traces, reading, Fleet(parts, executor)):
                fleet_rows.append(row)
                if row.problem is not None:
                    counting.line(f"{escaped(row.file)}: {escaped(row.reason)}")
                counting(len(fleet_rows), len(traces))
    except KeyboardInterrupt:
        counting.clear()
        is_kept = reading.cached or parts is not None
        kept = "; their reports are kept: repeat the command to go on" if is_kept else ""
        note(f"{len(fleet_rows):,} of {counted(len(traces), 'trace')} were read{kept}")
        raise
    counting.clear()
    rows = [TraceRow(row.file, row.figures, row.problem) for row in fleet_rows]
    if result.style == "parquet":
        write(rows_to_parquet(fleet_rows), result.output)
    else:
        result.deliver(reports_document(rows))
    if result.style == "parquet" or parts is not None or submission.where is not None:
        note(joined_text(fleet_rows))
    refuse_bad([row for row in rows if row.problem is not None], len(traces))
