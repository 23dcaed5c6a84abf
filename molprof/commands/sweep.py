"""`molprof sweep`: captures over a grid of options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from molprof.commands.capture import capture_settings, check_sampling
from molprof.commands.capture import command as capture
from molprof.commands.options import Seconds, note, write
from molprof.commands.submission import attend, check_submission, config_option, hand_over, submit_options
from molprof.common.errors import MolprofError, RunError, UsageError
from molprof.common.text import escaped

if TYPE_CHECKING:
    from molprof.profiler.project import Project
    from molprof.profiler.sweep.grid import Option, Sweep
    from molprof.profiler.sweep.index import Entry

# Options of capture that are the sweep's own business.
_OWN = frozenset({"output", "force", "config", "cluster", "overrides", "detach"})


@click.command("sweep")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the traces go.  [default: FILE without its ending]",
)
@click.option("--dry-run", is_flag=True, help="Print the command of every case, and run none.")
@click.option("--resume", is_flag=True, help="Leave out the cases whose traces are there.")
@click.option("--force", is_flag=True, help="Replace the traces of an earlier sweep in DIR.")
@click.option("--limit", "limit_s", type=Seconds(), metavar="SECONDS", help="Stop a case that takes longer.")
@config_option
@submit_options
def command(
    file: Path,
    folder: Path | None,
    dry_run: bool,
    resume: bool,
    force: bool,
    limit_s: float | None,
    config: Path | None,
    cluster: str | None,
    overrides: tuple[str, ...],
    detach: bool,
) -> None:
    """Captures every combination of the options that FILE lists: here, one after the other, or on a cluster.

    Each case runs in a process of its own; one that fails does not stop the rest, and Ctrl-C keeps what is done. DIR
    gets an index: molprof report and molprof compare take DIR for its traces.

    \b
    FILE:
      [options]                       of every capture, named as the options of molprof capture
      n = 16
      [grid]                          every combination of these
      model = ["qwen", "llama"]
      processor = ["none", "lp"]      none: --no-lp; lp: --lp; else --processor
      batch-size = [1, 8, 32]
      [[exclude]]                     but not these
      model = "llama"
      batch-size = 32

    \b
    Examples:
      molprof sweep grid.toml --dry-run
      molprof sweep grid.toml
      molprof sweep grid.toml --resume
      molprof sweep grid.toml --submit h100 --slurm parallel=4 -o results
      molprof compare results
    """
    check_submission(cluster, overrides, detach)
    if cluster is not None and limit_s is not None:
        raise click.UsageError("--limit is for cases that run here; on a cluster: --slurm time=0:30:00")
    from molprof.profiler.project import find_project
    from molprof.profiler.sweep.grid import read_sweep

    project = find_project(config)
    sweep = read_sweep(file, _options())
    folder = folder or file.with_suffix("")
    if folder == file:
        raise UsageError(f"{file} has no ending to leave out", hint="-o DIR")
    extra = ("--config", str(config)) if config else ()
    entries = [_entry(sweep, number, folder, project, extra) for number in range(len(sweep.cases))]
    for entry in entries:
        if entry.state == "unsupported":
            note(f"{entry.name} is left out: {entry.message}")
    chosen = [number for number, entry in enumerate(entries) if entry.state != "unsupported"]
    if dry_run:
        lines = [escaped(shlex.join(["molprof", *_command(folder, entries[number], force)])) for number in chosen]
        write("\n".join(lines))
        note(f"{len(lines)} cases, whose traces would be in {folder}")
        return
    busy = {} if force else _with_cluster(folder, project)
    if busy and not resume:
        first = next(iter(busy.values()))
        raise UsageError(
            f"{first} still has {list(busy.values()).count(first)} cases of {folder}",
            hint=f"--resume leaves them to it; molprof jobs {first} --cancel ends them",
        )
    entries, chosen = _kept(folder, entries, chosen, resume, force, busy)
    for job in sorted(set(busy.values())):
        note(f"{job} still has {list(busy.values()).count(job)} cases, which are left to it: molprof collect {job}")
    if not chosen:
        if not busy:
            note(f"every case of {folder} is there; next: molprof compare {shlex.quote(str(folder))}")
        return
    if cluster is None:
        _here(folder, entries, chosen, force, limit_s)
    else:
        _there(folder, entries, chosen, force, project, cluster, overrides, detach)
    if not detach:
        note(f"next: molprof compare {shlex.quote(str(folder))}")


def _options() -> dict[str, Option]:
    """Capture's options by their names without dashes."""
    from molprof.profiler.sweep.grid import Option

    return {
        name.lstrip("-"): Option(name, next(iter(item.secondary_opts), None), not item.is_flag)
        for item in capture.params
        if isinstance(item, click.Option) and item.name not in _OWN
        for name in item.opts
    }


def _command(folder: Path, entry: Entry, force: bool) -> list[str]:
    return ["capture", *entry.arguments, "-o", str(folder / entry.trace), *(["--force"] if force else [])]


