"""One table of many traces: its options, where rows are kept, who reads the traces."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molprof.analysis.reader import Reading
from molprof.commands.options import Result, declared, grouped, make_folder, note, number_option, path_option, write
from molprof.commands.progress import Counting
from molprof.common.errors import TraceError, UsageError
from molprof.common.text import escaped
from molprof.common.values import counted

if TYPE_CHECKING:
    from molprof.analysis.documents.figures import TraceRow


@dataclass(frozen=True)
class Rows:
    """What the options of a table of many traces ask for."""

    # fmt: off
    rows: bool = declared(
        "--rows", is_flag=True, help="Show one table with a row for each trace, not a report of each.")
    parts: Path | None = declared(path_option(
        "--parts", metavar="DIR", file_okay=False,
        text="With --rows: keep the row of each trace in DIR, and read only traces without one."))
    on: str | None = declared(
        "--on", metavar="dask://HOST:PORT", help="With --rows: let the workers of a Dask scheduler read the traces.")
    read_limit_s: int = declared(number_option(
        "--read-limit", "read_limit_s", default=3600, help="With --on: stop reading a trace after N seconds."))
    # fmt: on

    def __post_init__(self) -> None:
        if not self.rows and (self.parts or self.on):
            raise click.UsageError(f"{'--parts' if self.parts else '--on'} requires --rows")


rows_options = grouped(Rows, "table")


def report_rows(traces: Sequence[Path], reading: Reading, result: Result, table: Rows | None = None) -> None:
    """Write a table with a row for each trace.

    Raises UsageError for folders without traces; TraceError, once the table is written, if a trace could not be read.
    """
    if all(trace.is_dir() for trace in traces):
        names = ", ".join(map(str, traces))
        raise UsageError(f"no traces in {names}", hint="give traces, or a folder with .json or .json.gz files in it")
    from molprof.analysis.documents.figures import TraceRow, reports_document
    from molprof.analysis.fleet.row import Row, joined_text, rows_to_parquet
    from molprof.analysis.fleet.rows import Fleet, each_row, joined_files

    table = table or Rows()
    traces, remarks = joined_files(traces, reading.partial)
    note(*remarks)
    if not traces:
        raise UsageError("no row is left", hint="read the traces again: molprof report TRACES --rows --parts DIR")
    if result.style == "parquet":
        from molprof.analysis.query import check_parquet

        check_parquet()
    counting, found = Counting("trace"), list[Row]()
    try:
        with ExitStack() as stack:
            remote = None
            if table.on is not None:
                from molprof.analysis.fleet.executors import connected

                remote = stack.enter_context(connected(table.on, table.read_limit_s))
            if table.parts is not None:
                make_folder(table.parts, "--parts")
            for row in each_row(traces, reading, Fleet(table.parts, remote)):
                found.append(row)
                if row.problem is not None:
                    counting.line(f"{escaped(row.file)}: {escaped(row.reason)}")
                counting(len(found), len(traces))
    except KeyboardInterrupt:
        counting.clear()
        is_kept = reading.cached or table.parts is not None
        kept = "; their reports are kept: repeat the command to go on" if is_kept else ""
        note(f"{len(found):,} of {counted(len(traces), 'trace')} were read{kept}")
        raise
    counting.clear()
    rows = [TraceRow(row.file, row.figures, row.problem) for row in found]
    if result.style == "parquet":
        write(rows_to_parquet(found), result.output)
    else:
        result.deliver(reports_document(rows))
    if result.style == "parquet" or table.parts is not None or table.on is not None:
        note(joined_text(found))
    refuse_bad([row for row in rows if row.problem is not None], len(traces))


def refuse_bad(bad: Sequence[TraceRow], count: int) -> None:
    """Raises TraceError if there are rows of traces that could not be read, of `count` traces."""
    if bad:
        text = f"{len(bad):,} of {counted(count, 'trace')} could not be read, first {bad[0].problem}"
        raise TraceError(text, hint="--partial reads the intact part of a damaged trace")
