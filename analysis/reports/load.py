"""Trace files in, their reports out; those of several traces at once, each made in a separate process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec.structs import replace

from molprof.analysis import figures, findings
from molprof.analysis.engine import NATIVE_PATH_VARIABLE, Engine
from molprof.analysis.figures import Report, build_report
from molprof.analysis.findings import Known, find_all
from molprof.analysis.reader import TraceInfo
from molprof.analysis.reader.check import check_query, checked
from molprof.analysis.reader.events import STACK_CATEGORY
from molprof.analysis.reader.info import STDIN
from molprof.analysis.reader.open import open_loaded, wrong_value
from molprof.analysis.reports.cache import decode_report, encode_report, read_report, report_key, write_report
from molprof.common import errors
from molprof.common.copied import can_copy
from molprof.common.errors import MolprofError
from molprof.common.memory import available_bytes, processors, resident_bytes
from molprof.common.served import Copied, Served, answer
from molprof.queries import PACKAGE, modules

# Events of a trace, Python stacks not counted. With fewer, a copy of the process costs more than it saves.
LEAST_EVENTS = 40_000
# Its tables take longest of those that nearly all queries about GPU work need.
_NEEDED_BY_MANY = f"INCLUDE PERFETTO MODULE {PACKAGE}.host_syncs;\n"
# A process that makes reports, and what to do should it fail.
SERVE = f"{__name__}:serve"
SERVE_HINT = "if memory ran out, read the traces one by one with molprof report"


class ReportOptions(msgspec.Struct, frozen=True):
    """How a report is made; `processes` are for a large trace, one per processor if None."""

    native_path: str | None = None  # of a `trace_processor_shell` to use instead of the embedded one
    stacks: bool = False  # read Python stacks too; no figure needs them
    partial: bool = False  # report the intact part of a damaged file
    cached: bool = False  # read the report from the user's cache, or store it there
    processes: int | None = None


def load_report(path: str | os.PathLike[str], options: ReportOptions | None = None) -> Report:
    """The report of the trace at `path`, in Chrome or Perfetto format, compressed or not; `-` for standard input.

    Raises TraceError if the file cannot be read or trusted, EngineError if the trace processor failed.
    """
    options = options or ReportOptions()
    if kept := kept_report(path, options):
        return kept
    with open_loaded(
        path,
        options.native_path,
        stacks=options.stacks,
        all_args=False,
        partial=options.partial,
        processes=options.processes,
        check=False,
    ) as (engine, info):
        try:
            if (options.processes or processors()) > 1:
                _ask_all(engine, info)
            info = checked(engine, info)
            report = build_report(engine, info)
            if report.trace.whole_steps:
                report = replace(report, findings=find_all(Known(engine, report, info)))
        except errors.QueryError as error:
            raise wrong_value(engine, str(path), error) from error
    if key := _key(path, options):
        write_report(key, report)
    return report


def kept_report(path: str | os.PathLike[str], options: ReportOptions) -> Report | None:
    """The report of a trace from the user's cache; None if it is not there, or none is asked for."""
    key = _key(path, options)
    return read_report(key, Path(path)) if key else None


def _ask_all(engine: Engine, info: TraceInfo) -> None:
    """Share the queries about a large trace with a copy of this process."""
    events = sum(count for category, count in info.events_by_category.items() if category != STACK_CATEGORY)
    available = available_bytes()
    # Both processes write to about half of the memory, and so have it twice.
    if events < LEAST_EVENTS or (available is not None and available < resident_bytes([os.getpid()]) // 2):
        return
    engine.register_package(PACKAGE, modules())
    has_run = info.manifest is not None
    asked = {query.text for query in (*figures.queries(has_run), *findings.queries(has_run))}
    engine.share([check_query(info), *sorted(asked)], _NEEDED_BY_MANY)


def _key(path: str | os.PathLike[str], options: ReportOptions) -> str | None:
    if not options.cached or str(path) == STDIN:
        return None
    native_path = options.native_path or os.environ.get(NATIVE_PATH_VARIABLE)
    return report_key(Path(path), native_path, options.stacks, options.partial)


def load_reports(paths: Sequence[Path], options: ReportOptions) -> list[Report]:
    """The reports of `paths` in order, each read once. Raises what `load_report` raises, for the first that fails."""
    reports = {path: kept_report(path, options) for path in paths}
    missing = [path for path, report in reports.items() if report is None]
    workers = min(len(missing), processors())
    if workers < 2:
        reports.update({path: load_report(path, options) for path in missing})
    else:
        options = replace(options, processes=max(1, processors() // workers))
        made = _shared_out(missing, workers, options)
        for path in missing:
            one = made[path]
            if isinstance(one, MolprofError):
                raise one
            reports[path] = one
    return [report for path in paths if (report := reports[path]) is not None]


def _shared_out(paths: Sequence[Path], workers: int, options: ReportOptions) -> dict[Path, Report | MolprofError]:
    """What became of each path. This process is one of the workers, so that one start less is waited for."""
    left = deque(path for path in paths if str(path) != STDIN)
    found: dict[Path, Report | MolprofError] = {}

    def read(path: Path, served: Served | Copied | None) -> None:
        try:
            if served is None:
                found[path] = load_report(path, options)
            else:
                found[path] = decode_report(served.ask(request_of(path, options), str(path)))
        except MolprofError as error:
            found[path] = error

    def work(served: Served | Copied | None) -> None:
        while True:
            try:
                path = left.popleft()
            except IndexError:
                return
            read(path, served)

    others: list[Served | Copied] = []
    for _ in range(workers - 1):
        others.append(Copied(_served, SERVE_HINT) if can_copy() else Served(SERVE, SERVE_HINT))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        try:
            waiting = [pool.submit(work, served) for served in others]
            for path in paths:
                if str(path) == STDIN:  # only this process has standard input
                    read(path, None)
            work(None)
            for future in waiting:
                future.result()
        finally:
            for served in others:  # an interrupt waits for none of them
                served.kill()
            pool.shutdown()
            for served in others:
                served.close()
    return found


def request_of(path: Path, options: ReportOptions) -> bytes:
    """What `SERVE` answers with the encoded report of a trace."""
    return msgspec.json.encode((str(path), options))


def serve() -> None:
    """In the other process: answer requests for reports."""
    answer(_served)


def _served(request: bytes) -> bytes:
    path, options = msgspec.json.decode(request)
    return encode_report(load_report(Path(path), ReportOptions(**options)))