def _entry(sweep: Sweep, number: int, folder: Path, project: Project, extra: tuple[str, ...]) -> Entry:
    """A case after the checks that capture itself makes.

    Raises:
        UsageError: a value that no capture takes; names the line.
    """
    from molprof.profiler.project import check_folder
    from molprof.profiler.sweep.index import Entry

    case = sweep.cases[number]
    entry = Entry(case.name, f"{case.name}.json.gz", case.options, (*extra, *case.arguments))
    _check_processor(sweep, entry.options.get("processor", sweep.file.content.get("options", {}).get("processor")))
    try:
        context = capture.make_context("capture", _command(folder, entry, True)[1:])
        check_sampling(context)
        parameters: dict[str, Any] = {key: value for key, value in context.params.items() if key not in _OWN}
        settings = capture_settings(project, output=folder / entry.trace, force=True, **parameters)
    except click.BadParameter as error:
        key = error.param.opts[-1].lstrip("-") if error.param else ""
        sweep.file.refuse(error.format_message(), sweep.place(key))
    except (MolprofError, click.UsageError) as error:
        message = error.format_message() if isinstance(error, click.UsageError) else str(error)
        return replace(entry, state="unsupported", message=message)
    for key, name in (("model", settings.model), ("tokenizer", settings.tokenizer)):
        try:
            check_folder(key, name)
        except UsageError as error:
            sweep.file.refuse(str(error), sweep.place(key), error.hint)
    return entry


def _check_processor(sweep: Sweep, name: object) -> None:
    """A mistyped name is found before anything runs; a module of the user's own is left to the case."""
    from molprof.profiler.processors import find_factory
    from molprof.profiler.sweep.grid import PROCESSORS

    if not isinstance(name, str) or name in PROCESSORS or ":" in name:
        return
    try:
        find_factory(name)
    except UsageError as error:
        sweep.file.refuse(str(error), sweep.place("processor"), error.hint)


def _with_cluster(folder: Path, project: Project) -> dict[str, str]:
    """The cases that a cluster has not finished yet, and the job that has them."""
    from molprof.profiler.cluster.job import find_job, jobs_folder
    from molprof.profiler.cluster.status import UNFINISHED, job_status
    from molprof.profiler.cluster.submit import recovered
    from molprof.profiler.sweep.index import read_index

    found = {}
    for name in {entry.job for entry in read_index(folder) or () if entry.job}:
        try:
            job = find_job(jobs_folder(project.folder), name)
        except MolprofError:
            continue  # its folder is gone, and with it all that is known of it
        found.update({task.name: name for task in job_status(recovered(job)).tasks if task.state in UNFINISHED})
    return found


def _kept(
    folder: Path, entries: list[Entry], chosen: list[int], resume: bool, force: bool, busy: Mapping[str, str]
) -> tuple[list[Entry], list[int]]:
    """Entries with what an earlier sweep left in the folder, and the cases that are still to be captured.

    Raises:
        UsageError: the folder cannot be used, or holds traces that neither --resume nor --force allow for.
    """
    from molprof.profiler.sweep.index import read_index, write_index

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}", hint="-o DIR names another") from error
    earlier = {entry.name: entry for entry in read_index(folder) or ()}
    for number in list(chosen):
        entry, before = entries[number], earlier.get(entries[number].name)
        if before is not None and entry.name in busy:
            entries[number] = before
            chosen.remove(number)
            continue
        if force or not (folder / entry.trace).exists():
            continue
        if not resume:
            raise UsageError(
                f"{folder / entry.trace} already exists", hint="--resume to go on with the rest, --force to replace it"
            )
        if before is None or before.arguments != entry.arguments:
            raise UsageError(
                f"{folder / entry.trace} was captured with other options than {entry.name} has now",
                hint="-o another DIR, or --force to capture all again",
            )
        entries[number] = replace(before, state="ok", message=None)
        chosen.remove(number)
    write_index(folder, entries)
    return entries, chosen


def _here(folder: Path, entries: list[Entry], chosen: list[int], force: bool, limit_s: float | None) -> None:
    from molprof.profiler.sweep.local import LOGS, run_cases

    done: list[int] = []

    def report(number: int, entry: Entry) -> None:
        if entry.state == "running":
            note(f"[{chosen.index(number) + 1}/{len(chosen)}] {entry.name}")
            return
        done.append(number)
        took = f" after {entry.seconds:g} s" if entry.seconds is not None else ""
        note(f"  {entry.state}{took}" + (f": {entry.message}" if entry.message else ""))

    try:
        result = run_cases(folder, entries, chosen, lambda entry: _command(folder, entry, force), limit_s, report)
    except KeyboardInterrupt:
        note(f"{len(done)} of {len(chosen)} cases are done and kept; the rest: the same command with --resume")
        raise
    bad = [result[number] for number in chosen if result[number].state != "ok"]
    if bad:
        raise RunError(
            f"{len(bad)} of {len(chosen)} cases did not end well, first {bad[0].name}: {bad[0].message}",
            hint=f"{folder / LOGS / f'{bad[0].name}.log'} has its output; --resume tries them again",
        )


def _there(
    folder: Path,
    entries: list[Entry],
    chosen: list[int],
    force: bool,
    project: Project,
    cluster: str,
    overrides: tuple[str, ...],
    detach: bool,
) -> None:
    from molprof.profiler.cluster.job import Task
    from molprof.profiler.sweep.index import write_index

    tasks = [
        Task(entry.name, tuple(_command(folder, entry, force)), str((folder / entry.trace).absolute()))
        for entry in (entries[number] for number in chosen)
    ]
    job = hand_over(project, "sweep", tasks, cluster, overrides, {"folder": str(folder.absolute())})
    for number in chosen:
        entries[number] = replace(entries[number], state="submitted", job=job.id)
    write_index(folder, entries)
    attend(job, detach)
