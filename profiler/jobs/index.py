"""The folder of a sweep: its index of cases, traces and states, and captures of cases on this machine."""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molprof.common.errors import TraceError, UsageError
from molprof.common.process import run_child
from molprof.common.typed_json import read_typed
from molprof.profiler.jobs.job import read_json, write_json

if TYPE_CHECKING:
    from molprof.profiler.jobs.status import JobStatus

SCHEMA = 1
INDEX = "index.json"
LOGS = "logs"
KIND = "molprof sweep"


@dataclass(frozen=True)
class Entry:
    name: str
    trace: str  # its file, in the folder
    options: Mapping[str, Any]  # the values that it takes from the grid
    arguments: tuple[str, ...]  # its command line after `molprof capture`, without the output
    # `waiting`, `unsupported` (the options exclude each other), `submitted`, `ok`, `failed`, `timed out`, or another
    # state of a cluster's task
    state: str = "waiting"
    message: str | None = None  # why it did not end well
    seconds: float | None = None  # its duration, with loading and warm-up; None if not measured
    job: str | None = None  # the cluster's job that runs it; None if it ran here or has not run


def write_index(folder: Path, entries: Collection[Entry]) -> None:
    write_json(folder / INDEX, {"schema": SCHEMA, "kind": KIND, "cases": [asdict(entry) for entry in entries]})


def read_index(folder: Path) -> tuple[Entry, ...] | None:
    """Return the index in a folder; None if there is none."""
    path = folder / INDEX
    content = read_json(path)
    if content is None or content.get("kind") != KIND:
        return None
    if not isinstance(content.get("schema"), int) or content["schema"] > SCHEMA:
        raise TraceError(f"{path} is of schema {content.get('schema')!r}; this molprof reads up to {SCHEMA}")
    entries = read_typed(content.get("cases"), tuple[Entry, ...], f"{path}: cases", "molprof sweep FILE --resume")
    for entry in entries:
        if Path(entry.trace).name != entry.trace:
            raise TraceError(f"{path} names a trace outside its folder: {entry.trace!r}")
    return entries


def expanded(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the paths, a sweep (folder or index) replaced by its traces, and a remark for each missing trace."""
    found: list[Path] = []
    remarks: list[str] = []
    for path in paths:
        folder = path if path.is_dir() else path.parent
        entries = read_index(folder) if path.is_dir() or path.name == INDEX else None
        if entries is None:
            found.append(path)
            continue
        there = [folder / entry.trace for entry in entries if (folder / entry.trace).is_file()]
        if not there:
            raise UsageError(f"the sweep {folder} has no trace yet", hint="molprof sweep FILE --resume")
        found += there
        for entry in entries:
            if not (folder / entry.trace).is_file():
                reason = f"{entry.state}: {entry.message}" if entry.message else entry.state
                remarks.append(f"{folder}: no trace of {entry.name} ({reason})")
    return found, remarks


def remaining(
    folder: Path, entries: dict[str, Entry], chosen: list[Entry], resume: bool, force: bool, busy: Container[str]
) -> list[Entry]:
    """Put what an earlier sweep left in the folder into `entries`; return those that remain to be captured."""
    earlier = {entry.name: entry for entry in read_index(folder) or ()}
    left = []
    for entry in chosen:
        before, trace = earlier.get(entry.name), folder / entry.trace
        if before is not None and entry.name in busy:
            entries[entry.name] = before
        elif force or not trace.exists():
            left.append(entry)
        elif not resume:
            raise UsageError(f"{trace} already exists", hint="--resume keeps it, --force replaces it")
        elif before is None or before.arguments != entry.arguments:
            raise UsageError(
                f"{trace} was captured with other options than {entry.name} has now",
                hint="name another folder with -o DIR, or capture all again with --force",
            )
        else:
            entries[entry.name] = replace(before, state="ok", message=None)
    write_index(folder, entries.values())
    return left


def run_cases(
    folder: Path, entries: dict[str, Entry], commands: Mapping[str, Sequence[str]], limit_s: float | None = None
) -> Iterator[Entry]:
    """Capture cases one after the other, each in a separate process, and yield each before and after its run.

    `commands` holds the command lines, after `molprof`, of the cases to capture. The index is written after each case,
    so that an interrupt keeps what is done. The output of a case is in `logs/NAME.log` of the folder.
    """
    (folder / LOGS).mkdir(exist_ok=True)
    for name, command in commands.items():
        yield replace(entries[name], state="running")
        begin = time.monotonic()
        with (folder / LOGS / f"{name}.log").open("wb") as log:
            ending = run_child(command, Path.cwd(), log, limit_s)
        seconds = round(time.monotonic() - begin, 1)
        entries[name] = replace(entries[name], state=ending.state, message=ending.message, seconds=seconds)
        write_index(folder, entries.values())
        yield entries[name]


def collected(status: JobStatus) -> None:
    """Write the states of a cluster's tasks into the index of their sweep."""
    folder = Path((status.job.data or {})["folder"])
    tasks = {task.name: task for task in status.tasks}
    entries = []
    for entry in read_index(folder) or ():
        if (folder / entry.trace).is_file():  # by this job or another: traces are written whole
            entry = replace(entry, state="ok", message=None)
        elif task := tasks.get(entry.name):
            entry = replace(entry, state=task.state, message=task.message)
        entries.append(entry)
    write_index(folder, entries)
