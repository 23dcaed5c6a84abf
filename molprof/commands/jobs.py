"""`molprof jobs`: jobs on a cluster, and their states."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from molprof.commands.options import Result, note, result_options
from molprof.commands.submission import config_option, project_jobs
from molprof.common.errors import UsageError

if TYPE_CHECKING:
    from molprof.profiler.cluster.status import JobStatus


@click.command("jobs")
@click.argument("name", metavar="[ID]", required=False)
@click.option("--requeue", "again", is_flag=True, help="Submit the failed tasks of ID again.")
@click.option("--cancel", "stop", is_flag=True, help="Cancel the waiting and running tasks of ID.")
@result_options()
@config_option
def command(name: str | None, again: bool, stop: bool, result: Result, config: Path | None) -> None:
    """List the jobs of this project, or the tasks of the job ID: capture-3, or 3 for short.

    If Slurm does not answer, the states are the last that the tasks wrote.

    \b
    Examples:
      molprof jobs
      molprof jobs sweep-2
      molprof jobs sweep-2 --requeue
      molprof jobs capture-3 --cancel
    """
    if name is None and (again or stop):
        raise click.UsageError("--requeue and --cancel require the ID of a job; molprof jobs lists them")
    if again and stop:
        raise click.UsageError("--requeue and --cancel exclude each other")
    result.check()
    from molprof.profiler.cluster.document import jobs_document, tasks_document
    from molprof.profiler.cluster.job import all_jobs, find_job
    from molprof.profiler.cluster.status import job_statuses

    folder = project_jobs(config)
    jobs, problems = all_jobs(folder) if name is None else ([find_job(folder, name)], [])
    note(*problems)
    statuses = job_statuses(jobs)
    for problem in {status.problem for status in statuses if status.problem}:
        note(f"Slurm does not answer, so these are the states that the tasks wrote: {problem}")
    if again:
        _requeue(statuses[0])
    elif stop:
        _cancel(statuses[0])
    elif name is not None:
        result.deliver(tasks_document(statuses[0]))
    elif statuses or result.style == "json":
        result.deliver(jobs_document(statuses))
    else:
        note(f"no job in {folder}")


def _requeue(status: JobStatus) -> None:
    from molprof.profiler.cluster.submit import requeue

    job, tasks = status.job, status.failed()
    if not tasks:
        raise UsageError(f"{job.id} has no task to submit again: {status.summary}")
    done = requeue(job, tasks)
    note(f"submitted {len(tasks)} of {len(job.tasks)} tasks of {job.id} again: Slurm job {done.attempts[-1].slurm_id}")


def _cancel(status: JobStatus) -> None:
    from molprof.profiler.cluster.scheduler import cancel
    from molprof.profiler.cluster.status import UNFINISHED

    found = [task.slurm_id for task in status.tasks if task.state in UNFINISHED and task.slurm_id]
    if not found:
        raise UsageError(f"no task of {status.job.id} waits or runs: {status.summary}")
    cancel(found)
    note(f"cancelled {len(found)} of {len(status.tasks)} tasks of {status.job.id}")
