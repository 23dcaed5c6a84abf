"""`molprof sweep`: capture every combination of a grid of options."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from molprof.commands.capture import capture_settings
from molprof.commands.capture import command as capture
from molprof.commands.options import folder_option, make_folder, note, write
from molprof.commands.run_options import Seconds, sampling_asked
from molprof.commands.submission import PARAMETERS, Submission, Submittable, submit_command, submit_options, words
from molprof.common.errors import MolprofError, RunError, UsageError
from molprof.common.text import escaped
from molprof.common.values import counted

if TYPE_CHECKING:
    from molprof.profiler.jobs.grid import Case, Sweep
    from molprof.profiler.jobs.index import Entry

# Parameters of capture that the sweep sets itself.
_OWN = frozenset({"output", "force", *PARAMETERS})
# Capture's options by their names without dashes.
_OPTIONS = {
    name.lstrip("-"): item
    for item in capture.params
    if isinstance(item, click.Option) and item.name not in _OWN
    for name in item.opts
}
# No processor, and the one that suits the tokenizer.
_PROCESSORS = {"none": "--no-lp", "lp": "--lp"}


@click.command("sweep", cls=Submittable)
@click.argument("file", type=click.Path(path_type=Path))
@folder_option(
    "Folder for the traces.  [default: FILE without its ending]", type=click.Path(path_type=Path, file_okay=False)
)
@click.option("--dry-run", is_flag=True, help="Print the command of every case, and run none.")
@click.option("--resume", is_flag=True, help="Skip cases whose traces exist.")
@click.option("--force", is_flag=True, help="Replace existing traces in DIR.")
@click.option("--limit", "limit_s", type=Seconds(), metavar="SECONDS", help="Stop each case after this time.")
@submit_options
def command(
    file: Path,
    folder: Path | None,
    dry_run: bool,
    resume: bool,
    force: bool,
    limit_s: float | None,
    submission: Submission,
) -> None:
    """Capture every combination of the options in FILE, one after the other here, or on a cluster.

    Each case runs in a separate process. If one fails, the others still run; Ctrl-C keeps what is done. molprof report
    and molprof compare accept DIR in place of its traces.

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
    if submission.cluster is not None and limit_s is not None:
        raise click.UsageError("--limit is for cases that run here; on a cluster, use --slurm time=0:30:00")
    from molprof.profiler.jobs.grid import read_sweep

    sweep = read_sweep(file, {name: not option.is_flag for name, option in _OPTIONS.items()})
    folder = folder or file.with_suffix("")
    if folder == file:
        raise UsageError(f"{file} has no ending to name the folder after", hint="-o DIR")
    entries = {case.name: _entry(sweep, case, folder, submission) for case in sweep.cases}
    chosen = [entry for entry in entries.values() if entry.state != "unsupported"]
    for entry in entries.values():
        if entry.state == "unsupported":
            note(f"skipped {entry.name}: {entry.message}")
    if dry_run:
        write("\n".join(escaped(shlex.join(["molprof", *_command(folder, entry, force)])) for entry in chosen))
        note(f"{counted(len(chosen), 'case')}, to be captured into {folder}")
        return
    from molprof.profiler.jobs.status import unfinished

    outputs = {} if force else {str((folder / entry.trace).absolute()): name for name, entry in entries.items()}
    busy = {outputs[output]: job for output, job in unfinished(submission.jobs, outputs).items()}
    jobs = Counter(busy.values())
    if busy and not resume:
        first = next(iter(jobs))
        raise UsageError(
            f"{first} has not finished {counted(jobs[first], 'case')} of {folder}",
            hint=f"--resume skips them; molprof jobs {first} --cancel cancels them",
        )
    from molprof.profiler.jobs.index import remaining

    make_folder(folder)
    chosen = remaining(folder, entries, chosen, resume, force, busy)
    for job, count in sorted(jobs.items()):
        note(f"skipped {counted(count, 'case')} that {job} has not finished: molprof collect {job}")
    if not chosen:
        if not busy:
            note(f"{folder} has the trace of every case; next: molprof compare {shlex.quote(str(folder))}")
        return
    if submission.cluster is None:
        _here(folder, entries, chosen, force, limit_s)
    else:
        _there(folder, entries, chosen, force, submission)
    if not submission.detach:
        note(f"next: molprof compare {shlex.quote(str(folder))}")


