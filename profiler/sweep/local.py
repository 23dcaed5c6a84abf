"""A sweep on this machine: case after case, each in a separate process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from molprof.common.process import run_child
from molprof.profiler.sweep.index import Entry, write_index

LOGS = "logs"
Report = Callable[[int, Entry], None]


def run_cases(
    folder: Path,
    entries: Sequence[Entry],
    chosen: Sequence[int],
    command: Callable[[Entry], Sequence[str]],
    limit_s: float | None = None,
    report: Report = lambda number, entry: None,
) -> tuple[Entry, ...]:
    """Capture cases, and return all entries with their new states. If one fails, the others still run.

    The index is written after each case, so that an interrupt keeps what is done. The output of a case is in
    `logs/NAME.log` of the folder.

    Args:
        chosen: numbers of the cases to capture.
        command: returns the command line of a case, after `molprof`.
        limit_s: seconds until a case is stopped; None: no limit.
        report: called before each case (state `running`) and after it.
    """
    known = list(entries)
    (folder / LOGS).mkdir(exist_ok=True)
    for number in chosen:
        report(number, replace(known[number], state="running"))
        begin = time.monotonic()
        with (folder / LOGS / f"{known[number].name}.log").open("wb") as log:
            ending = run_child(command(known[number]), Path.cwd(), log, limit_s)
        seconds = round(time.monotonic() - begin, 1)
        known[number] = replace(known[number], state=ending.state, message=ending.message, seconds=seconds)
        write_index(folder, known)
        report(number, known[number])
    return tuple(known)
