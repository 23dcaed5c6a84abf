"""`molprof jobs`, `molprof collect` and `molprof logs`: jobs on a cluster, their states, results and output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from molprof.commands.options import Result, note, result_options, write
from molprof.commands.submission import Submission, config_option, follow, settle
from molprof.common.errors import UsageError
from molprof.common.text import escaped

if TYPE_CHECKING:
    from molprof.profiler.jobs.job import Job
    from molprof.profiler.jobs.status import JobStatus


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
    from molprof.profiler.jobs.job import all_jobs, find_job
    from molprof.profiler.jobs.status import job_statuses, jobs_document, tasks_document

    folder = Submission(config).jobs
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
    from molprof.profiler.jobs.submit import requeue

    job, tasks = status.job, status.failed()
    if not tasks:
        raise UsageError(f"{job.id} has no task to submit again: {status.summary}")
    done = requeue(job, tasks)
    note(f"submitted {len(tasks)} of {len(job.tasks)} tasks of {job.id} again: Slurm job {done.attempts[-1].slurm_id}")


def _cancel(status: JobStatus) -> None:
    from molprof.profiler.jobs.scheduler import cancel
    from molprof.profiler.jobs.status import UNFINISHED

    found = [task.slurm_id for task in status.tasks if task.state in UNFINISHED and task.slurm_id]
    if not found:
        raise UsageError(f"no task of {status.job.id} waits or runs: {status.summary}")
    cancel(found)
    note(f"cancelled {len(found)} of {len(status.tasks)} tasks of {status.job.id}")


@click.command("collect")
@click.argument("name", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait until the job has ended.")
@config_option
def collect(name: str, wait: bool, config: Path | None) -> None:
    """List how each task of the job ID ended, and where its results are.

    Tasks write their own results. Of a benchmark or sweep, this command puts them together. Exit codes: 0 every task
    ended well; 3 a task failed, timed out, was preempted, cancelled or lost, or has not ended.

    \b
    Examples:
      molprof collect capture-3
      molprof collect sweep-2 --wait
    """
    from molprof.profiler.jobs.job import find_job
    from molprof.profiler.jobs.status import job_status, tasks_document

    job = find_job(Submission(config).jobs, name)
    status = follow(job) if wait else job_status(job)
    if status.problem:
        note(f"Slurm does not answer, so these are the states that the tasks wrote: {status.problem}")
    Result().deliver(tasks_document(status))
    settle(status)


@click.command("logs")
@click.argument("name", metavar="ID")
@click.argument("task", metavar="[TASK]", required=False)
@config_option
def logs(name: str, task: str | None, config: Path | None) -> None:
    """Print the output so far of all tasks of the job ID, or of one TASK, by number or name.

    \b
    Examples:
      molprof logs capture-3
      molprof logs sweep-2 5
      molprof logs sweep-2 qwen-none-8
    """
    from molprof.profiler.jobs.job import find_job

    job = find_job(Submission(config).jobs, name)
    lines: list[str] = []
    for number in range(len(job.tasks)) if task is None else (_number(job, task),):
        if len(job.tasks) > 1:
            lines.append(f"== {number} {escaped(job.tasks[number].name)}")
        path = job.log(number)
        text = "(nothing yet)" if path is None else path.read_text(encoding="utf-8", errors="replace")
        lines += [escaped(line) for line in text.rstrip("\n").split("\n")]
    write("\n".join(lines))


def _number(job: Job, task: str) -> int:
    names = [item.name for item in job.tasks]
    if task in names:
        return names.index(task)
    if task.isdigit() and int(task) < len(names):
        return int(task)
    raise UsageError(f"{job.id} has no task {task!r}", hint=f"0 to {len(names) - 1}, or a name: molprof jobs {job.id}")
