"""The command line: one group of commands, imported on use, and the one place that catches errors."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import logging
import os
import re
import signal
import sys
import traceback
from types import FrameType
from typing import Any, NoReturn

import click

from molprof import __version__
from molprof.commands.command import CommandGroup
from molprof.common import GARBAGE
from molprof.common.errors import MolprofError, RunError, UnsupportedError, UsageError, missing_extra
from molprof.common.files import stdout_problem, written_files
from molprof.common.text import escaped

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_S = 0.01
# What Python says of a signal that came when its handler was being replaced.
_LATE = re.compile(r"Signal (\d+) ignored due to race condition")
# Files that the line on an interrupt names.
_NAMED = 4

# By task: name -> one line for `molprof --help`. The module of that name in molprof.commands holds `command`. It is
# imported when the command is used: help stays instant.
GROUPS = {
    "Record and measure": {
        "demo": "Capture both presets with and without the LP; compare the traces.",
        "run": "Run a program of your own as it is, and record how it generates.",
        "capture": "Record a trace of generation, with or without a logits processor.",
        "attach": "Time a running vLLM or SGLang server with a constraint and without.",
        "sweep": "Capture or measure every combination of a grid of options.",
        "jobs": "List, collect, requeue or cancel jobs on a cluster; print logs.",
        "bench": "Benchmark attention kernels and masks of constraints.",
        "drift": "Compare the tokens of coordinates with those of placeholders.",
    },
    "Analyse traces": {
        "report": "Report launches, kernels, phases and tokens of one or more traces.",
        "compare": "Compare two or more traces, and explain the difference.",
        "predict": "Predict launches, times and limits of a run for another GPU.",
        "history": "Keep results over time; show where figures changed.",
        "ranks": "Show the ranks of a distributed job side by side.",
        "query": "Run SQL over traces: a module of the package, a file, or text.",
        "replay": "Run one operator of a trace by itself, or write it as a script.",
        "trim": "Cut a trace to some of its steps, phases, categories or times.",
        "join": "Put samples of a process that was not profiled into a trace.",
        "export": "Write a trace with molprof's facts, for any Perfetto shell or UI.",
        "open": "Open traces, or all ranks of a job, in the Perfetto UI.",
        "mcp": "Serve traces to an assistant by the Model Context Protocol.",
        "skill": "Write pages of workflow for an assistant that runs commands.",
    },
    "Set up": {
        "doctor": "Check what works on this machine; print a fix for what does not.",
        "presets": "List the models, processors and molecules of the package.",
        "wheels": "Gather the wheels that recording without a network needs.",
    },
}
COMMANDS = {name: text for commands in GROUPS.values() for name, text in commands.items()}
# Commands by their former names.
_MOVED = {"plot": "report plot", "queries": "query list", "recommend": "sweep recommend", "collect": "jobs collect",
          "logs": "jobs logs"}  # fmt: skip
# Commands that read traces. They use no linear algebra: numpy's OpenBLAS would start a thread per processor, and each
# would wait in a busy loop for 0.1 s.
_READERS = frozenset(
    {"report", "compare", "predict", "ranks", "open", "trim", "export", "join", "query", "history", "mcp"}
)


class LazyGroup(CommandGroup):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command and return it."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in _READERS:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        command: click.Command = importlib.import_module(f"molprof.commands.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a name. An unknown or moved one is an error with the name to type instead."""
        if args[0] not in COMMANDS and args[0] not in _MOVED:
            from difflib import get_close_matches  # on a mistake alone

            if near := get_close_matches(args[0], COMMANDS, 1):
                raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write commands and options of `molprof --help`."""
        self.format_commands(ctx, formatter)
        formatter.write_paragraph()  # without a heading, all fits one screen
        formatter.write_dl([("-h, --help, --version", "Show help or the version, and exit.")])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by task."""
        longest = max(map(len, COMMANDS))
        for task, commands in GROUPS.items():
            with formatter.section(task):
                formatter.write_dl([(f"{name:{longest}}", text) for name, text in commands.items()])


@click.group(
    cls=LazyGroup, moved=_MOVED, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="molprof")
def cli() -> None:
    """Find out, kernel by kernel, why constrained generation is slower or faster.

    \b
    Examples:
      molprof demo                           a first try: no GPU, no download
      molprof capture --model qwen --lp
      molprof compare llama.json qwen.json
      molprof report trace.json.gz           of any trace of torch.profiler
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 good, 1 a threshold failed, 2 wrong usage, 3 an error, 130 interrupted."""
    gc.set_threshold(GARBAGE)
    sys.unraisablehook = _unraisable
    try:
        code = _run(arguments)
        signal.setitimer(signal.ITIMER_REAL, 0)  # of an interrupt that was dropped when all was done
        _end_at_once()  # no traceback while Python ends
    except KeyboardInterrupt:  # while an error was printed, or after the end
        code = _interrupted()
    if "torch" not in sys.modules:  # whose libraries want each of their objects freed
        gc.freeze()  # to look for garbage at the end takes 40 ms
    sys.exit(code)


