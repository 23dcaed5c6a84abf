"""Jobs that the tests hand to a real Slurm, and waiting for what becomes of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from molprof.profiler.jobs.job import Job, Task
from molprof.profiler.jobs.resources import SlurmSettings
from molprof.profiler.jobs.status import JobStatus, watch

ONE_CORE = SlurmSettings(cpus=1, time_minutes=10)


def report(name: str) -> Task:
    """A task that reports `NAME.json` into `NAME.out.json`."""
    output = str(Path(f"{name}.out.json").absolute())
    return Task(name, ("report", f"{name}.json", "--no-cache", "--format", "json", "-o", output), output)


def endless(name: str) -> Task:
    """A task that runs until something is written into its pipe."""
    os.mkfifo(f"{name}.json")
    return report(name)


def until(job: Job, condition: Callable[[JobStatus], bool]) -> JobStatus:
    """The first status that satisfies the condition; a job that ends without it is the test's failure."""
    for status in watch(job):
        if condition(status):
            return status
    raise AssertionError(f"{job.id} ended without: {status}")


def ended(job: Job) -> JobStatus:
    return until(job, lambda status: status.finished)


def running(status: JobStatus) -> bool:
    """Every task runs, and has said so itself."""
    return all(task.state == "running" and task.node for task in status.tasks)


def states(status: JobStatus) -> list[str]:
    return [task.state for task in status.tasks]
