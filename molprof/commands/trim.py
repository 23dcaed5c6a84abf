"""`molprof trim`: write a part of a trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from molprof.commands.command import Command
from molprof.commands.options import TRACE, Read, file_option, note, number_option, refuse_streams
from molprof.common.files import check_output
from molprof.common.values import bytes_text

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def _steps(value: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", value)
    if not match:
        raise ValueError(f"{value!r} is not A:B, such as 10:12, or one number")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"{value!r} ends before it begins")
    return first, last


def _time(value: str) -> int:
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)\s*(ns|us|ms|s)", value)
    if not match:
        raise ValueError(f"{value!r} is not a time with its unit, such as 12.5ms, 800us or 3s")
    return round(float(match[1]) * _UNITS_NS[match[2]])


def _names(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))


_NAMES, _TIME = Read(_names), Read(_time)


@click.command("trim", cls=Command)
@click.argument("trace", type=TRACE)
@click.option("--steps", metavar="A:B", type=Read(_steps), help="Keep steps A to B, both included.")
@number_option("--batch", least=0, help="Batch of --steps.  [default: the first]")
@click.option("--phases", metavar="A,B", type=_NAMES, default=(), help="Keep events that start in these phases.")
@click.option("--categories", metavar="A,B", type=_NAMES, default=(), help="Keep events of these categories.")
@click.option("--without", metavar="A,B", type=_NAMES, default=(), help="Leave out events of these categories.")
@click.option("--from", "start_ns", metavar="TIME", type=_TIME, help="Keep events that start at TIME or later.")
@click.option("--to", "end_ns", metavar="TIME", type=_TIME, help="Keep events that start before TIME: 12.5ms, 3s.")
@file_option(".json", ".json.gz")
def command(
    trace: Path, steps: tuple[int, int] | None, batch: int | None, output: Path, force: bool, **kept: Any
) -> None:
    """Write a part of TRACE to OUT, as a trace of its own.

    An event is kept or left out by its start, GPU work by that of the call that launched it. All options given must
    hold. Times count from the earliest event, as in the Perfetto UI. Names of tracks, flows with both ends, molprof's
    annotations, token tracks and manifest are kept.

    \b
    Examples:
      molprof trim trace.json.gz --steps 10:12 -o small.json.gz
      molprof trim trace.json.gz --without python_function -o small.json.gz
      molprof trim trace.json.gz --from 1.5s --to 1.6s -o moment.json.gz
      molprof trim trace.json.gz --steps 10:12 --phases processor -o processor.json.gz
    """
    refuse_streams(trace)
    start_ns, end_ns = kept["start_ns"], kept["end_ns"]
    if steps is None and all(value in (None, ()) for value in kept.values()):
        raise click.UsageError("nothing to keep: give --steps, --phases, --categories, --without, --from or --to")
    if start_ns is not None and end_ns is not None and end_ns <= start_ns:
        raise click.UsageError("--to is not after --from")
    if batch is not None and steps is None:
        raise click.UsageError("--batch requires --steps")
    check_output(output, force, [trace])
    from molprof.analysis.trim import Wish, trim

    outcome = trim(trace, output, Wish(steps, batch, **kept), force)
    note(f"wrote {output}: {outcome.after:,} of {outcome.before:,} events, {bytes_text(output.stat().st_size)}")
    if outcome.unplaced:
        note(f"{outcome.unplaced:,} events with separate begin and end were kept regardless of time")
