"""How the tasks of a job stand: what each wrote about itself, and what the scheduler says, put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from molprof.profiler.cluster.job import Job, read_json
from molprof.profiler.cluster.scheduler import SchedulerError, Sighting, sightings

# In the order in which they are counted in one line.
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
    """How one task stands.

    Attributes:
        number: its place in the job.
        state: one of `STATES`. `lost`: Slurm no longer knows it and it left no word; `stopped`: Slurm ended it and
            nobody knows why; `unknown`: the scheduler does not answer.
        message: the error, or why it waits; None where there is nothing to say.
        node: where it ran, None if it has not.
        started, ended: when, in ISO format and UTC; None where it has not or left no word.
        slurm_id: what squeue calls it.
    """

    number: int
    name: str
    state: str
    message: str | None = None
    node: str | None = None
    started: str | None = None
    ended: str | None = None
    exit_code: int | None = None
    slurm_id: str | None = None


@dataclass(frozen=True)
class JobStatus:
    """How a job stands.

    Attributes:
        problem: why the scheduler could not be asked; None where it answered.
    """

    job: Job
    tasks: tuple[TaskStatus, ...]
    problem: str | None = None

    @property
    def finished(self) -> bool:
        """Every task has come to its end, well or not."""
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
        """The tasks that ended otherwise than well."""
        return tuple(task.number for task in self.tasks if task.state not in UNFINISHED | {"ok"})


def job_status(job: Job) -> JobStatus:
    """How a job stands now. Never waits longer than the scheduler's time limit, and works without a scheduler."""
    return job_statuses([job])[0]


def job_statuses(jobs: Sequence[Job]) -> list[JobStatus]:
    """The same of many jobs, with one question to the scheduler about all whose end is not known yet."""
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
        # A task that ended after its word was read and before Slurm was asked has left another one by now.
        entries = [
            _record(job, number) if entry is None or entry["state"] == "running" else entry
            for number, entry in enumerate(before)
        ]
        tasks = [_judge(job, number, entry, ends, now, problem) for number, entry in enumerate(entries)]
        found.append(JobStatus(job, tuple(tasks), problem))
    return found


def _record(job: Job, number: int) -> dict[str, Any] | None:
    """What the latest attempt of a task wrote; None: nothing yet."""
    record = read_json(job.record_path(number))
    if record is None or record.get("attempt") != job.attempt_of(number) or record.get("state") not in STATES:
        return None
    texts = (record.get(name) for name in ("message", "node", "started", "ended"))
    return record if all(text is None or isinstance(text, str) for text in texts) else None


def _settled(record: Mapping[str, Any] | None, seen: Mapping[str, str] | None) -> bool:
    """Nothing that the scheduler says could change the task's state."""
    return seen is not None or (record is not None and record["state"] in ("ok", "failed"))


def _of_task(now: Mapping[str, Sighting], slurm_id: str) -> Sighting | None:
    """What is said of a task: by its own id, or by the array's, as Slurm lists tasks that were cancelled unstarted."""
    return now.get(slurm_id) or now.get(slurm_id.partition("_")[0])


def _remember(
    job: Job, seen: dict[str, dict[str, str]], now: Mapping[str, Sighting]
) -> Mapping[str, Mapping[str, str]]:
    """What the scheduler said about ends, now and before; written down where there is news."""
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


def _judge(
    job: Job,
    number: int,
    record: Mapping[str, Any] | None,
    seen: Mapping[str, Mapping[str, str]],
    now: Mapping[str, Sighting],
    problem: str | None,
) -> TaskStatus:
    slurm_id = job.slurm_task_id(number)
    entry = record or {}

    def status(state: str, message: str | None = None) -> TaskStatus:
        return TaskStatus(
            number,
            job.tasks[number].name,
            state,
            message,
            entry.get("node"),
            entry.get("started"),
            entry.get("ended"),
            entry.get("exit_code"),
            slurm_id,
        )

    if slurm_id is None:
        return status("lost", "its submission was cut short before Slurm had it")
    own = entry.get("state")
    if own in ("ok", "failed"):
        return status(own, entry.get("message"))
    sighting = _of_task(now, slurm_id)
    if sighting is not None and sighting.live:
        if sighting.state == "PENDING":
            waits = None if sighting.reason == "None" else sighting.reason
            return status("pending", f"again, after it was {own}" if own not in (None, "running") else waits)
        if own in (None, "running"):
            return status("running")
    end = seen.get(slurm_id)
    if end is not None and (ended := _ENDS.get(end["state"])) is not None:
        return status(ended, entry.get("message"))
    if own not in (None, "running"):
        return status(own, entry.get("message"))
    if end is not None:  # Slurm calls it failed, or done, and the task left no word
        return status(
            "failed", f"Slurm says {end['state']} and the task left no word; molprof logs {job.id} {number} may say why"
        )
    if problem is not None:
        return status("unknown", "running when last heard of" if own == "running" else "not started when last heard of")
    if sighting is not None:  # live, completing
        return status("running")
    return status("lost", "Slurm no longer knows it, and it left no word")
