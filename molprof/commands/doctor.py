"""`molprof doctor`: what works here, and the fix for what does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molprof.commands.options import Seconds, check_result, deliver, result_options
from molprof.commands.submission import config_option
from molprof.common.document import Document, Section, pairs

if TYPE_CHECKING:
    from molprof.profiler.doctor.checks import Diagnosis

NEITHER = 3


@click.command("doctor")
@click.option(
    "--limit", "limit_s", type=Seconds(), default=120.0, show_default=True, metavar="SECONDS",
    help="Time limit of each trial.",
)  # fmt: skip
@config_option
@result_options()
def command(limit_s: float, config: Path | None, style: str, output: Path | None, force: bool) -> int:
    """Tries what molprof requires and what it can use, and prints the fix for what does not work.

    Tries imports and kernels in processes of their own, each with a time limit. Works without torch. States: ok;
    missing (something requires it); broken (installed, does not work); absent (not installed, optional). Exit codes:
    0 traces can be recorded or analysed, 3 neither.

    \b
    Examples:
      molprof doctor
      molprof doctor --format json | jq .can
    """
    check_result(output, force)
    from molprof.profiler.doctor.checks import diagnose, number_of_trials

    with click.progressbar(length=number_of_trials(), label="trials", file=sys.stderr) as bar:
        diagnosis = diagnose(config, limit_s, lambda: bar.update(1))
    deliver(_document(diagnosis), style, output)
    return 0 if diagnosis.can_analyse or diagnosis.can_capture else NEITHER


def _document(diagnosis: Diagnosis) -> Document:
    rows = []
    for check in diagnosis.checks:
        rows.append((check.name, check.state if check.value is None else f"{check.state}: {check.value}"))
        rows += [("", f"fix: {check.fix}")] if check.fix is not None else []
    can = (("analysis", diagnosis.can_analyse), ("capture", diagnosis.can_capture))
    summary = tuple(f"{what}: {'works' if works else 'cannot work'}" for what, works in can)
    return Document("molprof doctor", (Section("", table=pairs(rows)),), diagnosis.to_json, summary=summary)
