"""The state of a job's tasks, from what each wrote and what Slurm says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from molprof.common.errors import TraceError
from molprof.common.typed_json import read_typed
from molprof.profiler.cluster.job import Job, TaskRecord, read_json
from molprof.profiler.cluster.scheduler import SchedulerError, Sighting, sightings

# In the order of a job's summary.
STATES = (
    "ok",
    "failed",
    "timed out",
    "out of memory",
    "preempted",
    "cancelled",
    "stopped",
    "lost",
    "running",
    "pending",
    "unknown",
)
UNFINISHED = frozenset({"running", "pending", "unknown"})
# Slurm's words for an end -> ours.
_ENDS = {
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted",
    "TIMEOUT": "timed out",
    "DEADLINE": "timed out",
    "OUT_OF_MEMORY": "out of memory",
    "REVOKED": "cancelled",
}


@dataclass(frozen=True)
class TaskStatus:
    """State of a task."""

    number: int  # its place in the job
    name: str
    # one of `STATES`. `lost`: Slurm no longer knows it, and it did not write that it ended; `stopped`: Slurm ended it
    # for an unknown reason; `unknown`: Slurm does not answer
    state: str
    message: str | None = None  # the error, or why it waits
    node: str | None = None
    started: str | None = None  # started, ended: in ISO format and UTC; None if it has not, or did not write it
    ended: str | None = None
    exit_code: int | None = None
    slurm_id: str | None = None  # its id in squeue


@dataclass(frozen=True)
class JobStatus:
    """State of a job."""

    job: Job
    tasks: tuple[TaskStatus, ...]
    problem: str | None = None  # why Slurm did not answer; None if it did

    @property
    def finished(self) -> bool:
        """Every task has ended, well or not."""
        return not any(task.state in UNFINISHED for task in self.tasks)

    @property
    def good(self) -> bool:
        """Every task ended well."""
        return all(task.state == "ok" for task in self.tasks)

    @property
    def summary(self) -> str:
        """Tasks by state, such as `3 ok, 1 failed`."""
        counts = Counter(task.state for task in self.tasks)
        return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])

    def failed(self) -> tuple[int, ...]:
        """The tasks that did not end well."""
        return tuple(task.number for task in self.tasks if task.state not in UNFINISHED | {"ok"})


def job_status(job: Job) -> JobStatus:
    """Return the state of a job now. Waits for Slurm no longer than its time limit, and works without it."""
    return job_statuses([job])[0]


def job_statuses(jobs: Sequence[Job]) -> list[JobStatus]:
    """Return the state of several jobs, with one question to Slurm about all tasks whose end is not known yet."""
    records = [[_record(job, number) for number in range(len(job.tasks))] for job in jobs]
    seen = [job.seen() for job in jobs]
    asked = {
        attempt.slurm_id
        for job, known, entries in zip(jobs, seen, records, strict=True)
        for number, entry in enumerate(entries)
        if not _settled(entry, known.get(job.slurm_task_id(number) or ""))
        and (place := job.attempt_of(number)) is not None
        and (attempt := job.attempts[place]).slurm_id is not None
    }
    problem, now = None, dict[str, Sighting]()
    try:
        now = sightings({slurm_id for slurm_id in asked if slurm_id})
    except SchedulerError as error:
        problem = str(error)
    found = []
    for job, known, before in zip(jobs, seen, records, strict=True):
        ends = _remember(job, known, now)
        # A task may have ended after its record was read and before Slurm was asked.
        entries = [
            _record(job, number) if entry is None or entry.state == "running" else entry
            for number, entry in enumerate(before)
        ]
        tasks = [_task_status(job, number, entry, ends, now, problem) for number, entry in enumerate(entries)]
        found.append(JobStatus(job, tuple(tasks), problem))
    return found


def _record(job: Job, number: int) -> TaskRecord | None:
    """What the latest attempt of a task wrote; None if nothing yet."""
    path = job.record_path(number)
    try:
        record = read_typed(read_json(path), TaskRecord, str(path))
    except TraceError:
        return None
    return record if record.attempt == job.attempt_of(number) and record.state in STATES else None


def _settled(record: TaskRecord | None, seen: Mapping[str, str] | None) -> bool:
    """Whether nothing that Slurm says could change the task's state."""
    return seen is not None or (record is not None and record.state in ("ok", "failed"))


def _of_task(now: Mapping[str, Sighting], slurm_id: str) -> Sighting | None:
    """What Slurm says of a task, by its id or by the array's: so it lists tasks that were cancelled before they ran."""
    return now.get(slurm_id) or now.get(slurm_id.partition("_")[0])


def _remember(
    job: Job, seen: dict[str, dict[str, str]], now: Mapping[str, Sighting]
) -> Mapping[str, Mapping[str, str]]:
    """What Slurm said of ended tasks, now and before; kept in the job's folder."""
    ends = {}
    for number in range(len(job.tasks)):
        slurm_id = job.slurm_task_id(number)
        item = _of_task(now, slurm_id) if slurm_id else None
        if slurm_id and item and not item.live:
            ends[slurm_id] = {"state": item.state, "reason": item.reason}
    if ends.keys() - seen.keys():
        seen = {**seen, **ends}
        job.save_seen(seen)
    return seen


def _task_status(
    job: Job,
    number: int,
    record: TaskRecord | None,
    seen: Mapping[str, Mapping[str, str]],
    now: Mapping[str, Sighting],
    problem: str | None,
) -> TaskStatus:
    slurm_id, name = job.slurm_task_id(number), job.tasks[number].name
    state: str = "lost"
    message: str | None = "its submission was interrupted before Slurm had it"
    if slurm_id is not None:
        end = seen.get(slurm_id, {}).get("state")
        log = f"molprof logs {job.id} {number}"
        state, message = _judged(record, _of_task(now, slurm_id), end, problem, log)
    if record is None:
        return TaskStatus(number, name, state, message, slurm_id=slurm_id)
    return TaskStatus(
        number, name, state, message, record.node, record.started, record.ended, record.exit_code, slurm_id
    )


def _judged(
    record: TaskRecord | None, sighting: Sighting | None, end: str | None, problem: str | None, log: str
) -> tuple[str, str | None]:
    """A task's state and message, by what it wrote and what Slurm says, now and of its end."""
    own = record.state if record else None
    message = record.message if record else None
    if own in ("ok", "failed"):
        return own, message
    stopped = own is not None and own != "running"
    if sighting is not None and sighting.live:
        if sighting.state == "PENDING":
            waits = None if sighting.reason == "None" else sighting.reason
            return "pending", f"requeued after it was {own}" if stopped else waits
        if not stopped:
            return "running", None
    if end in _ENDS:
        return _ENDS[end], message
    if own is not None and stopped:
        return own, message
    if end is not None:  # failed or done for Slurm, and the task did not write it
        return "failed", f"Slurm says {end}, and the task wrote no reason; see {log}"
    if problem is not None:
        return "unknown", "it was running" if own == "running" else "it had not started"
    return "lost", "Slurm no longer knows it, and it did not write that it ended"
