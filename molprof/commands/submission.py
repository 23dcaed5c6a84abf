"""Commands on a cluster: their shared options, submitting, following, collecting."""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from molprof.commands.command import Command
from molprof.commands.options import declared, grouped, note, number_option, path_option
from molprof.common.errors import RunError
from molprof.common.jobs import SCHEME
from molprof.common.process import OK
from molprof.common.values import counted

if TYPE_CHECKING:
    from molprof.common.jobs import JobExecutor
    from molprof.common.jobs.job import Job, Task
    from molprof.common.jobs.resources import SlurmSettings
    from molprof.common.jobs.status import JobStatus
    from molprof.profiler.project import Project

# Results to list one by one.
_SHOWN = 10
# Tasks whose every state is told; of more, the counts, and each that does not end well.
_TOLD = 20
_GIVEN = "molprof.given"


config_option = path_option(
    "--config", text="File of models and clusters.  [default: molprof.toml here or in the nearest folder above]"
)


@dataclass(frozen=True)
class Submission:
    """The values of `submit_options`."""

    # fmt: off
    config: Path | None = declared(config_option)  # the molprof.toml; None: the nearest
    cluster: str | None = declared(  # None: run here
        "--submit", "cluster", metavar="NAME", help="Run on a cluster: slurm, or a table [slurm.NAME] of molprof.toml.")
    overrides: tuple[str, ...] = declared(  # `KEY=VALUE` in place of the cluster's table
        "--slurm", "overrides", multiple=True, metavar="KEY=VALUE",
        help="Replace a value of the cluster's table, such as time=2:00:00. Repeatable.")
    detach: bool = declared("--detach", is_flag=True, help="With --submit: print the job's id and leave it.")
    # fmt: on

    def __post_init__(self) -> None:
        if self.cluster is None and (self.overrides or self.detach):
            raise click.UsageError(f"{'--detach' if self.detach else '--slurm'} requires --submit NAME")

    def slurm(self, name: str) -> SlurmSettings:
        """Return the resources of a table of the project, with those of --slurm."""
        from molprof.common.jobs.resources import overridden

        return overridden(self.project.cluster(name), self.overrides)

    @functools.cached_property
    def project(self) -> Project:
        """The project file, found once."""
        from molprof.profiler.project import find_project

        return find_project(self.config)

    @property
    def jobs(self) -> Path:
        """The folder of the project's jobs."""
        from molprof.common.jobs.job import jobs_folder

        return jobs_folder(self.project.folder)


@dataclass(frozen=True)
class ReadSubmission(Submission):
    """The values of `read_submit_options`: of commands whose traces may be read elsewhere, while they wait."""

    # fmt: off
    where: str | None = declared(  # None: processes of this machine
        "--on", "where", metavar="WHERE", help="Let others read the traces, and wait for them: slurm, a table"
        " [slurm.NAME] of molprof.toml, or the workers of dask://HOST:PORT.")
    read_limit_s: int = declared(number_option(
        "--read-limit", "read_limit_s", default=3600, help="With --on: stop reading a trace after N seconds."))
    # fmt: on

    def __post_init__(self) -> None:
        if self.where is None and self.cluster is None and self.overrides:
            raise click.UsageError("--slurm requires --on NAME or --submit NAME")
        if self.where is None:
            super().__post_init__()
        elif self.overrides and self.where.startswith(SCHEME):
            raise click.UsageError("--slurm is for tasks of Slurm, and --on names workers of Dask")
        elif self.cluster is not None or self.detach:
            raise click.UsageError("--on waits for what others read, and --submit leaves it to them: give one of them")

    @contextlib.contextmanager
    def executor(self, kind: str) -> Iterator[JobExecutor | None]:
        """Yield what reads the traces of a command; None: this machine. Slurm's tasks end with the block."""
        if self.where is None:
            yield None
        elif self.where.startswith(SCHEME):
            from molprof.common.jobs.dask import connected

            with connected(self.where, self.read_limit_s) as executor:
                yield executor
        else:
            from molprof.common.jobs.submit import SlurmExecutor

            slurm = self.slurm(self.where)
            with SlurmExecutor(self.jobs, kind, self.where, slurm, limit_s=self.read_limit_s) as tasks:
                yield tasks


# Parameters of a command that make its `Submission`.
PARAMETERS = tuple(item.name for item in fields(ReadSubmission))
submit_options = grouped(Submission, "submission")
read_submit_options = grouped(ReadSubmission, "submission")
# Of a command that waits for its results in any case.
read_options = grouped(
    ReadSubmission,
    "submission",
    *(item.metadata["option"] for item in fields(ReadSubmission) if item.name not in ("cluster", "detach")),
)


class Submittable(Command):
    """A command that remembers its given options, so that a task on a cluster can get them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options, and keep those given in the order of the command line."""
        values, _, order = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[_GIVEN] = {item: values[item.name] for item in order if isinstance(item, click.Option)}
        return super().parse_args(ctx, args)


