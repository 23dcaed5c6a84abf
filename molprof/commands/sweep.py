"""`molprof sweep`: run a command for every combination of a grid of its options."""

from __future__ import annotations

import contextlib
import functools
import math
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from molprof.commands import results
from molprof.commands.capture import capture_settings
from molprof.commands.cases import Cases, run_here, submit_shares, told
from molprof.commands.options import declared, folder_option, grouped, make_folder, note, number_option, write
from molprof.commands.run_options import Seconds, check_arguments, sampling_asked
from molprof.commands.submission import PARAMETERS, Submittable, own_arguments, submit_command, words
from molprof.common.bench_records import LOGS, RESULTS, is_sweep, part_path, read_sweep
from molprof.common.errors import MolprofError, RunError, UsageError
from molprof.common.process import OK, UNSUPPORTED
from molprof.common.settings import SETTINGS
from molprof.common.text import escaped
from molprof.common.values import counted

if TYPE_CHECKING:
    from molprof.common.settings import CaptureSettings
    from molprof.profiler.bench.cases import LineCase
    from molprof.profiler.bench.facts import CaseFacts
    from molprof.profiler.jobs.grid import Case, Grid, Option

# Commands that a grid file may be of, by their first word, and the ending of what they write.
_ENDINGS = {"capture": ".json.gz", "bench": ".jsonl", "report": ".html", "ranks": ".html"}
_MEASURED = ".json"  # of a capture without a recorded pass
# Parameters that the sweep sets itself.
_OWN = frozenset({"output", "force", "dry_run", "resume", "retry", "share", "tasks", *PARAMETERS})
_LIMIT_S = 600.0  # of a measured case


@functools.cache
def _parameters(name: str) -> tuple[click.Command, Mapping[str, click.Parameter]] | None:
    """Return a command, and its options and arguments by their names without dashes.

    None if a grid is of no such command.
    """
    first, *others = name.split() or [""]
    if first not in _ENDINGS:
        return None
    command: click.Command | None = import_module(f"molprof.commands.{first}").command
    for word in others:
        command = getattr(command, "commands", {}).get(word)
    if command is None or isinstance(command, click.Group):
        return None
    names = ((key.lstrip("-").replace("_", "-"), item) for item in command.params for key in item.opts)
    return command, {key: item for key, item in names if item.name not in _OWN}


def _options(name: str) -> Mapping[str, Option] | None:
    from molprof.profiler.jobs.grid import Option

    def option(item: click.Parameter) -> Option:
        kind = item.type
        choices = tuple(map(str, kind.choices)) if isinstance(kind, click.Choice) else ()
        number = int if kind.name.startswith("integer") else float if kind.name.startswith("float") else None
        return Option(not getattr(item, "is_flag", False), choices, number, getattr(item, "multiple", False))

    command_parameters = _parameters(name)
    return command_parameters and {key: option(item) for key, item in command_parameters[1].items()}


@dataclass(frozen=True)
class Running(Cases):
    """Options on how the cases of a sweep run."""

    # fmt: off
    folder: Path | None = declared(folder_option(
        "Folder for what the cases write.  [default: GRID without its ending]",
        type=click.Path(path_type=Path, file_okay=False)))
    dry_run: bool = declared("--dry-run", is_flag=True, help="Print the command of every case, and run none.")
    resume: bool = declared("--resume", is_flag=True, help="Skip cases whose results exist.")
    force: bool = declared("--force", is_flag=True, help="Replace existing results in DIR.")
    processes: int | None = declared(number_option(
        "--processes", help="Processes per case, interleaved with those of other cases.  [default: the grid's, or 1]"))
    seed: int = declared("--order-seed", "seed", default=0, show_default=True, help="Seed for the order of cases.")
    limit_s: float | None = declared(
        "--limit", "limit_s", type=Seconds(), metavar="SECONDS",
        help="Stop each case after this time.  [default: 600 where they are measured, else none]")
    # fmt: on


