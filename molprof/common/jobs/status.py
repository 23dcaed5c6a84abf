"""States of a job's tasks, from their records and Slurm's reports; once, or until all have ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molprof.common.document import Document, Section, named, objects, table_of
from molprof.common.errors import TraceError
from molprof.common.jobs.job import Job, TaskRecord, all_jobs, read_json
from molprof.common.jobs.scheduler import SchedulerError, Sighting, cancel, sightings
from molprof.common.process import FAILED, NO_MEMORY, NOT_MEASURED, OK, TIMED_OUT
from molprof.common.typed_json import read_typed

UNFINISHED = ("running", "pending", "unknown")
# In the order of a job's summary. `lost`: Slurm no longer knows the task, and it did not write that it ended;
# `stopped`: Slurm ended it for an unknown reason; `unknown`: Slurm does not answer.
STATES = (OK, FAILED, TIMED_OUT, NO_MEMORY, NOT_MEASURED, "preempted", "cancelled", "stopped", "lost", *UNFINISHED)
# Slurm's words for an end -> ours.
_ENDS = {
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted",
    "TIMEOUT": TIMED_OUT,
    "DEADLINE": TIMED_OUT,
    "OUT_OF_MEMORY": NO_MEMORY,
    "REVOKED": "cancelled",
}
# Often at first, when a job may fail at once; then rarely, because many users ask the same scheduler.
_FIRST_S, _LAST_S, _GROWTH = 1.0, 15.0, 1.3
PATIENCE_S = 60.0


@dataclass(frozen=True)
class TaskStatus:
    """The state of a task."""

    number: int  # its place in the job
    name: str
    state: str  # one of `STATES`
    message: str | None = None  # the error, or why it waits
    node: str | None = None
    started: str | None = None  # started, ended: in ISO format and UTC; None if it has not, or did not write it
    ended: str | None = None
    exit_code: int | None = None
    slurm_id: str | None = None  # its id in squeue


@dataclass(frozen=True)
class JobStatus:
    """The states of a job's tasks."""

    job: Job
    tasks: tuple[TaskStatus, ...]
    problem: str | None = None  # why Slurm did not answer; None if it did

    @property
    def finished(self) -> bool:
        """True if every task has ended, successfully or not."""
        return not any(task.state in UNFINISHED for task in self.tasks)

    @property
    def good(self) -> bool:
        """True if all tasks are done."""
        return all(task.state == OK for task in self.tasks)

    @property
    def summary(self) -> str:
        """Tasks by state, such as `3 ok, 1 failed`."""
        counts = Counter(task.state for task in self.tasks)
        return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])

    def failed(self) -> tuple[int, ...]:
        """Return the tasks that did not end well."""
        return tuple(task.number for task in self.tasks if task.state not in (*UNFINISHED, OK))


def job_status(job: Job) -> JobStatus:
    """Return the present state of a job. Waits for Slurm at most its time limit, and works without it."""
    return job_statuses([job])[0]


def job_statuses(jobs: Sequence[Job]) -> list[JobStatus]:
    """Return the states of several jobs, with one query to Slurm about all tasks without a known end."""
    open_ids = set()
    for job in jobs:
        seen = job.seen()
        for number in range(len(job.tasks)):
            slurm_id, record = job.slurm_task_id(number), _record(job, number)
            # Nothing that Slurm says could change the states of the others.
            if slurm_id is not None and slurm_id not in seen and (record is None or record.state not in (OK, FAILED)):
                open_ids.add(slurm_id.partition("_")[0])
    problem, now = None, dict[str, Sighting]()
    try:
        now = sightings(open_ids)
    except SchedulerError as error:
        problem = str(error)
    return [_status(job, now, problem) for job in jobs]


def cancel_unfinished(status: JobStatus) -> int:
    """Cancel the tasks of a job that wait or run; return how many."""
    ids = [task.slurm_id for task in status.tasks if task.state in UNFINISHED and task.slurm_id]
    if ids:
        cancel(ids)
    return len(ids)


def unfinished(jobs: Path, outputs: Collection[str | None]) -> dict[str, str]:
    """Return the outputs that a task has yet to write, each with its job's id, for all jobs in the folder `jobs`."""
    those = [job for job in all_jobs(jobs)[0] if any(task.output in outputs for task in job.tasks)]
    return {
        task.output: status.job.id
        for status in job_statuses(those)
        for task, now in zip(status.job.tasks, status.tasks, strict=True)
        if task.output is not None and task.output in outputs and now.state in UNFINISHED
    }


