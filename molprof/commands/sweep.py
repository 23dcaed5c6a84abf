"""`molprof sweep`: run a command for every combination of a grid of its options."""

from __future__ import annotations

import functools
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from molprof.commands.capture import capture_settings
from molprof.commands.options import folder_option, make_folder, note, write
from molprof.commands.progress import CaseLines
from molprof.commands.run_options import Seconds, sampling_asked
from molprof.commands.submission import PARAMETERS, Submission, Submittable, submit_command, submit_options, words
from molprof.common.errors import MolprofError, RunError, UsageError
from molprof.common.process import OK, UNSUPPORTED
from molprof.common.text import escaped
from molprof.common.values import counted

if TYPE_CHECKING:
    from molprof.common.settings import CaptureSettings
    from molprof.profiler.jobs.grid import Case, Grid
    from molprof.profiler.jobs.index import Entry

# Commands that a grid file may be of, by their first word, and the ending of what they write.
_ENDINGS = {"capture": ".json.gz", "bench": ".jsonl", "report": ".html", "ranks": ".html"}
# Parameters that the sweep sets itself.
_OWN = frozenset({"output", "force", "dry_run", "resume", "retry", "share", "tasks", *PARAMETERS})


@functools.cache
def _parameters(name: str) -> tuple[click.Command, Mapping[str, click.Parameter]] | None:
    """A command, and its options and arguments by their names without dashes; None if a grid file is of no such one."""
    first, *others = name.split() or [""]
    if first not in _ENDINGS:
        return None
    found: click.Command | None = import_module(f"molprof.commands.{first}").command
    for word in others:
        found = getattr(found, "commands", {}).get(word)
    if found is None or isinstance(found, click.Group):
        return None
    names = ((key.lstrip("-").replace("_", "-"), item) for item in found.params for key in item.opts)
    return found, {key: item for key, item in names if item.name not in _OWN}


@dataclass(frozen=True)
class _Sweep:
    """A grid file, and the folder of what its cases write."""

    grid: Grid
    folder: Path
    force: bool
    submission: Submission

    def command(self, entry: Entry) -> list[str]:
        """Its command line; a benchmark goes on where it was stopped."""
        line = [*entry.arguments, "-o", str(self.folder / entry.output)]
        adds = entry.arguments[0] == "bench"
        return [*line, "--resume"] if adds else [*line, *(["--force"] if self.force else [])]

    def entry(self, case: Case) -> Entry:
        """Return a case, checked as its command checks its options."""
        from molprof.profiler.jobs.index import Entry

        name = self.grid.command
        command, parameters = _parameters(name)  # type: ignore[misc]  # `read_grid` has found it
        given = [word for key, value in case.settings.items() for word in words(parameters[key], value)]
        config = ("--config", str(self.submission.config)) if self.submission.config else ()
        own = config if any(item.name == "config" for item in command.params) else ()
        ending = _ENDINGS[name.split()[0]]
        entry = Entry(case.name, f"{case.name}{ending}", dict(case.options), (*name.split(), *own, *given))
        try:
            context = command.make_context(name, [*own, *given, "-o", str(self.folder / entry.output)])
            settings = self._settings(context) if name == "capture" else None
        except click.BadParameter as error:
            key = error.param.opts[-1].lstrip("-") if error.param else ""
            self.grid.file.refuse(error.format_message(), self.grid.place(key))
        except (MolprofError, click.UsageError) as error:
            message = error.format_message() if isinstance(error, click.UsageError) else str(error)
            return replace(entry, state=UNSUPPORTED, message=message)
        if settings is not None:
            self._check_names(case, settings)
        return entry

    def _settings(self, context: click.Context) -> CaptureSettings:
        """The settings of a capture. Raises MolprofError if its options exclude each other."""
        parameters: dict[str, Any] = {key: value for key, value in context.params.items() if key not in _OWN}
        parameters["sampling"] = sampling_asked(context)
        return capture_settings(self.submission.project, **parameters)

    def _check_names(self, case: Case, settings: CaptureSettings) -> None:
        """Refuse a name of the file that does not exist."""
        from molprof.profiler.constraints import find_factory
        from molprof.profiler.models.architecture import check_folder

        key, processor = "processor", case.settings.get("processor")
        try:
            # A module of the user's own is left to its case.
            if processor not in (None, "none", "lp") and ":" not in str(processor):
                find_factory(str(processor))
            for key, name in (("model", settings.model), ("tokenizer", settings.tokenizer)):
                check_folder(key, name)
        except UsageError as error:
            self.grid.file.refuse(str(error), self.grid.place(key), error.hint)


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
      command = "capture"             or "bench matrix", "report", "ranks"; default: capture
      [options]                       of every capture, named as the options of molprof capture
      n = 16
      [grid]                          every combination of these
      model = ["qwen", "llama"]
      processor = ["none", "lp"]      none: unconstrained; lp: the one of --lp
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
    from molprof.profiler.jobs.grid import read_grid
    from molprof.profiler.jobs.index import remaining
    from molprof.profiler.jobs.status import unfinished

    grid = read_grid(file, _takes_values)
    folder = folder or file.with_suffix("")
    if folder == file:
        raise UsageError(f"{file} has no ending to name the folder after", hint="-o DIR")
    sweep = _Sweep(grid, folder, force, submission)
    entries = {case.name: sweep.entry(case) for case in grid.cases}
    chosen = [entry for entry in entries.values() if entry.state != UNSUPPORTED]
    note(*(f"skipped {entry.name}: {entry.message}" for entry in entries.values() if entry.state == UNSUPPORTED))
    if dry_run:
        write("\n".join(escaped(shlex.join(["molprof", *sweep.command(entry)])) for entry in chosen))
        note(f"{counted(len(chosen), 'case')}, to be run into {folder}")
        return
    outputs = {} if force else {str((folder / entry.output).absolute()): name for name, entry in entries.items()}
    busy = {outputs[output]: job for output, job in unfinished(submission.jobs, outputs).items()}
    jobs = Counter(busy.values())
    if busy and not resume:
        first = next(iter(jobs))
        raise UsageError(
            f"{first} has not finished {counted(jobs[first], 'case')} of {folder}",
            hint=f"--resume skips them; molprof jobs cancel {first} cancels them",
        )
    make_folder(folder)
    chosen = remaining(folder, entries, chosen, resume, force, busy)
    for job, count in sorted(jobs.items()):
        note(f"skipped {counted(count, 'case')} that {job} has not finished: molprof jobs collect {job}")
    following = f"next: molprof compare {shlex.quote(str(folder))}" if grid.command == "capture" else f"see {folder}"
    if not chosen:
        note(*([] if busy else [f"{folder} has the result of every case; {following}"]))
        return
    if force and grid.command.startswith("bench"):  # which would add to them
        for entry in chosen:
            (folder / entry.output).unlink(missing_ok=True)
    if submission.cluster is None:
        _here(sweep, entries, chosen, limit_s)
    else:
        _there(sweep, entries, chosen)
    if not submission.detach:
        note(following)


