"""`molprof logs`: the output of a job's tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from molprof.commands.options import write
from molprof.commands.submission import config_option, project_jobs
from molprof.common.errors import UsageError
from molprof.common.text import escaped

if TYPE_CHECKING:
    from molprof.profiler.cluster.job import Job


@click.command("logs")
@click.argument("name", metavar="ID")
@click.argument("task", metavar="[TASK]", required=False)
@config_option
def command(name: str, task: str | None, config: Path | None) -> None:
    """Print the output so far of all tasks of the job ID, or of one TASK, by number or name.

    \b
    Examples:
      molprof logs capture-3
      molprof logs sweep-2 5
      molprof logs sweep-2 qwen-none-8
    """
    from molprof.profiler.cluster.job import find_job

    job = find_job(project_jobs(config), name)
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