@dataclass(frozen=True)
class _Sweep:
    """A grid, and the folder that its cases write to."""

    grid: Grid
    folder: Path
    running: Running

    def case(self, case: Case) -> LineCase:
        """Return a case, checked as its command checks its options."""
        from molprof.profiler.bench.cases import LineCase

        name, config = self.grid.command, self.running.submission.config
        command, parameters = _parameters(name)  # type: ignore[misc]  # `read_grid` has found it
        options = [word for key, value in case.settings.items() for word in words(parameters[key], value)]
        extra = ("--config", str(config)) if config and any(item.name == "config" for item in command.params) else ()
        force = ("--resume",) if name.startswith("bench") else ("--force",) if self.running.force else ()
        ending = _MEASURED if case.settings.get("timed-only") else _ENDINGS[name.split()[0]]
        line = (*name.split(), *extra, *options)
        line_case = LineCase(case.name, line, str(self.folder), ending, case.options, own=force)
        try:
            context = command.make_context(
                name, [*line[len(name.split()) :], "-o", str(self.folder / line_case.output())]
            )
            settings = self._settings(context) if name == "capture" else None
        except click.BadParameter as error:
            key = error.param.opts[-1].lstrip("-") if error.param else ""
            self.grid.refuse(key, error.format_message())
        except (MolprofError, click.UsageError) as error:
            message = error.format_message() if isinstance(error, click.UsageError) else str(error)
            return replace(line_case, reason=message)
        if settings is not None:
            self._check_names(case, settings)
        return replace(line_case, settings=settings)

    def _settings(self, context: click.Context) -> CaptureSettings:
        """Return the settings of a capture. Raises MolprofError if its options exclude each other."""
        parameters: dict[str, Any] = {key: value for key, value in context.params.items() if key not in _OWN}
        parameters["sampling"] = sampling_asked(context)
        return capture_settings(self.running.submission.project, **parameters)

    def _check_names(self, case: Case, settings: CaptureSettings) -> None:
        """Raise UsageError for a name in the file that does not exist."""
        from molprof.profiler.constraints import find_factory
        from molprof.profiler.models.architecture import check_folder
        from molprof.profiler.molecules.files import split_column

        key, processor = "processor", case.settings.get("processor")
        try:
            # A module of the user's own is left to its case.
            if processor not in (None, "none", "lp") and ":" not in str(processor):
                find_factory(str(processor))
            for key, name in (("model", settings.model), ("tokenizer", settings.tokenizer)):
                check_folder(key, name)
            for row in SETTINGS.values():
                value = getattr(settings, row.name) if row.kind == "file" else None
                if value is not None and not (path := split_column(value)[0]).exists():
                    key = row.flag.lstrip("-")
                    raise UsageError(f"no such file: {path}")
        except UsageError as error:
            self.grid.refuse(key, str(error), error.hint)


