"""Inputs of the commands of `molprof report`: the traces to read, and a file for each result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from molprof.analysis.reader import is_stream
from molprof.analysis.reader.remote import is_remote, listed
from molprof.commands.options import (
    SPEEDSCOPE,
    ResultOptions,
    ending_of,
    make_folder,
    note,
    refuse_twice,
)
from molprof.commands.submission import Submission, own_arguments, submit_command
from molprof.common.errors import MolprofError, TraceError, UsageError
from molprof.common.files import check_output
from molprof.common.values import counted

if TYPE_CHECKING:
    from molprof.analysis.documents.figures import TraceRow
    from molprof.common.jobs.job import Task

T = TypeVar("T")
PARTIAL_HINT = "--partial reads the intact part of a damaged trace"


def chosen(
    traces: Sequence[Path], result: ResultOptions, several: bool, **helpers: Path | None
) -> tuple[list[Path], list[Path | None]]:
    """Return the checked traces, folders replaced by their traces, and each result's output file.

    several: OUT is a folder. helpers: traces that open the graphs of a single one, by the name of their option.
    """
    traces = expanded(traces, stored=False)
    names = {f"--{name.replace('_', '-')}": path for name, path in helpers.items() if path is not None}
    outputs = [result.output]
    if several:
        outputs = _outputs(traces, result)
    else:
        result.check([*traces, *names.values()])
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} open the same graphs", hint="give one of the two")
    if names and len(traces) > 1:
        raise UsageError(f"{next(iter(names))} takes one TRACE", hint="report the traces one by one")
    refuse_twice([*traces, *names.values()])
    return traces, outputs


def submitted(
    context: click.Context, submission: Submission, traces: Sequence[Path], outputs: Sequence[Path | None]
) -> bool:
    """Submit the command with a task for each trace, if --submit was given; return True if submitted."""
    if submission.cluster is None:
        return False
    words, options = context.command_path.split()[1:], own_arguments(context, "output", "config")
    submit_command(submission, "report", _tasks(words, traces, outputs, options))
    return True


def readable(
    traces: Sequence[Path], outputs: Sequence[Path | None], read: Iterable[T | MolprofError], needs_all: bool = False
) -> tuple[list[T], list[Path | None], list[TraceRow]]:
    """Return the readable traces' results and outputs, and a row for each unreadable trace, printed as it occurs.

    Raises the error of a single trace, and where all are needed the first one.
    """
    from molprof.analysis.documents.figures import trace_row

    good: list[T] = []
    good_outputs: list[Path | None] = []
    bad: list[TraceRow] = []
    for trace, output, item in zip(traces, outputs, read, strict=True):
        if not isinstance(item, MolprofError):
            good.append(item)
            good_outputs.append(output)
        elif needs_all or len(traces) == 1:
            raise item
        else:
            bad.append(trace_row(str(trace), item))
            note(f"{trace}: {bad[-1].reason}")
    return good, good_outputs, bad


def refuse_bad(bad: Sequence[TraceRow], count: int) -> None:
    """Raise TraceError if there are rows of traces that could not be read, of `count` traces."""
    if bad:
        text = f"{len(bad):,} of {counted(count, 'trace')} could not be read, first {bad[0].problem}"
        raise TraceError(text, hint=PARTIAL_HINT)


def expanded(inputs: Sequence[Path], stored: bool) -> list[Path]:
    """Return the traces, folders replaced by their traces, with remarks on skipped files.

    stored: with other files that are named as traces, such as stored reports; a folder without any stays. Else raises
    UsageError for a folder without traces.
    """
    if any(map(is_remote, inputs)):
        from molprof.analysis.reader.source import ENDINGS

        inputs = [item for path in inputs for item in ((is_remote(path) and listed(path, ENDINGS)) or [path])]
    if not any(path.is_dir() for path in inputs):
        return list(inputs)
    from molprof.analysis.reader.source import is_other, left_out, traces_in

    paths: list[Path] = []
    for path in inputs:
        if not path.is_dir():
            paths.append(path)
            continue
        inside = traces_in(path)
        others = [] if stored else [item for item in inside if is_other(item)]
        note(*left_out(path, others))
        inside = [item for item in inside if item not in others]
        if not inside and not stored:
            raise UsageError(f"{path} holds no traces", hint="give traces, or a folder with traces in it")
        paths += inside or [path]
    return paths


def _outputs(traces: Sequence[Path], result: ResultOptions) -> list[Path | None]:
    """Return a file for each of several traces in the folder OUT, which is made if needed; None each without OUT.

    Raises UsageError where OUT is no folder, two traces would share a file, a file exists, or the format needs OUT.
    """
    output = result.output
    if output is None:
        if result.style in ("csv", "html", SPEEDSCOPE):
            raise UsageError(f"several reports as {result.style} need a folder", hint="-o DIR")
        return [None] * len(traces)
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is not a folder", hint="with several traces, OUT is a folder")
    make_folder(output)
    trace_of: dict[Path, Path] = {}
    for trace in traces:
        path = output / (_stem(trace) + ending_of(result.style))
        if path in trace_of:
            raise UsageError(f"{trace_of[path]} and {trace} would share {path}", hint="report them one by one")
        check_output(path, result.force, traces)
        trace_of[path] = trace
    return list(trace_of)


def _stem(trace: Path) -> str:
    return re.sub(r"(\.json)?(\.zst)?(\.gz)?$", "", trace.name)


def _tasks(
    command: Sequence[str], traces: Sequence[Path], outputs: Sequence[Path | None], options: Sequence[str]
) -> list[Task]:
    from molprof.common.jobs.job import Task

    tasks = []
    for trace, output in zip(traces, outputs, strict=True):
        if output is None or is_stream(trace):
            raise UsageError("a report on a cluster reads a file and writes one", hint="-o OUT")
        tasks.append(Task(_stem(trace), (*command, str(trace), *options, "-o", str(output)), str(output.absolute())))
    return tasks
