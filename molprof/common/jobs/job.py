"""A job's folder: its command lines, its Slurm jobs, and the records of its tasks."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from molprof.common.errors import RunError, UsageError
from molprof.common.files import replacing
from molprof.common.jobs.resources import SlurmSettings
from molprof.common.process import call_line, command_line
from molprof.common.typed_json import read_typed

SCHEMA = 1
VARIABLE = "MOLPROF_JOBS"
_FILE, _SEEN = "job.json", "seen.json"
_SCRIPT = re.compile(r"(\d+)_submission\.sh")


@dataclass(frozen=True)
class Task:
    """One command line of molprof."""

    name: str  # short, for tables
    arguments: tuple[str, ...]  # what follows `molprof`
    output: str | None = None  # the file that it writes; None if none
    call: str | None = None  # file of a pickled call, in place of a command line

    @property
    def line(self) -> list[str]:
        """The command line of its process."""
        if self.call is None:
            return command_line(self.arguments)
        return call_line("molprof.common.jobs.submit:answer_call", self.call)

    @property
    def answer(self) -> Path:
        """The file of what its call returned, or raised."""
        return Path(f"{self.call}.answer")


@dataclass(frozen=True)
class TaskRecord:
    """A task's own record."""

    attempt: int | None
    state: str  # `running` until it has ended; then how it ended
    node: str | None = None
    started: str | None = None  # started, ended: in ISO format and UTC
    ended: str | None = None
    exit_code: int | None = None  # of its command line; below 0 the signal that killed it
    message: str | None = None  # why it did not end well


@dataclass(frozen=True)
class Attempt:
    """One submission, of all tasks or of requeued ones."""

    tasks: tuple[int, ...]  # their numbers; of more than one, the Slurm job is an array in this order
    slurm_id: str | None  # the Slurm job; None if the submission was cut short
    submitted: str  # when, in ISO format and UTC


@dataclass(frozen=True)
class Job:
    """Command lines that run on a cluster."""

    folder: Path  # `.molprof/jobs/ID`
    kind: str  # the command that submitted it
    cluster: str  # the table's name
    slurm: SlurmSettings  # its values, with those of --slurm
    cwd: str  # folder that the tasks run in
    created: str
    tasks: tuple[Task, ...]
    attempts: tuple[Attempt, ...] = ()
    data: Mapping[str, Any] | None = None  # what that command needs to finish the results
    limit_s: float | None = None  # of each task, besides Slurm's

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.folder.name

    def attempt_of(self, task: int) -> int | None:
        """Return the number, from 0, of the task's latest attempt; None if it was never submitted."""
        return max((number for number, item in enumerate(self.attempts) if task in item.tasks), default=None)

    def slurm_task_id(self, task: int) -> str | None:
        """Return the id in squeue of a task's latest attempt; None if it has none."""
        if (number := self.attempt_of(task)) is None:
            return None
        attempt = self.attempts[number]
        alone = attempt.slurm_id is None or len(attempt.tasks) == 1
        return attempt.slurm_id if alone else f"{attempt.slurm_id}_{attempt.tasks.index(task)}"

    def attempt_folder(self, number: int) -> Path:
        """Return the folder of submitit's script, pickles and logs of an attempt."""
        return self.folder / f"attempt-{number + 1}"

    def record_path(self, task: int) -> Path:
        """Return the path of a task's record."""
        return self.folder / "tasks" / f"{task}.json"

    def log(self, task: int) -> Path | None:
        """Return the log of a task's latest attempt; None if it has not begun."""
        path = self.attempt_folder(self.attempt_of(task) or 0) / f"{self.slurm_task_id(task)}_0_log.out"
        return path if path.is_file() else None

    def save(self) -> None:
        """Write the job to its folder."""
        content = asdict(self) | {"schema": SCHEMA, "slurm": self.slurm.to_json()}
        del content["folder"]
        write_json(self.folder / _FILE, content)

    def seen(self) -> dict[str, dict[str, str]]:
        """Return Slurm's last report on ended tasks, by their ids. Slurm itself forgets it after minutes."""
        return read_json(self.folder / _SEEN) or {}

    def save_seen(self, seen: Mapping[str, Mapping[str, str]]) -> None:
        """Save Slurm's last report on ended tasks."""
        write_json(self.folder / _SEEN, seen)


def new_job_folder(jobs: Path, kind: str) -> Path:
    """Make a folder `KIND-NUMBER` with a new number, safe against other processes."""
    try:
        jobs.mkdir(parents=True, exist_ok=True)
        number = max((_number(path) for path in jobs.iterdir()), default=0)
        while True:
            number += 1
            with contextlib.suppress(FileExistsError):
                (jobs / f"{kind}-{number}").mkdir()
                (jobs / f"{kind}-{number}" / "tasks").mkdir()
                return jobs / f"{kind}-{number}"
    except OSError as error:
        hint = f"set {VARIABLE} to another folder that the cluster's nodes see"
        raise UsageError(f"cannot keep jobs in {jobs}: {error.strerror}", hint) from error


def _number(folder: Path) -> int:
    digits = folder.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


def jobs_folder(project: Path) -> Path:
    """Return the folder of jobs: `MOLPROF_JOBS`, else `.molprof/jobs` in the project's folder."""
    named = os.environ.get(VARIABLE)
    return Path(named).absolute() if named else project / ".molprof" / "jobs"


def find_job(jobs: Path, name: str) -> Job:
    """Return the job `capture-3`, or `3` for short."""
    folders = _folders(jobs)
    for folder in folders:
        if folder.name == name or (name.isdigit() and _number(folder) == int(name)):
            return read_job(folder)
    shown = ", ".join(folder.name for folder in folders[-5:])
    raise UsageError(f"no job {name!r} in {jobs}", hint=f"the latest: {shown}" if shown else "no job was submitted")


def all_jobs(jobs: Path) -> tuple[list[Job], list[str]]:
    """Return every job, oldest first, and the reasons why others cannot be read."""
    read_jobs, problems = [], []
    for folder in _folders(jobs):
        try:
            read_jobs.append(read_job(folder))
        except RunError as error:
            problems.append(str(error))
    return read_jobs, problems


def _folders(jobs: Path) -> list[Path]:
    return sorted((path.parent for path in jobs.glob(f"*/{_FILE}")), key=_number)


def read_job(folder: Path) -> Job:
    """Return the job stored in a folder; RunError if its file is damaged, or of another molprof."""
    path = folder / _FILE
    content = read_json(path)
    if content is None:
        raise RunError(f"{path} cannot be read", hint="its Slurm job, if any, goes on; squeue lists it")
    if content.get("schema") != SCHEMA:
        raise RunError(f"{path} is of schema {content.get('schema')!r}; this molprof reads {SCHEMA}")
    kinds = {name: kind for name, kind in get_type_hints(Job).items() if name != "folder"}
    read = {
        name: read_typed(content.get(name), kind, f"{path}: {name}", error=RunError) for name, kind in kinds.items()
    }
    job = Job(folder, **read)
    return replace(job, attempts=tuple(_submitted(job, number) for number in range(len(job.attempts))))


def _submitted(job: Job, number: int) -> Attempt:
    """Return the attempt with the Slurm id in submitit's script name, if its submission was interrupted."""
    scripts = (_SCRIPT.fullmatch(path.name) for path in job.attempt_folder(number).glob("*"))
    slurm_id = next((match[1] for match in scripts if match), None)
    return replace(job.attempts[number], slurm_id=job.attempts[number].slurm_id or slurm_id)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON whole or not at all."""
    with replacing(path) as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is no such file, or it holds something else."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else None
    return None