def _takes_values(name: str) -> Mapping[str, bool] | None:
    found = _parameters(name)
    return found and {key: not getattr(item, "is_flag", False) for key, item in found[1].items()}


def _here(sweep: _Sweep, entries: dict[str, Entry], chosen: list[Entry], limit_s: float | None) -> None:
    from molprof.profiler.jobs.index import LOGS, run_entry
    from molprof.profiler.jobs.runner import Turn, run_here

    commands = {entry.name: sweep.command(entry) for entry in chosen}
    lines = CaseLines()
    turns = [Turn(entry.name, entry.name) for entry in chosen]
    try:
        run = lambda turn: run_entry(sweep.folder, entries, turn.case, commands[turn.case], limit_s)  # noqa: E731
        for step in run_here(turns, run, lines.begin):
            lines(step)
    except KeyboardInterrupt:
        lines.clear()
        done = lines.statuses.total()
        note(f"{done} of {len(chosen)} cases are done; for the others, repeat the command with --resume")
        raise
    bad = [entry for entry in map(entries.__getitem__, commands) if entry.state != OK]
    if bad:
        raise RunError(
            f"{len(bad)} of {len(chosen)} cases did not end well, first {bad[0].name}: {bad[0].message}",
            hint=f"its output is in {sweep.folder / LOGS / f'{bad[0].name}.log'}; --resume runs them again",
        )


def _there(sweep: _Sweep, entries: dict[str, Entry], chosen: list[Entry]) -> None:
    from molprof.profiler.jobs.index import write_index
    from molprof.profiler.jobs.job import Job, Task

    def submitted(job: Job) -> None:
        for entry in chosen:
            entries[entry.name] = replace(entry, state="submitted", job=job.id)
        write_index(folder, entries.values())

    folder = sweep.folder.absolute()
    tasks = [Task(entry.name, tuple(sweep.command(entry)), str(folder / entry.output)) for entry in chosen]
    submit_command(sweep.submission, "sweep", tasks, {"folder": str(folder)}, submitted)