@click.command(
    "sweep", cls=Submittable, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True}
)
@click.argument("file", type=click.Path(path_type=Path), metavar="GRID")
@click.argument("case_options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF THE CASES]")
@grouped(Running, "running")
def command(file: Path, case_options: tuple[str, ...], running: Running) -> int:
    """Capture or measure every combination of the options in GRID, here or on a cluster.

    GRID is a TOML file, or comes with molprof: attention, batch, cache, compile, matrix and processors measure whole
    generation, by captures without a recorded pass. Options of the cases replace those of GRID, and take several values
    with commas between them; all stands for every value. Each case runs in separate processes. If one fails, the others
    still run; Ctrl-C keeps what is done. molprof report and molprof compare accept DIR in place of its traces.

    \b
    GRID:
      command = "capture"             or "report", "ranks", "bench sdpa", "bench masks"; default: capture
      processes = 1                   of each case
      [options]                       of every case, named as the options of the command
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
      molprof sweep attention --model qwen --batch-size 8,32
      molprof sweep show attention
      molprof sweep grid.toml --dry-run
      molprof sweep batch --model ./my-model --batch-size 16,64,256 -o largest
      molprof sweep matrix --attention sdpa,eager --kv-cache all --processor none,lp
      molprof sweep recommend matrix
      molprof sweep grid.toml --resume
      molprof sweep grid.toml --submit h100 --slurm parallel=4 -o results
      molprof compare results
    """
    running.check()
    if running.submission.cluster is not None and running.limit_s is not None:
        raise click.UsageError("--limit is for cases that run here; on a cluster, use --slurm time=0:30:00")
    from molprof.profiler.bench.facts import unsupported
    from molprof.profiler.jobs.grid import grid_path, read_grid

    path = grid_path(file)
    grid = read_grid(path, _options, case_options)
    folder = running.folder or (Path(path.stem) if path != file else file.with_suffix(""))
    if folder == file and path == file:
        raise UsageError(f"{file} has no ending to name the folder after", hint="-o DIR")
    sweep = _Sweep(grid, folder, running)
    cases = [sweep.case(case) for case in grid.cases]
    arguments = [text for case in grid.cases for text in case.settings.get("processor-arg", ())]
    check_arguments(arguments, any(case.settings is not None and case.settings.processor_args for case in cases))
    if running.share is not None:
        number, of = running.share
        if not (cases := cases[number - 1 :: of]):
            raise UsageError(f"share {number}/{of} of {file} has no case")
    chosen = [case for case in cases if not case.reason]
    if not chosen:
        raise UsageError(f"no case of {file} can run, first {cases[0].name}: {cases[0].reason}")
    note(*(f"skipped {case.name}: {case.reason}" for case in cases if case.reason))
    is_measured = any(case.is_measured for case in chosen)
    if running.dry_run:
        lines = (["molprof", *case.line(folder / case.output())] for case in chosen)
        write("\n".join(escaped(shlex.join(line)) for line in lines))
        if is_measured:
            facts = _machine(chosen)
            reasons = ((case.name, unsupported(case, facts)) for case in chosen)
            note(*(f"{name} cannot run here: {reason}" for name, reason in reasons if reason))
        note(f"{counted(len(chosen), 'case')}, to be run into {folder}")
        return 0
    following = ("molprof", *(("sweep", "show") if is_measured else ("compare",)), str(folder))
    if running.submission.cluster is not None and (is_measured or running.tasks):
        make_folder(folder)
        sweep_options = own_arguments(click.get_current_context(), "tasks", "resume", "force", "folder")
        line = ["sweep", str(file), *sweep_options, *case_options]
        submit_shares(running, "sweep", line, folder.absolute() / RESULTS, running.resume, str(folder))
    else:
        turns = [(case, repeat) for repeat in range(running.processes or grid.processes) for case in chosen]
        done, are_busy = _done(folder, turns, running)
        left = [(case, repeat) for case, repeat in turns if (case.name, repeat) not in done]
        _write(folder, running, [(case, 0, UNSUPPORTED, case.reason) for case in cases if case.reason])
        if not left:
            note(*([] if are_busy else [f"{folder} has the result of every case; next: {shlex.join(following)}"]))
            return 0
        if running.submission.cluster is None:
            return _run_here(folder, left, done, following, running)
        _submit(folder, left, running)
    if not running.submission.detach:
        note(f"next: {shlex.join(following)}")
    return 0


def _done(folder: Path, turns: Sequence[tuple[LineCase, int]], running: Running) -> tuple[set[tuple[str, int]], bool]:
    """Return the (case, process) pairs that have results or still run on a cluster; and True if any still run."""
    from molprof.common.jobs.status import unfinished

    outputs = {str((folder / case.output(repeat)).absolute()): (case.name, repeat) for case, repeat in turns}
    busy = {} if running.force else unfinished(running.submission.jobs, outputs)
    jobs = Counter(busy.values())
    if busy and not running.resume:
        first = next(iter(jobs))
        raise UsageError(
            f"{first} has not finished {counted(jobs[first], 'case')} of {folder}",
            hint=f"--resume skips them; molprof jobs cancel {first} cancels them",
        )
    make_folder(folder)
    for job, count in sorted(jobs.items()):
        note(f"skipped {counted(count, 'case')} that {job} has not finished: molprof jobs collect {job}")
    done = {outputs[output] for output in busy}
    before = {}
    if not running.force and is_sweep(folder):
        before = {(item.case, item.repeat): item for item in read_sweep(folder).results}
    finished = []
    for case, repeat in turns:
        output, earlier = folder / case.output(repeat), before.get((case.name, repeat))
        if (case.name, repeat) in done or not output.exists():
            continue
        if running.force:
            output.unlink()  # benchmarks add to theirs
        elif not running.resume:
            raise UsageError(f"{output} already exists", hint="--resume keeps it, --force replaces it")
        elif earlier is None or tuple(earlier.arguments) != case.arguments:
            raise UsageError(
                f"{output} was made with other options than {case.name} has now",
                hint="name another folder with -o DIR, or make all again with --force",
            )
        elif earlier.status == OK or case.ending != _ENDINGS["bench"]:  # others write at once
            done.add((case.name, repeat))
            finished += [(case, repeat, OK, None)] if earlier.status != OK else []
    _write(folder, running, finished)
    return done, bool(busy)


