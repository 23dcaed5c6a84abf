"""`molprof doctor`: check this machine, and say how to fix what does not work."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from molprof.commands.command import Command
from molprof.commands.options import ResultOptions, result_options
from molprof.commands.run_options import Seconds
from molprof.commands.submission import config_option


@click.command("doctor", cls=Command)
@click.option(
    "--limit", "limit_s", type=Seconds(), default=120.0, show_default=True, metavar="SECONDS",
    help="Time limit of each check.",
)  # fmt: skip
@click.option("--peaks", is_flag=True, help="Measure products of matrices and a copy of memory too; half a minute.")
@config_option
@result_options()
def command(limit_s: float, peaks: bool, config: Path | None, result: ResultOptions) -> int:
    """Check what molprof requires and what it can use, and print a fix for what does not work.

    Imports and kernels run in separate processes, each with a time limit. Works without torch. States: ok; missing
    (required, not installed); broken (installed, does not work); absent (optional, not installed). Exit codes: 0 if
    traces can be captured or analysed, 3 if neither.

    \b
    Examples:
      molprof doctor
      molprof doctor --format json | jq .can
      molprof doctor --peaks
    """
    result.check()
    from molprof.profiler.doctor.checks import TRIALS, diagnose, diagnosis_document

    with click.progressbar(length=len(TRIALS), label="checking", file=sys.stderr) as bar:
        diagnosis = diagnose(config, limit_s, lambda: bar.update(1))
    if peaks:
        from molprof.analysis.roofline.peaks import peaks_of
        from molprof.profiler.doctor.peaks import peak_checks

        click.echo("measuring peaks", err=True)
        measured = peak_checks(limit_s, peaks_of)
        diagnosis = replace(diagnosis, checks=(*diagnosis.checks, *measured))
    result.deliver(diagnosis_document(diagnosis))
    return 0 if diagnosis.can_analyse or diagnosis.can_capture else 3
