"""`molprof run`: record a user's program."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import click

from molprof.commands.command import Command
from molprof.commands.options import DURATION, Read, check_ending, file_option, note, refuse
from molprof.commands.progress import Lines
from molprof.commands.run_options import pair
from molprof.common.errors import UsageError
from molprof.common.files import next_free
from molprof.common.text import escaped
from molprof.profiler.recording.tracefile import ENDINGS, OutputFile, default_name

# Options about the steps of one process.
_OF_ONE = ("call", "window", "full", "modules", "repeats", "functions", "memory")


class _ProgramCommand(Command):
    allow_interspersed_args = False  # what follows the program's name is its own


@click.command("run", cls=_ProgramCommand)
@click.argument("program", nargs=-1, required=True, metavar="SCRIPT [ARGS]...", type=click.UNPROCESSED)
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@file_option(*ENDINGS, default="a new file named by the program")
@click.option(
    "--call",
    type=click.IntRange(0),
    metavar="N",
    help="Call of generate, from 0, of which steps are recorded.  [default: the second, or the first if it is the only"
    " one or has more steps in its window]",
)
@click.option(
    "--window",
    type=pair("FIRST:LAST", "20:39", 0),
    metavar="FIRST:LAST",
    help="Steps of that call to record.  [default: 20 from step 20 on]",
)
@click.option(
    "--full", is_flag=True, help="Record all that the program does; the trace gets large, and nothing is timed."
)
@click.option("--modules", is_flag=True, help="Record modules too, for molprof report by module.")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    metavar="N",
    help="Then run the program N times more without the profiler, in turns with N runs --without-processors, so that "
    "the cost of its processors has an interval.  [default: it runs once]",
)
@click.option(
    "--without-processors",
    "without",
    is_flag=True,
    help="Switch off the logits processors that generate is given, and its arguments that forbid or force tokens.",
)
@click.option(
    "--functions/--no-functions",
    default=None,
    help="Sample the functions of logits processors in the recorded steps.  [default: on, unless --stacks records all]",
)
@click.option("--stacks", is_flag=True, help="Record modules and Python functions too, for molprof report by.")
@click.option(
    "--shapes",
    is_flag=True,
    help="Record shapes and types of operators' arguments too, for molprof report by shape and molprof replay.",
)
@click.option(
    "--memory", is_flag=True, help="Record allocations and frees of memory too, for molprof report by memory."
)
@click.option(
    "--processes",
    is_flag=True,
    help="Record all Python processes of SCRIPT, or of any command, from their import of torch on, into one trace.",
)
@click.option(
    "--after",
    type=Read(lambda text: math.inf if text == "signal" else DURATION.convert(text, None, None), "time"),
    metavar="TIME|signal",
    help="With --processes: begin so long after the start, such as 90s, or when molprof gets SIGUSR1.",
)
@click.option("--for", "length", type=DURATION, metavar="TIME", help="With --processes: record for so long.")
def command(program: tuple[str, ...], module: bool, output: Path | None, force: bool, **options: Any) -> None:
    """Run a Python program as it is, and record how it generates.

    SCRIPT runs as with python SCRIPT ARGS: its output, its exceptions and its exit code are its own, and so is each
    argument after its name. Options of molprof come before it.

    Each call of transformers' generate is a batch of the trace, with its steps, tokens and logits processors. The
    profiler runs for some steps of one call, and all others are timed as in the bare program. The first call, or the
    only one, may run under the profiler as a whole; the last lines then say so. molprof.step() marks a loop of your
    own.

    \b
    Examples:
      molprof run script.py questions.txt
      molprof run -o mine.json.gz --window 0:9 script.py
      molprof run -o mine.json.gz --call 5 -m package.module
      molprof run --repeats 5 script.py
      molprof run --processes -o job.json.gz torchrun --nproc-per-node 2 train.py
    """
    name, processes = program[0], options.pop("processes")
    window = {name: options.pop(name) for name in ("after", "length")}
    if not processes and any(window.values()):
        raise UsageError("--after and --for go with --processes", hint="--window chooses steps of one process")
    if processes:
        others = {**{option: options[option] for option in _OF_ONE}, "without_processors": options["without"]}
        refuse("--processes", "leave it out: all that each process does is recorded", **others)
    is_command = processes and not module and not Path(name).exists() and shutil.which(name) is not None
    if not module and not is_command and not Path(name).exists():
        raise UsageError(f"no such file: {name}", hint="-m NAME runs a module")
    if not module and Path(name).is_dir() and not Path(name, "__main__.py").exists():
        raise UsageError(f"{name} is a folder without __main__.py", hint="name a script; -m NAME runs a module")
    if options["full"] and (options["call"], options["window"]) != (None, None):
        raise UsageError("--full records all, so that --call and --window choose nothing")
    if options["repeats"] and options["without"]:
        raise UsageError("--repeats runs the program without its processors too: leave out --without-processors")
    if options["repeats"] and options["full"]:
        raise UsageError("--full records all, and times nothing: leave out --repeats")
    if output is not None:
        check_ending(output, ENDINGS)
    path = next_free(Path(default_name(Path(name).stem if not module else name, None))) if output is None else output
    OutputFile(path, force).check([] if module or is_command else [Path(name)])
    context = click.get_current_context()
    if misplaced := list(_given_to_program(context.command.params, program[1:])):
        click.echo(
            f"molprof: options of molprof come before the script; {escaped(' '.join(misplaced))} was given to"
            f" {escaped(name)}",
            err=True,
        )
    if processes:
        line = [*([] if is_command else [sys.executable]), *(["-m"] if module else []), *program]
        _record_processes(line, OutputFile(path, force, chosen=output is None), **options, **window)
    from molprof.profiler.recording.script import replace_process

    # The program may change its folder.
    settings = {
        "output": str(path.absolute()),
        "shown": str(path),
        "force": force,
        "chosen": output is None,
        "module": module,
        **options,
    }
    settings["command"] = ["molprof", *sys.argv[1:]]
    if (rounds := options["repeats"]) is None:
        replace_process(settings, program)
    _repeat({**settings, "chosen": False, "without": False}, program, OutputFile(path, force), rounds)


def _repeat(settings: dict[str, Any], program: tuple[str, ...], output: OutputFile, rounds: int) -> None:
    """Run the program once recorded and `rounds` times timed, and as often without its processors."""
    from molprof.profiler.recording.repeats import Repeats, without_path

    other = OutputFile(without_path(output.path), output.force)
    other.check()
    lines = Lines()
    runs = Repeats(
        settings, program, output, other, lambda text: lines.line(escaped(text)), lambda text: lines.draw(escaped(text))
    )
    try:
        code = runs.run(rounds)
    finally:
        lines.clear()
        if runs.rounds:
            note(f"next: molprof compare {shlex.quote(str(other.path))} {shlex.quote(str(output.path))}")
    if code:
        raise SystemExit(code)


def _record_processes(line: Sequence[str], output: OutputFile, **options: Any) -> NoReturn:
    """Run a command line, write one trace of its processes, and end as it did."""
    from molprof.profiler.recording.processes import ProcessSettings, record_processes

    settings = ProcessSettings(options["stacks"], options["shapes"], options["after"], options["length"])
    code = record_processes(line, settings, output, lambda text: note(escaped(text)))
    raise SystemExit(code if code >= 0 else 128 - code)


def _given_to_program(params: Sequence[click.Parameter], arguments: Sequence[str]) -> Iterator[str]:
    """Yield the program's own arguments that are also options of molprof, each with its value."""
    options = {name: item for item in params if isinstance(item, click.Option) for name in item.opts}
    for argument, following in pairwise([*arguments, None]):
        name, is_whole, _ = str(argument).partition("=")
        if (option := options.get(name)) is not None:
            has_value = not (option.is_flag or is_whole or following is None)
            yield f"{argument} {following}" if has_value else str(argument)
