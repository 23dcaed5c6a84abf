"""`molprof collect`: the results of a job on a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.options import Result, note
from molprof.commands.submission import config_option, follow, project_jobs, settle


@click.command("collect")
@click.argument("name", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait until the job has ended.")
@config_option
def command(name: str, wait: bool, config: Path | None) -> None:
    """List how each task of the job ID ended, and where its results are.

    Tasks write their own results. Of a benchmark or sweep, this command puts them together. Exit codes: 0 every task
    ended well; 3 a task failed, timed out, was preempted, cancelled or lost, or has not ended.

    \b
    Examples:
      molprof collect capture-3
      molprof collect sweep-2 --wait
    """
    from molprof.profiler.cluster.document import tasks_document
    from molprof.profiler.cluster.job import find_job
    from molprof.profiler.cluster.status import job_status

    job = find_job(project_jobs(config), name)
    status = follow(job) if wait else job_status(job)
    if status.problem:
        note(f"Slurm does not answer, so these are the states that the tasks wrote: {status.problem}")
    Result().deliver(tasks_document(status))
    settle(status)
