"""`molprof replay`: one operator of a trace by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from molprof.api import called_operators
from molprof.commands.command import Command
from molprof.commands.options import TRACE, ResultOptions, note, number_option, result_options, uncached_options
from molprof.common.errors import RunError, UsageError
from molprof.common.files import check_output, replacing
from molprof.common.process import output_of, why_failed
from molprof.common.values import time_text

# Of a script that measures for half a second; loading torch and a large product on a slow CPU take longest.
_LIMIT_S = 600.0


@click.command("replay", cls=Command)
@click.argument("trace", type=TRACE)
@number_option("--op", least=1, help="Number of the operator in the list.")
@click.option(
    "--script",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --op: write the program to FILE, and do not run it.",
)
@uncached_options
@result_options()
def command(trace: Path, op: int | None, script: Path | None, reading: Any, result: ResultOptions) -> None:
    """Run one operator of TRACE by itself, here.

    Without --op the operators of TRACE are listed by their arguments, the longest self time first. With --op N the
    operator of that row runs here, with its shapes, strides, types and numbers, and random data. It needs nothing of
    the model. The trace must have shapes: molprof capture --shapes, or
    torch.profiler.profile(record_shapes=True).

    \b
    Examples:
      molprof replay trace.json.gz
      molprof replay trace.json.gz --op 3
      molprof replay trace.json.gz --op 3 --script attention.py && python attention.py
      molprof replay trace.json.gz --format csv
    """
    from molprof.analysis.documents.replay import operators_document, replayed_document
    from molprof.analysis.roofline.script import script_of

    if script is not None:
        if op is None:
            raise UsageError("--script writes one operator", hint="--op N; molprof replay TRACE lists them")
        if result.output is not None:
            raise UsageError("--script writes the program alone", hint="leave out -o, or --script")
        check_output(script, result.force, [trace])
    result.check([trace])
    operators, notes = called_operators(trace, reading)
    if op is None:
        result.deliver(operators_document(str(trace), operators, notes))
        return
    if op > len(operators):
        raise UsageError(f"--op {op}: {trace} has {len(operators):,} operators", hint="molprof replay TRACE lists them")
    called = operators[op - 1]
    each = time_text(called.time_ns / called.calls)
    text = script_of(called, f"{called.operator} as recorded in {trace.name}: {called.calls:,} calls, {each} each.")
    if script is not None:
        with replacing(script, result.force) as part:
            part.write_text(text, encoding="utf-8")
        note(f"wrote {script}")
        return
    note(*notes)
    result.deliver(replayed_document(str(trace), op, called, _measured(text)))


def _measured(text: str) -> dict[str, Any]:
    """Return the script's output. Raises RunError if it fails."""
    try:
        ended = output_of([sys.executable, "-c", text, "--json"], _LIMIT_S)
    except subprocess.TimeoutExpired as error:
        hint = "--script FILE writes it, to be run elsewhere"
        raise RunError(f"the operator took more than {_LIMIT_S:g} s", hint) from error
    if ended.returncode:
        raise RunError(why_failed(ended.returncode, ended.stderr), hint="--script FILE writes it, to be changed")
    measured: dict[str, Any] = json.loads(ended.stdout)
    return measured
