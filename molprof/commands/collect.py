"""`molprof collect`: the results of a job that was submitted to a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.options import deliver, note
from molprof.commands.submission import config_option, follow, settle


@click.command("collect")
@click.argument("name", metavar="ID")
@click.option("--wait", is_flag=True, help="Follow the job to its end first.")
@config_option
def command(name: str, wait: bool, config: Path | None) -> None:
    """Says how each task of the job ID ended, finishes its results and names them.

    Tasks write their results where they were asked to, also while nobody looks. Exit codes: 0 all are there, 3 a task
    ended otherwise than well (failed, timed out, preempted, cancelled, lost) or has not ended.

    \b
    Examples:
      molprof collect capture-3
      molprof collect sweep-2 --wait
    """
    from molprof.profiler.cluster.document import tasks_document
    from molprof.profiler.cluster.job import find_job, jobs_folder
    from molprof.profiler.cluster.status import job_status
    from molprof.profiler.cluster.submit import recovered
    from molprof.profiler.project import find_project

    job = recovered(find_job(jobs_folder(find_project(config).folder), name))
    status = follow(job) if wait else job_status(job)
    if status.problem:
        note(f"Slurm cannot be asked, so what the tasks wrote is all that is known: {status.problem}")
    deliver(tasks_document(status))
    settle(status)