def arguments(case: Case) -> list[str]:
    """Return a case's command line after `molprof capture`, without an output."""
    found = []
    for key, value in case.settings.items():
        if key == "processor" and value in _PROCESSORS:
            found.append(_PROCESSORS[str(value)])
        else:
            found += words(_OPTIONS[key], value)
    return found


def _command(folder: Path, entry: Entry, force: bool) -> list[str]:
    return ["capture", *entry.arguments, "-o", str(folder / entry.trace), *(["--force"] if force else [])]


def _entry(sweep: Sweep, case: Case, folder: Path, submission: Submission) -> Entry:
    """Return a case, checked as capture checks its options."""
    from molprof.profiler.constraints import find_factory
    from molprof.profiler.jobs.index import Entry
    from molprof.profiler.models.architecture import check_folder

    config = ("--config", str(submission.config)) if submission.config else ()
    entry = Entry(case.name, f"{case.name}.json.gz", case.options, (*config, *arguments(case)))
    try:
        context = capture.make_context("capture", _command(folder, entry, True)[1:])
        parameters: dict[str, Any] = {key: value for key, value in context.params.items() if key not in _OWN}
        parameters["sampling"] = sampling_asked(context)
        settings = capture_settings(submission.project, **parameters)
    except click.BadParameter as error:
        key = error.param.opts[-1].lstrip("-") if error.param else ""
        sweep.file.refuse(error.format_message(), sweep.place(key))
    except (MolprofError, click.UsageError) as error:
        message = error.format_message() if isinstance(error, click.UsageError) else str(error)
        return replace(entry, state="unsupported", message=message)
    key, processor = "processor", case.settings.get("processor")
    try:
        # A module of the user's own is left to its case.
        if isinstance(processor, str) and processor not in _PROCESSORS and ":" not in processor:
            find_factory(processor)
        for key, name in (("model", settings.model), ("tokenizer", settings.tokenizer)):
            check_folder(key, name)
    except UsageError as error:
        sweep.file.refuse(str(error), sweep.place(key), error.hint)
    return entry


def _here(folder: Path, entries: dict[str, Entry], chosen: list[Entry], force: bool, limit_s: float | None) -> None:
    from molprof.profiler.jobs.index import LOGS, run_cases

    commands = {entry.name: _command(folder, entry, force) for entry in chosen}
    done, bad = 0, []
    try:
        for entry in run_cases(folder, entries, commands, limit_s):
            if entry.state == "running":
                note(f"[{done + 1}/{len(chosen)}] {entry.name}")
                continue
            done += 1
            bad += [entry] if entry.state != "ok" else []
            note(f"  {entry.state} after {entry.seconds:g} s" + (f": {entry.message}" if entry.message else ""))
    except KeyboardInterrupt:
        note(f"{done} of {len(chosen)} cases are done; for the others, repeat the command with --resume")
        raise
    if bad:
        raise RunError(
            f"{len(bad)} of {len(chosen)} cases did not end well, first {bad[0].name}: {bad[0].message}",
            hint=f"its output is in {folder / LOGS / f'{bad[0].name}.log'}; --resume runs them again",
        )


def _there(folder: Path, entries: dict[str, Entry], chosen: list[Entry], force: bool, submission: Submission) -> None:
    from molprof.profiler.jobs.index import write_index
    from molprof.profiler.jobs.job import Job, Task

    def submitted(job: Job) -> None:
        for entry in chosen:
            entries[entry.name] = replace(entry, state="submitted", job=job.id)
        write_index(folder, entries.values())

    tasks = [
        Task(entry.name, tuple(_command(folder, entry, force)), str((folder / entry.trace).absolute()))
        for entry in chosen
    ]
    submit_command(submission, "sweep", tasks, {"folder": str(folder.absolute())}, submitted)
