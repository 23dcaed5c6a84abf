"""A trace file in, its report out: engine, reader and metrics in one call."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from molprof.analysis.engine import NATIVE_PATH_VARIABLE
from molprof.analysis.figures import Report, build_report
from molprof.analysis.findings import find_all
from molprof.analysis.reader.open import open_trace
from molprof.analysis.reader.source import STDIN
from molprof.analysis.reader.wrong_values import wrong_value
from molprof.analysis.reports.ahead import ask_ahead
from molprof.analysis.reports.cache import read_report, report_key, write_report
from molprof.common.errors import QueryError
from molprof.common.memory import processors


@dataclass(frozen=True)
class ReportOptions:
    """How a report is made.

    Attributes:
        native_path: `trace_processor_shell` to use instead of the embedded engine.
        stacks: read Python stacks too; no figure needs them, and they are most of many traces.
        partial: of a damaged file, report what is whole.
        cached: take the report from the user's cache where it is, and keep it there.
        processes: how many may read and ask side by side where a trace is large; None: one per processor.
    """

    native_path: str | None = None
    stacks: bool = False
    partial: bool = False
    cached: bool = False
    processes: int | None = None


def load_report(path: str | os.PathLike[str], options: ReportOptions | None = None) -> Report:
    """The report of the trace at `path`, in Chrome or Perfetto format, packed or not; `-` for standard input.

    Raises:
        TraceError: the file cannot be read or trusted.
        EngineError: the trace processor cannot be had, or failed.
    """
    options = options or ReportOptions()
    if kept := kept_report(path, options):
        return kept
    with open_trace(
        path,
        native_path=options.native_path,
        stacks=options.stacks,
        all_args=False,
        partial=options.partial,
        processes=options.processes,
    ) as (engine, info):
        try:
            if (options.processes or processors()) > 1:
                ask_ahead(engine, info)
            report = build_report(engine, info)
            if report.trace.whole_steps:
                report = replace(report, findings=find_all(engine, report))
        except QueryError as error:
            raise wrong_value(engine, str(path), error) from error
    if key := _key(path, options):
        write_report(key, report)
    return report


def kept_report(path: str | os.PathLike[str], options: ReportOptions) -> Report | None:
    """The report of `path` as the cache has it; None where it has none or `options` forbid it."""
    key = _key(path, options)
    return read_report(key, Path(path)) if key else None


def _key(path: str | os.PathLike[str], options: ReportOptions) -> str | None:
    if not options.cached or str(path) == STDIN:
        return None
    native_path = options.native_path or os.environ.get(NATIVE_PATH_VARIABLE)
    return report_key(Path(path), native_path, options.stacks, options.partial)