def _machine(cases: Sequence[LineCase]) -> CaseFacts:
    """Return the capabilities of this machine, on the device of the first case."""
    from molprof.profiler.bench.facts import read_machine

    settings = cases[0].settings
    assert settings is not None
    return read_machine(settings.device, settings.threads, cases)


def _results(folder: Path, running: Running) -> Path:
    """Return the results file; a share has its own."""
    return folder / RESULTS if running.share is None else part_path(folder / RESULTS, running.share)


def _write(
    folder: Path, running: Running, states: Sequence[tuple[LineCase, int, str, str | None]], job: str | None = None
) -> None:
    """Add the states of processes of cases to the results, and the reasons."""
    from molprof.common.process import Ending
    from molprof.profiler.bench.schedule import record_of
    from molprof.profiler.jobs.results_file import ResultsFile

    if states:
        with contextlib.closing(ResultsFile(_results(folder, running))) as file:
            for case, repeat, state, message in states:
                file.write(record_of(case, repeat, "", Ending(state, message), job=job))


def _run_here(
    folder: Path,
    left: Sequence[tuple[LineCase, int]],
    done: set[tuple[str, int]],
    following: Sequence[str],
    running: Running,
) -> int:
    from molprof.common.process.guarded import Limits
    from molprof.profiler.bench.schedule import SchedulePlan, default_memory

    cases, facts = tuple({case.name: case for case, _ in left}.values()), None
    limits = Limits(running.limit_s or math.inf, running.memory_limit)
    if cases[0].is_measured:
        facts = _machine(cases)
        limits = Limits(running.limit_s or _LIMIT_S, running.memory_limit or default_memory())
    plan = SchedulePlan(
        cases, 1 + max(repeat for _, repeat in left), running.seed, limits, bisect=running.bisect, done=done,
        command=("molprof", *sys.argv[1:]),
    )  # fmt: skip
    lines = run_here(plan, facts, _results(folder, running))
    if lines is None:
        return 130
    results = {(item.case, item.repeat): item for item in read_sweep(folder).results}
    if facts is not None:
        told(lines, folder, following, any(item.status == OK for item in results.values()))
        return 0
    mine = [results[case.name, repeat] for case, repeat in left]
    if bad := [item for item in mine if item.status not in (OK, UNSUPPORTED)]:
        log = folder / LOGS / f"{bad[0].output}".replace(cases[0].ending, ".log")
        raise RunError(
            f"{len(bad)} of {len(left)} cases did not end well, first {bad[0].case}: {bad[0].message}",
            hint=f"its output is in {log}; --resume runs them again",
        )
    note(f"next: {shlex.join(following)}")
    return 0


def _submit(folder: Path, left: Sequence[tuple[LineCase, int]], running: Running) -> None:
    """Submit a task for each process of a case."""
    from molprof.common.jobs.job import Task

    tasks = [
        Task(
            case.output(repeat).removesuffix(case.ending),
            tuple(case.line(folder.absolute() / case.output(repeat))),
            str(folder.absolute() / case.output(repeat)),
        )
        for case, repeat in left
    ]
    states = [(case, repeat, "submitted", None) for case, repeat in left]
    data = {"folder": str(folder.absolute())}
    submit_command(running.submission, "sweep", tasks, data, lambda job: _write(folder, running, states, job.id))


command.add(results.show)
command.add(results.recommend)
