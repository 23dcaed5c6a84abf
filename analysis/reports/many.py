"""The reports of many traces, one after the other in bounded memory; a trace that cannot be read stops nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from msgspec.structs import replace

from molprof.analysis.figures import Report
from molprof.analysis.reader.info import STDIN
from molprof.analysis.reader.source import ENDINGS
from molprof.analysis.reports.cache import decode_report
from molprof.analysis.reports.load import SERVE, SERVE_HINT, ReportOptions, kept_report, load_report, request_of
from molprof.analysis.reports.stored import read_stored
from molprof.common.errors import MolprofError
from molprof.common.memory import processors
from molprof.common.served import Served

# Traces given to each process ahead, so that none of them waits. Few, as their reports are held.
_AHEAD = 3


def traces_in(folder: Path) -> list[Path]:
    """The files of a folder that are named as traces, in order of their names; without any the folder."""
    found = (item for item in folder.iterdir() if item.name.lower().endswith(ENDINGS) and item.is_file())
    return sorted(found) or [folder]


def each_report(paths: Sequence[Path], options: ReportOptions) -> Iterator[Report | MolprofError]:
    """The report of each path, in order and as soon as it is made; of one that cannot be read, the error.

    A path is a trace or a stored report. Each processor has one process that reads traces, one after the other.
    """
    count = max(1, min(len(paths), processors()))
    options = replace(options, processes=1)
    processes = [Served(SERVE, SERVE_HINT) for _ in range(count)]
    idle: SimpleQueue[Served] = SimpleQueue()
    for process in processes:
        idle.put(process)
    waiting: deque[Future[Report]] = deque()
    with ThreadPoolExecutor(max_workers=count) as pool:
        try:
            for path in paths:
                waiting.append(_begun(path, options, pool, idle))
                if len(waiting) > count * _AHEAD:
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
        finally:
            for process in processes:  # an interrupt waits for none of them
                process.kill()
            pool.shutdown(cancel_futures=True)
            for process in processes:
                process.close()


def _begun(path: Path, options: ReportOptions, pool: ThreadPoolExecutor, idle: SimpleQueue[Served]) -> Future[Report]:
    """The report of a path, of a trace that was not read before in a process."""
    known: Future[Report] = Future()
    try:
        kept = load_report(path, options) if str(path) == STDIN else kept_report(path, options) or read_stored(path)
    except MolprofError as error:
        known.set_exception(error)
        return known
    if kept is None:
        return pool.submit(_served, path, options, idle)
    known.set_result(kept)
    return known


def _served(path: Path, options: ReportOptions, idle: SimpleQueue[Served]) -> Report:
    process = idle.get()
    try:
        return decode_report(process.ask(request_of(path, options), str(path)))
    finally:
        idle.put(process)


def _result(future: Future[Report]) -> Report | MolprofError:
    try:
        return future.result()
    except MolprofError as error:
        return error
