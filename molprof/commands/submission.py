"""What every command has in common that can run on a cluster: its options, submitting, following, collecting."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from molprof.commands.options import note
from molprof.common.errors import RunError

if TYPE_CHECKING:
    from molprof.profiler.cluster.job import Job, Task
    from molprof.profiler.cluster.status import JobStatus
    from molprof.profiler.project import Project

_F = TypeVar("_F", bound=Callable[..., Any])
# Results that are named one by one.
_SHOWN = 10
_ARGUMENTS = "molprof.arguments"
# Options of submission, which the task on the cluster is not given, and how many values each takes.
_OPTIONS = {"--submit": 1, "--slurm": 1, "--detach": 0, "--tasks": 1}
# Of commands whose results are not whole when their tasks have ended: what makes them so.
_FINISH = {
    "bench": "molprof.profiler.bench.records:collected",
    "sweep": "molprof.profiler.sweep.index:collected",
}


class Submittable(click.Command):
    """A command that remembers its command line, so that a task on a cluster can be given it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


def own_arguments(context: click.Context) -> list[str]:
    """The command line of a `Submittable` without the options of submission."""
    kept: list[str] = []
    given = iter(context.meta[_ARGUMENTS])
    for argument in given:
        name, equals, _ = argument.partition("=")
        if name not in _OPTIONS:
            kept.append(argument)
        elif _OPTIONS[name] and not equals:
            next(given, None)
    return kept


def config_option(command: _F) -> _F:
    """`--config`: another molprof.toml than the nearest."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Models and clusters by name.  [default: the nearest molprof.toml here or above]",
    )(command)


def submit_options(command: _F) -> _F:
    """`--submit`, `--slurm` and `--detach`: run on a cluster instead of here."""
    command = click.option("--detach", is_flag=True, help="With --submit: print the job's id and leave it.")(command)
    command = click.option(
        "--slurm",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="With --submit: instead of the table's, such as time=2:00:00. May be given several times.",
    )(command)
    return click.option(
        "--submit",
        "cluster",
        metavar="NAME",
        help="Run on a cluster: slurm, or a table [slurm.NAME] of molprof.toml.",
    )(command)


def check_submission(cluster: str | None, overrides: tuple[str, ...], detach: bool) -> None:
    """Refuses options of submission where nothing is submitted."""
    if cluster is None and (overrides or detach):
        raise click.UsageError(f"{'--detach' if detach else '--slurm'} is of use with --submit NAME only")


def run_on_cluster(
    project: Project,
    kind: str,
    tasks: Sequence[Task],
    cluster: str,
    overrides: tuple[str, ...],
    detach: bool,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Submits `tasks` as one job and follows it to its end, or prints its id.

    Raises:
        RunError: a task did not end well.
    """
    attend(hand_over(project, kind, tasks, cluster, overrides, data), detach)


def hand_over(
    project: Project,
    kind: str,
    tasks: Sequence[Task],
    cluster: str,
    overrides: tuple[str, ...],
    data: Mapping[str, Any] | None = None,
) -> Job:
    """Submits `tasks` as one job.

    Args:
        kind: the command that they come from; `data`: what it needs to finish their results.
    """
    from molprof.profiler.cluster.job import jobs_folder
    from molprof.profiler.cluster.settings import overridden
    from molprof.profiler.cluster.submit import submit

    settings = overridden(project.cluster(cluster), overrides)
    job = submit(jobs_folder(project.folder), kind, tasks, cluster, settings, data)
    count = f"{len(tasks)} tasks" if len(tasks) > 1 else "1 task"
    note(f"submitted {job.id}: Slurm job {job.attempts[-1].slurm_id}, {count}; its files: {job.folder}")
    return job


def attend(job: Job, detach: bool) -> None:
    """Follows a job to its end and finishes its results, or prints its id.

    Raises:
        RunError: a task did not end well.
    """
    if detach:
        note(f"next: molprof collect {job.id}")
        click.echo(job.id)
    else:
        settle(follow(job))


def follow(job: Job) -> JobStatus:
    """Says what changes until the job has come to its end; of a single task, its log too."""
    from molprof.profiler.cluster.follow import LogTail, watch

    said: dict[int, tuple[str, str | None]] = {}
    problem, tail = None, LogTail()
    try:
        for status in watch(job):
            if status.problem != problem:
                problem = status.problem
                note(f"{job.id} goes on, unseen: {problem}" if problem else "Slurm answers again")
            for line in tail.new_lines(job.log(0)) if len(job.tasks) == 1 else ():
                note(f"  {line}")
            for task in status.tasks:
                if said.get(task.number) == (task.state, task.message) or task.state == "unknown":
                    continue
                said[task.number] = (task.state, task.message)
                where = f" on {task.node}" if task.state == "running" and task.node else ""
                note(f"{task.name}: {task.state}{where}" + (f": {task.message}" if task.message else ""))
    except KeyboardInterrupt:
        note(f"{job.id} goes on; its results: molprof collect {job.id}; its end: molprof jobs {job.id} --cancel")
        raise
    return status


def settle(status: JobStatus) -> None:
    """Finishes the results of a job, as far as there are any.

    Raises:
        RunError: a task did not end well, or not yet.
    """
    job = status.job
    if job.kind in _FINISH:
        module, _, function = _FINISH[job.kind].partition(":")
        getattr(importlib.import_module(module), function)(status)
    note(f"{job.id}: {status.summary}")
    wanted = [(job.data or {}).get("output"), *(task.output for task in job.tasks)]
    there = [output for output in wanted if output is not None and Path(output).exists()]
    for output in there[:_SHOWN]:
        note(f"  {output}")
    if len(there) > _SHOWN:
        note(f"  and {len(there) - _SHOWN} more")
    if status.good:
        return
    if not status.finished:
        raise RunError(f"{job.id} has not ended", hint=status.problem or f"molprof collect {job.id} --wait")
    bad = [status.tasks[number] for number in status.failed()]
    first = f"{bad[0].name}: {bad[0].state}" + (f": {bad[0].message}" if bad[0].message else "")
    raise RunError(
        f"{len(bad)} of {len(status.tasks)} tasks of {job.id} did not end well: {first}",
        hint=f"molprof logs {job.id} {bad[0].number}; again: molprof jobs {job.id} --requeue",
    )