def _record(job: Job, number: int) -> TaskRecord | None:
    """Return the record of the latest attempt of a task; None if there is none yet."""
    path = job.record_path(number)
    try:
        record = read_typed(read_json(path), TaskRecord, str(path))
    except TraceError:
        return None
    return record if record.attempt == job.attempt_of(number) and record.state in STATES else None


def _status(job: Job, now: Mapping[str, Sighting], problem: str | None) -> JobStatus:
    """Return the state of a job. Slurm's reports on ended tasks are kept in the job's folder."""
    ends, tasks = job.seen(), []
    count = len(ends)
    for number, task in enumerate(job.tasks):
        record = _record(job, number)  # read after Slurm was asked: it may have ended meanwhile
        slurm_id = job.slurm_task_id(number)
        state: str = "lost"
        message: str | None = "its submission was interrupted before Slurm had it"
        if slurm_id is not None:
            # By its id or by the array's: so Slurm lists tasks that were cancelled before they ran.
            sighting = now.get(slurm_id) or now.get(slurm_id.partition("_")[0])
            if sighting is not None and not sighting.live:
                ends.setdefault(slurm_id, {"state": sighting.state, "reason": sighting.reason})
            end = ends.get(slurm_id, {}).get("state")
            state, message = _judged(record, sighting, end, problem, f"molprof jobs logs {job.id} {number}")
        kept = record or TaskRecord(None, state)
        tasks.append(
            TaskStatus(number, task.name, state, message, kept.node, kept.started, kept.ended, kept.exit_code, slurm_id)
        )
    if len(ends) > count:
        job.save_seen(ends)
    return JobStatus(job, tuple(tasks), problem)


def _judged(
    record: TaskRecord | None, sighting: Sighting | None, end: str | None, problem: str | None, log: str
) -> tuple[str, str | None]:
    """Return a task's state and message, from its record and Slurm's reports, current and final."""
    state = record.state if record else None
    message = record.message if record else None
    if state in (OK, FAILED):
        return state, message
    stopped = state is not None and state != "running"
    if sighting is not None and sighting.live:
        if sighting.state == "PENDING":
            waits = None if sighting.reason == "None" else sighting.reason
            return "pending", f"requeued after it was {state}" if stopped else waits
        if not stopped:
            return "running", None
    if end in _ENDS:
        return _ENDS[end], message
    if state is not None and stopped:
        return state, message
    if end is not None:  # failed or done for Slurm, and the task did not write it
        return FAILED, f"Slurm says {end}, and the task wrote no reason; see {log}"
    if problem is not None:
        return "unknown", "it was running" if state == "running" else "it had not started"
    return "lost", "Slurm no longer knows it, and it did not write that it ended"


def watch(job: Job, patience_s: float = PATIENCE_S) -> Iterator[JobStatus]:
    """Yield the job's status again and again until every task has ended.

    SchedulerError if the scheduler fails to answer for `patience_s`; the job goes on.
    """
    pause, answered = _FIRST_S, time.monotonic()
    while True:
        status = job_status(job)
        yield status
        if status.finished:
            return
        if status.problem is None:
            answered = time.monotonic()
        elif time.monotonic() - answered >= patience_s:
            raise SchedulerError(
                f"{job.id} can no longer be followed: {status.problem}",
                hint=f"its tasks go on and write their results; collect them later with molprof jobs collect {job.id}",
            )
        time.sleep(pause)
        pause = min(pause * _GROWTH, _LAST_S)


def jobs_document(statuses: Sequence[JobStatus]) -> Document:
    """Return a line for each job."""
    table = table_of(
        statuses, ("id", "text", "job.id"), ("cluster", "text", "job.cluster"), ("created", "text", "job.created"),
        ("tasks", "text", "summary"), ("folder", "text", "job.cwd"),
    )  # fmt: skip
    return Document("", (Section("", table=table),), lambda: [_data(item) for item in statuses])


def tasks_document(status: JobStatus) -> Document:
    """Return a line for each task of a job."""
    table = table_of(
        status.tasks, ("task", "index", "number"), ("name", "text"), ("state", "text"), ("slurm", "text", "slurm_id"),
        ("node", "text"), ("message", "text", lambda task: task.message or ""), missing="-",
    )  # fmt: skip
    return Document("", (Section("", table=table),), lambda: [_data(status)])


def _data(status: JobStatus) -> dict[str, Any]:
    head = named(status.job, "id", "kind", "cluster", "created", ("folder", lambda job: str(job.folder)))
    each = zip(status.tasks, objects(status.job.tasks, "arguments", "output"), strict=True)
    return head | named(status, "finished", "problem") | {"tasks": [vars(task) | written for task, written in each]}