def own_arguments(context: click.Context, *without: str) -> list[str]:
    """Return a `Submittable`'s options as words, without `without` and those of submission except `--config`."""
    left_out = {*PARAMETERS[1:], *without}
    values = dict(context.meta[_GIVEN])
    for item in context.command.params:
        if context.get_parameter_source(item.name or "") is ParameterSource.ENVIRONMENT:
            values[item] = context.params[item.name]
    return [word for item, value in values.items() if item.name not in left_out for word in words(item, value)]


def words(option: click.Parameter, value: Any) -> list[str]:
    """Return an option or argument with its value as words of a command line."""
    if not isinstance(option, click.Option):
        return [str(value)]
    if option.is_flag:  # of some the value is False, such as --no-cache
        return (option.opts if value != (option.flag_value is False) else option.secondary_opts)[:1]
    return [
        word
        for item in (value if option.multiple and not isinstance(value, str) else [value])
        for word in (option.opts[0], str(item))
    ]


def submit_command(
    submission: Submission,
    kind: str,
    tasks: Sequence[Task],
    data: Mapping[str, Any] | None = None,
    submitted: Callable[[Job], None] = lambda job: None,
) -> None:
    """Submit `tasks` as one job and call `submitted`; then follow the job and finish its results, or print its id."""
    from molprof.common.jobs.submit import submit
    from molprof.profiler.project import DEFAULT_CLUSTER

    cluster = submission.cluster or DEFAULT_CLUSTER
    job = submit(submission.jobs, kind, tasks, cluster, submission.slurm(cluster), data)
    number = job.attempts[-1].slurm_id
    note(f"submitted {job.id}: Slurm job {number}, {counted(len(tasks), 'task')}; its files: {job.folder}")
    submitted(job)
    if submission.detach:
        note(f"next: molprof jobs collect {job.id}")
        click.echo(job.id)
    else:
        settle(follow(job))


def follow(job: Job) -> JobStatus:
    """Print changes until the job has ended; for a single task, also its log."""
    from molprof.common.jobs.status import UNFINISHED, watch

    said: dict[int, tuple[str, str | None]] = {}
    problem, summary, shown = None, "", 0
    untold = ("unknown",) if len(job.tasks) <= _TOLD else (OK, *UNFINISHED)
    try:
        for status in watch(job):
            if status.problem != problem:
                problem = status.problem
                note(f"{job.id} goes on, but Slurm does not answer: {problem}" if problem else "Slurm answers again")
            if len(job.tasks) == 1 and (log := job.log(0)) is not None:
                whole, _, _ = log.read_text(encoding="utf-8", errors="replace").rpartition("\n")
                lines = whole.split("\n") if whole else []
                shown = shown if shown <= len(lines) else 0  # another file
                note(*(f"  {line}" for line in lines[shown:]))
                shown = len(lines)
            for task in status.tasks:
                if said.get(task.number) == (task.state, task.message) or task.state in untold:
                    continue
                said[task.number] = (task.state, task.message)
                where = f" on {task.node}" if task.state == "running" and task.node else ""
                note(f"{task.name}: {task.state}{where}" + (f": {task.message}" if task.message else ""))
            if len(job.tasks) > _TOLD and status.summary != summary:
                summary = status.summary
                note(f"{job.id}: {summary}")
    except KeyboardInterrupt:
        note(
            f"{job.id} goes on; its results: molprof jobs collect {job.id}; to cancel it: molprof jobs cancel {job.id}"
        )
        raise
    return status


def settle(status: JobStatus) -> None:
    """Write the outcome of each task of a sweep to its results, and list them. Raises RunError if one failed."""
    job = status.job
    if job.kind == "sweep":
        from molprof.profiler.jobs.index import collected

        collected(status)
    elif job.kind == "ranks":
        note(f"next, once all ranks are read: molprof ranks {shlex.quote((job.data or {})['parts'])}")
    note(f"{job.id}: {status.summary}")
    there = [task.output for task in job.tasks if task.output is not None and Path(task.output).exists()]
    note(*(f"  {output}" for output in there[:_SHOWN]))
    if len(there) > _SHOWN:
        note(f"  and {len(there) - _SHOWN} more")
    if status.good:
        return
    if not status.finished:
        raise RunError(f"{job.id} has not ended", hint=status.problem or f"molprof jobs collect {job.id} --wait")
    bad = [status.tasks[number] for number in status.failed()]
    first = f"{bad[0].name}: {bad[0].state}" + (f": {bad[0].message}" if bad[0].message else "")
    raise RunError(
        f"{len(bad)} of {len(status.tasks)} tasks of {job.id} did not end well: {first}",
        hint=f"molprof jobs logs {job.id} {bad[0].number}; again: molprof jobs requeue {job.id}",
    )
