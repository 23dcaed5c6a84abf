"""`molprof report --rows`: one table of many traces."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from molprof.api import each_report
from molprof.commands.options import Result, note
from molprof.commands.progress import Lines, time_left
from molprof.common.errors import TraceError, UsageError
from molprof.common.reading import Reading
from molprof.common.text import escaped
from molprof.common.values import counted

# Without a terminal to redraw, a line for each so many traces.
_LINE_EVERY = 50


def report_rows(traces: Sequence[Path], reading: Reading, result: Result) -> None:
    """Write a table with a row for each trace.

    Raises UsageError for folders without traces; TraceError, once the table is written, if a trace could not be read.
    """
    if all(trace.is_dir() for trace in traces):
        names = ", ".join(map(str, traces))
        raise UsageError(f"no traces in {names}", hint="give traces, or a folder with .json or .json.gz files in it")
    from molprof.analysis.documents.report import reports_document, trace_row

    lines, rows, begin = Lines(), [], time.monotonic()
    try:
        for trace, found in zip(traces, each_report(traces, reading), strict=True):
            rows.append(trace_row(str(trace), found))
            if rows[-1].problem is not None:
                lines.line(f"{escaped(str(trace))}: {escaped(rows[-1].reason)}")
            left_s = (time.monotonic() - begin) / len(rows) * (len(traces) - len(rows))
            text = f"{len(rows):,} of {counted(len(traces), 'trace')}{time_left(left_s)}"
            if len(rows) % _LINE_EVERY == 0 and len(rows) < len(traces):
                lines.line(text)
            else:
                lines.draw(text)
    except KeyboardInterrupt:
        lines.clear()
        kept = "; their reports are kept: repeat the command to go on" if reading.cached else ""
        note(f"{len(rows):,} of {counted(len(traces), 'trace')} were read{kept}")
        raise
    lines.clear()
    result.deliver(reports_document(rows))
    bad = [row for row in rows if row.problem is not None]
    if bad:
        raise TraceError(
            f"{len(bad):,} of {counted(len(traces), 'trace')} could not be read, first {bad[0].problem}",
            hint="their rows name the problem; --partial reads the intact part of a damaged trace",
        )
