"""The folder of a sweep: its traces, groups of similar ones, and results of tasks on a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from molprof.common.bench_records import GENERATE, RESULTS, CaseResult, is_sweep, read_sweep
from molprof.common.errors import UsageError
from molprof.common.process import OK
from molprof.common.values import now
from molprof.profiler.jobs.results_file import ResultsFile

if TYPE_CHECKING:
    from molprof.common.jobs.status import JobStatus

# Options of which `alike` compares the values, in this order.
_COMPARED = ("processor", "model")


def _captures(path: Path) -> tuple[Path, list[CaseResult] | None]:
    """Return the folder of a sweep, from its path or its results', and the captures in it; None for another path."""
    folder = path if path.is_dir() else path.parent
    if not (path.is_dir() or path.name == RESULTS) or not is_sweep(folder):
        return folder, None
    return folder, [item for item in read_sweep(folder).results if item.arguments[:1] == ["capture"]]


def expanded(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the paths, with sweeps (folder or results) replaced by their traces, and a remark per missing trace."""
    replaced: list[Path] = []
    remarks: list[str] = []
    for path in paths:
        folder, traces = _captures(path)
        if traces is None:
            replaced.append(path)
            continue
        if traces and all(item.kind == GENERATE for item in traces):
            raise UsageError(f"the sweep {folder} recorded no trace", hint=f"molprof sweep show {folder}")
        there = [item for item in traces if (folder / str(item.output)).is_file()]
        if not there:
            raise UsageError(f"the sweep {folder} has no trace yet", hint="molprof sweep FILE --resume")
        replaced += [folder / str(item.output) for item in there]
        remarks += [f"{folder}: no trace of {item.case} ({item.problem})" for item in traces if item not in there]
    return replaced, remarks


def alike(path: Path, over: str | None = None) -> list[tuple[str, list[Path]]]:
    """Return the traces of a sweep in groups that differ in one option alone, each named by what it shares.

    path: its folder or results.

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
        if (folder / str(item.output)).is_file():
            groups.setdefault(shared, []).append(folder / str(item.output))
    return list(groups.items())


def collected(status: JobStatus) -> None:
    """Write the states of a cluster's tasks into the results of their sweep."""
    folder = Path((status.job.data or {})["folder"])
    if not is_sweep(folder):
        return
    tasks = {Path(task.output or "").name: seen for task, seen in zip(status.job.tasks, status.tasks, strict=True)}
    changed = []
    for item in read_sweep(folder).results:
        if task := tasks.get(str(item.output)):
            is_there = (folder / str(item.output)).is_file()  # by this job or another
            state, message = (OK, None) if is_there else (task.state, task.message)
            if (item.status, item.message) != (state, message):
                changed.append(asdict(item) | {"status": state, "message": message, "figures": None})
    if changed:
        with contextlib.closing(ResultsFile(folder / RESULTS)) as results:
            for record in changed:
                results.write({"record": "result", **record, "ended": now()})
