"""`molprof jobs`: jobs on a cluster, their states, results and output."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from molprof.commands.command import Command
from molprof.commands.options import ResultOptions, note, result_options, write
from molprof.commands.submission import Submission, config_option, follow, settle
from molprof.common.errors import UsageError
from molprof.common.text import escaped

if TYPE_CHECKING:
    from molprof.common.jobs.job import Job
    from molprof.common.jobs.status import JobStatus


@click.command("jobs", cls=Command)
@click.argument("name", metavar="[ID]", required=False)
@result_options()
@config_option
def command(name: str | None, result: ResultOptions, config: Path | None) -> None:
    """List the jobs of this project, or the tasks of the job ID: capture-3, or 3 for short.

    If Slurm does not answer, the states are the last that the tasks wrote.

    \b
    Examples:
      molprof jobs
      molprof jobs sweep-2
      molprof jobs collect sweep-2 --wait
      molprof jobs logs sweep-2
      molprof jobs requeue sweep-2
      molprof jobs cancel capture-3
    """
    result.check()
    from molprof.common.jobs.job import all_jobs, find_job
    from molprof.common.jobs.status import job_statuses, jobs_document, tasks_document

    folder = Submission(config).jobs
    jobs, problems = all_jobs(folder) if name is None else ([find_job(folder, name)], [])
    note(*problems)
    statuses = job_statuses(jobs)
    for problem in {status.problem for status in statuses if status.problem}:
        note(f"Slurm does not answer, so these are the states that the tasks wrote: {problem}")
    if name is not None:
        result.deliver(tasks_document(statuses[0]))
    elif statuses or result.style == "json":
        result.deliver(jobs_document(statuses))
    else:
        note(f"no job in {folder}")


def _of_job(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator for a subcommand of `molprof jobs` on the job ID, which it gets as `job`."""

    def add(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def with_job(name: str, config: Path | None, **options: Any) -> None:
            from molprof.common.jobs.job import find_job

            function(find_job(Submission(config).jobs, name), **options)

        subcommand = click.command(name, cls=Command)(click.argument("name", metavar="ID")(config_option(with_job)))
        command.add(subcommand)
        return subcommand

    return add


def _status(job: Job) -> JobStatus:
    """Return the states of a job's tasks, with a remark if they are the last that the tasks wrote."""
    from molprof.common.jobs.status import job_status

    status = job_status(job)
    if status.problem:
        note(f"Slurm does not answer, so these are the states that the tasks wrote: {status.problem}")
    return status


@_of_job("requeue")
def requeue_command(job: Job) -> None:
    """Submit the failed tasks of ID again.

    \b
    Examples:
      molprof jobs requeue sweep-2
    """
    from molprof.common.jobs.submit import requeue

    status = _status(job)
    tasks = status.failed()
    if not tasks:
        raise UsageError(f"{job.id} has no task to submit again: {status.summary}")
    done = requeue(job, tasks)
    note(f"submitted {len(tasks)} of {len(job.tasks)} tasks of {job.id} again: Slurm job {done.attempts[-1].slurm_id}")


@_of_job("cancel")
def cancel_command(job: Job) -> None:
    """Cancel the waiting and running tasks of ID.

    \b
    Examples:
      molprof jobs cancel capture-3
    """
    from molprof.common.jobs.status import cancel_unfinished

    status = _status(job)
    if not (count := cancel_unfinished(status)):
        raise UsageError(f"no task of {job.id} waits or runs: {status.summary}")
    note(f"cancelled {count} of {len(status.tasks)} tasks of {job.id}")


@_of_job("collect")
@click.option("--wait", is_flag=True, help="Wait until the job has ended.")
def collect_command(job: Job, wait: bool) -> None:
    """List how each task of the job ID ended, and where its results are.

    Tasks write their own results. Of a benchmark or sweep, this command puts them together. Exit codes: 0 every task
    ended well; 3 a task failed, timed out, was preempted, cancelled or lost, or has not ended.

    \b
    Examples:
      molprof jobs collect capture-3
      molprof jobs collect sweep-2 --wait
    """
    from molprof.common.jobs.status import tasks_document

    status = follow(job) if wait else _status(job)
    ResultOptions().deliver(tasks_document(status))
    settle(status)


@_of_job("logs")
@click.argument("task", metavar="[TASK]", required=False)
def logs_command(job: Job, task: str | None) -> None:
    """Print the output so far of all tasks of the job ID, or of one TASK, by number or name.

    \b
    Examples:
      molprof jobs logs capture-3
      molprof jobs logs sweep-2 5
      molprof jobs logs sweep-2 qwen-none-8
    """
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
