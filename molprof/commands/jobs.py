"""`molprof jobs`: jobs on a cluster, and their states."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from molprof.commands.options import deliver, note
from molprof.commands.submission import config_option, project_jobs, task_table
from molprof.common.errors import UsageError
from molprof.common.text import aligned, escaped_json

if TYPE_CHECKING:
    from molprof.profiler.cluster.status import JobStatus


@click.command("jobs")
@click.argument("name", metavar="[ID]", required=False)
@click.option("--requeue", "again", is_flag=True, help="Submit the tasks of ID again that did not end well.")
@click.option("--cancel", "stop", is_flag=True, help="Cancel the tasks of ID that wait or run.")
@click.option("--format", "style", type=click.Choice(("table", "json")), default="table", show_default=True)
@config_option
def command(name: str | None, again: bool, stop: bool, style: str, config: Path | None) -> None:
    """Lists the jobs of this project, or the tasks of the job ID: capture-3, or 3 for short.

    If Slurm does not answer, the states are those that the tasks wrote.

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
    from molprof.profiler.cluster.job import all_jobs, find_job
    from molprof.profiler.cluster.status import job_statuses

    folder = project_jobs(config)
    jobs, problems = all_jobs(folder) if name is None else ([find_job(folder, name)], [])
    for problem in problems:
        note(problem)
    statuses = job_statuses(jobs)
    for problem in {status.problem for status in statuses if status.problem}:
        note(f"Slurm does not answer, so these are the states that the tasks wrote: {problem}")
    if again:
        _requeue(statuses[0])
    elif stop:
        _cancel(statuses[0])
    elif style == "json":
        deliver(escaped_json(json.dumps([_to_json(status) for status in statuses], indent=2)), None)
    elif name is not None:
        deliver(task_table(statuses[0]), None)
    elif statuses:
        rows = [("ID", "CLUSTER", "CREATED", "TASKS", "")]
        rows += [(item.job.id, item.job.cluster, item.job.created, item.summary, item.job.cwd) for item in statuses]
        deliver(aligned(rows), None)
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


def _to_json(status: JobStatus) -> dict[str, Any]:
    job = status.job
    return {
        "id": job.id,
        "kind": job.kind,
        "cluster": job.cluster,
        "created": job.created,
        "folder": str(job.folder),
        "finished": status.finished,
        "problem": status.problem,
        "tasks": [
            {**asdict(task), "arguments": list(item.arguments), "output": item.output}
            for task, item in zip(status.tasks, job.tasks, strict=True)
        ],
    }