class _Notes(logging.Handler):
    """Print remarks of the libraries on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(escaped(record.getMessage()), err=True)


def run_case(*words: str) -> None:
    """Run the command line `molprof WORDS` in the process of a sweep's case; raise the reason if it fails."""
    sys.argv[1:] = words
    try:
        code = _invoked([*words])
    except MolprofError as error:
        _complain(str(error), error.hint, error.exit_code)
        if isinstance(error, UsageError) and "--timed-only" in words:  # settings that the model or the device lacks
            raise UnsupportedError(str(error), error.hint) from error
        raise
    except click.ClickException as error:
        raise UsageError(error.format_message()) from error
    except Exception:
        traceback.print_exc()
        raise
    if isinstance(code, int) and code:
        raise RunError(f"ended with code {code}")


def _invoked(arguments: list[str] | None) -> Any:
    """Invoke the command and return its result."""
    logger = logging.getLogger("molprof")
    logger.handlers, logger.propagate = [_Notes()], False
    logger.setLevel(logging.INFO)
    return cli.main(args=arguments, prog_name="molprof", standalone_mode=False)


def _run(arguments: list[str] | None) -> int:
    try:
        # SIGTERM comes from a batch system, SIGHUP from a terminal that closes: clean up as after Ctrl-C.
        for number in _INTERRUPTS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                signal.signal(number, _interrupt)
        _buffer_stdout()
        result = _invoked(arguments)
    except MolprofError as error:
        return _complain(str(error), error.hint, error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = None if context is None else f"{context.command_path} --help shows what it takes"
        return _complain(error.format_message(), hint, error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _interrupted()
    except MemoryError:
        return _complain("there is not enough memory", "ulimit -v shows the limit of this shell", 3)
    except OSError as error:
        if sys.stdout is not None and (problem := stdout_problem()) is not None:  # of help, which click prints
            broken = isinstance(problem, BrokenPipeError)
            return 0 if broken else _complain(f"cannot write to stdout: {problem.strerror}", None, 3)
        name = f": {error.filename}" if error.filename else ""
        return _complain(f"{error.strerror or error}{name}", None, 3)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and not (error.name or "molprof").startswith("molprof"):
            if (missing := missing_extra(error.name or "", "this command")) is not None:
                return _complain(str(missing), missing.hint, missing.exit_code)
            hint = "molprof doctor names what is missing, what it is for, and how to install it"
            return _complain(f"this command needs the module {error.name!r}, which is not installed", hint, 2)
        if isinstance(error, ImportError) and error.name is None:  # of a package that imports its parts when asked
            text = " ".join(f"{error} {error.__cause__ or ''}".split())
            return _complain(f"an installed package does not work here: {text}", "molprof doctor says which", 2)
        traceback.print_exc()
        return _complain("this is a bug in molprof; please report it with the lines above", None, 3)
    return result if isinstance(result, int) else 0


def _interrupted() -> int:
    return _complain(f"interrupted; {_changed()}", None, 130)


def _changed() -> str:
    """Return the files that an interrupted command leaves behind, as text."""
    names = [str(path) for path in written_files()]
    if not names:
        return "no file was changed"
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"written before: {', '.join(names[:_NAMED])}{more}"


def _interrupt(number: int, frame: FrameType | None) -> None:
    _end_at_once()  # at a second one
    raise KeyboardInterrupt


def _end_at_once() -> None:
    for number in _INTERRUPTS:
        if signal.getsignal(number) == _interrupt:
            signal.signal(number, signal.SIG_DFL)


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """Raise again an interrupt that Python dropped because it came during a destructor or a callback.

    It also drops a second one that came just before its handler was gone.
    """
    if late := _LATE.fullmatch(str(lost.exc_value)):
        os.kill(os.getpid(), int(late[1]))
        return
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _buffer_stdout() -> None:
    """Give stdout a buffer in spite of PYTHONUNBUFFERED: without it, Python drops text that one write did not take.

    What its encoding does not have, such as the ellipsis in Latin-1, is written as an escape.
    """
    if sys.stdout is not None and isinstance(raw := getattr(sys.stdout, "buffer", None), io.RawIOBase):
        buffer = io.BufferedWriter(io.FileIO(raw.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(buffer, sys.stdout.encoding, sys.stdout.errors, line_buffering=raw.isatty())
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _complain(message: str, hint: str | None, code: int) -> int:
    line = " ".join(part.strip() for part in message.splitlines())
    with contextlib.suppress(OSError):  # of stderr; the exit code still tells
        click.echo(f"molprof: error: {escaped(line)}", err=True)
        for line in (hint or "").splitlines():
            click.echo(f"  {escaped(line)}", err=True)
    return code
