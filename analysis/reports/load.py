"""A trace file in, its report out."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from molprof.analysis.engine import NATIVE_PATH_VARIABLE, Engine
from molprof.analysis.figures import Report, build_report
from molprof.analysis.figures.catalog import QUERIES as FIGURE_QUERIES
from molprof.analysis.findings import QUERIES as FINDING_QUERIES
from molprof.analysis.findings import find_all
from molprof.analysis.reader import TraceInfo
from molprof.analysis.reader.events import STACK_CATEGORY
from molprof.analysis.reader.open import open_trace, wrong_value
from molprof.analysis.reader.source import STDIN
from molprof.analysis.reports.cache import read_report, report_key, write_report
from molprof.common.errors import QueryError
from molprof.common.memory import processors
from molprof.queries import PACKAGE, modules

# Events of a trace, Python stacks not counted. With fewer, a copy of the process costs more than it saves; with more,
# the memory that both processes write to, and so hold twice, is too large.
LEAST_EVENTS, MOST_EVENTS = 100_000, 5_000_000
# Both processes need these, so they are made before the copy.
_SHARED_MODULES = ("gpu_calls", "gpu_work", "work_calls", "host_syncs")


@dataclass(frozen=True)
class ReportOptions:
    """How a report is made.

    Attributes:
        native_path: `trace_processor_shell` to use instead of the embedded one.
        stacks: read Python stacks too. No figure needs them.
        partial: report the intact part of a damaged file.
        cached: read the report from the user's cache, or store it there.
        processes: processes for a large trace; None: one per processor.
    """

    native_path: str | None = None
    stacks: bool = False
    partial: bool = False
    cached: bool = False
    processes: int | None = None


def load_report(path: str | os.PathLike[str], options: ReportOptions | None = None) -> Report:
    """The report of the trace at `path`, in Chrome or Perfetto format, compressed or not; `-` for standard input.

    Raises:
        TraceError: the file cannot be read or trusted.
        EngineError: the trace processor failed, or was not found.
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
                _ask_beside(engine, info)
            report = build_report(engine, info)
            if report.trace.whole_steps:
                report = replace(report, findings=find_all(engine, report))
        except QueryError as error:
            raise wrong_value(engine, str(path), error) from error
    if key := _key(path, options):
        write_report(key, report)
    return report


def kept_report(path: str | os.PathLike[str], options: ReportOptions) -> Report | None:
    """The cached report of `path`; None without one, or if `options` forbid it."""
    key = _key(path, options)
    return read_report(key, Path(path)) if key else None


def _ask_beside(engine: Engine, info: TraceInfo) -> None:
    """Let a copy of this process answer the queries declared for that, nearly half of the time, of a large trace."""
    events = sum(count for category, count in info.events_by_category.items() if category != STACK_CATEGORY)
    if not LEAST_EVENTS <= events <= MOST_EVENTS:
        return
    engine.register_package(PACKAGE, modules())
    engine.query("".join(f"INCLUDE PERFETTO MODULE {PACKAGE}.{module};\n" for module in _SHARED_MODULES))
    kinds = ("any", "foreign" if info.manifest is None else "run")
    engine.ask_ahead([query.text for query in (*FIGURE_QUERIES, *FINDING_QUERIES) if query.beside in kinds])


def _key(path: str | os.PathLike[str], options: ReportOptions) -> str | None:
    if not options.cached or str(path) == STDIN:
        return None
    native_path = options.native_path or os.environ.get(NATIVE_PATH_VARIABLE)
    return report_key(Path(path), native_path, options.stacks, options.partial)
