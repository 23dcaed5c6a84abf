"""The folder of a sweep: its index of cases, outputs and states, and cases that run on this machine."""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molprof.common.errors import TraceError, UsageError
from molprof.common.process import OK, Ending, command_line, run_line
from molprof.common.typed_json import read_typed
from molprof.profiler.jobs.job import check_schema, read_json, write_json

if TYPE_CHECKING:
    from molprof.profiler.jobs.status import JobStatus

SCHEMA = 2
INDEX = "index.json"
LOGS = "logs"
KIND = "molprof sweep"
_AGAIN = "molprof sweep FILE --resume"
# Options of which `alike` compares the values, in this order.
_COMPARED = ("processor", "model")


@dataclass(frozen=True)
class Entry:
    name: str
    output: str  # the file that it writes, in the folder
    options: dict[str, Any]  # the values that it takes from the grid
    arguments: tuple[str, ...]  # its command line after `molprof`, without the output
    # `waiting`, `unsupported` (the options exclude each other), `submitted`, `ok`, `failed`, `timed out`, or another
    # state of a cluster's task
    state: str = "waiting"
    message: str | None = None  # why it did not end well
    seconds: float | None = None  # its duration, with loading and warm-up; None if not measured
    job: str | None = None  # the cluster's job that runs it; None if it ran here or has not run

    @property
    def problem(self) -> str:
        return f"{self.state}: {self.message}" if self.message else self.state


def write_index(folder: Path, entries: Collection[Entry]) -> None:
    write_json(folder / INDEX, {"schema": SCHEMA, "kind": KIND, "cases": [asdict(entry) for entry in entries]})


def read_index(folder: Path) -> tuple[Entry, ...] | None:
    """Return the index in a folder; None if there is none."""
    path = folder / INDEX
    content = read_json(path)
    if content is None or content.get("kind") != KIND:
        return None
    check_schema(path, content, SCHEMA, TraceError)
    entries = read_typed(content.get("cases"), tuple[Entry, ...], f"{path}: cases", _AGAIN)
    for entry in entries:
        if Path(entry.output).name != entry.output:
            raise TraceError(f"{path} names a file outside its folder: {entry.output!r}")
    return entries


def _captures(path: Path) -> tuple[Path, list[Entry] | None]:
    """The folder of a sweep, given by itself or its index, and the captures in it; None of another path."""
    folder = path if path.is_dir() else path.parent
    entries = read_index(folder) if path.is_dir() or path.name == INDEX else None
    return folder, None if entries is None else [entry for entry in entries if entry.arguments[0] == "capture"]


def expanded(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the paths, a sweep (folder or index) replaced by its traces, and a remark for each missing trace."""
    found: list[Path] = []
    remarks: list[str] = []
    for path in paths:
        folder, traces = _captures(path)
        if traces is None:
            found.append(path)
            continue
        there = [entry for entry in traces if (folder / entry.output).is_file()]
        if not there:
            raise UsageError(f"the sweep {folder} has no trace yet", hint=_AGAIN)
        found += [folder / entry.output for entry in there]
        remarks += [f"{folder}: no trace of {entry.name} ({entry.problem})" for entry in traces if entry not in there]
    return found, remarks


def alike(path: Path, over: str | None = None) -> list[tuple[str, list[Path]]]:
    """The traces of a sweep (folder or index) in groups that differ in one option alone, by what each group shares.

    One group is all of a sweep with one option that varies; nothing comes of another path.

    Args:
        over: that option; None: `processor`, else `model`, else the last one that varies.

    Raises:
        UsageError: the sweep does not vary it.
    """
    folder, traces = _captures(path)
    traces = traces or []
    names = dict.fromkeys(name for item in traces for name in item.options)
    varied = [name for name in names if len({str(item.options.get(name)) for item in traces}) > 1]
    if over is not None and over not in varied:
        raise UsageError(f"{path} does not vary {over!r}", hint=f"it varies {', '.join(varied) or 'nothing'}")
    chosen = over or next((name for name in _COMPARED if name in varied), varied[-1] if varied else "")
    groups: dict[str, list[Path]] = {}
    for item in traces:
        shared = ", ".join(f"{name} {item.options.get(name)}" for name in varied if name != chosen)
        if (folder / item.output).is_file():
            groups.setdefault(shared, []).append(folder / item.output)
    return list(groups.items())


def remaining(
    folder: Path, entries: dict[str, Entry], chosen: list[Entry], resume: bool, force: bool, busy: Container[str]
) -> list[Entry]:
    """Put what an earlier sweep left in the folder into `entries`; return those that remain to be run."""
    earlier = {entry.name: entry for entry in read_index(folder) or ()}
    left = []
    for entry in chosen:
        before, output = earlier.get(entry.name), folder / entry.output
        if before is not None and entry.name in busy:
            entries[entry.name] = before
        elif force or not output.exists():
            left.append(entry)
        elif not resume:
            raise UsageError(f"{output} already exists", hint="--resume keeps it, --force replaces it")
        elif before is None or before.arguments != entry.arguments:
            raise UsageError(
                f"{output} was made with other options than {entry.name} has now",
                hint="name another folder with -o DIR, or make all again with --force",
            )
        elif before.state != OK and not _whole(output):
            left.append(entry)
        else:
            entries[entry.name] = replace(before, state=OK, message=None)
    write_index(folder, entries.values())
    return left


def _whole(output: Path) -> bool:
    """Whether a case that wrote the file has ended: benchmarks add to theirs line by line, others write it at once."""
    return output.is_file() and output.suffix != ".jsonl"


def run_entry(
    folder: Path, entries: dict[str, Entry], name: str, command: Sequence[str], limit_s: float | None
) -> Ending:
    """Run the command line of an entry, with its output in `logs/NAME.log`, and write how it ended into the index."""
    (folder / LOGS).mkdir(exist_ok=True)
    began = time.monotonic()
    with (folder / LOGS / f"{name}.log").open("wb") as log:
        ending = run_line(command_line(command), Path.cwd(), log, limit_s)
    ending = replace(ending, seconds=round(time.monotonic() - began, 1))
    entries[name] = replace(entries[name], state=ending.state, message=ending.message, seconds=ending.seconds)
    write_index(folder, entries.values())
    return ending


def collected(status: JobStatus) -> None:
    """Write the states of a cluster's tasks into the index of their sweep."""
    folder = Path((status.job.data or {})["folder"])
    tasks = {task.name: task for task in status.tasks}
    entries = []
    for entry in read_index(folder) or ():
        if _whole(folder / entry.output):  # by this job or another
            entry = replace(entry, state=OK, message=None)
        elif task := tasks.get(entry.name):
            entry = replace(entry, state=task.state, message=task.message)
        entries.append(entry)
    write_index(folder, entries)
