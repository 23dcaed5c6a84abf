"""`molprof doctor`: what works on this machine, and how to fix what does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from molprof.commands.options import Seconds, deliver
from molprof.commands.submission import config_option
from molprof.common.text import aligned, escaped_json

NEITHER = 3


@click.command("doctor")
@click.option("--format", "style", type=click.Choice(("table", "json")), default="table", show_default=True)
@click.option(
    "--limit", "limit_s", type=Seconds(), default=120.0, show_default=True, metavar="SECONDS",
    help="Time limit of each check.",
)  # fmt: skip
@config_option
def command(style: str, limit_s: float, config: Path | None) -> int:
    """Checks what molprof requires and what it can use, and prints a fix for what does not work.

    Imports and kernels run in separate processes, each with a time limit. Works without torch. States: ok; missing
    (required, not installed); broken (installed, does not work); absent (optional, not installed). Exit codes: 0 traces
    can be captured or analysed, 3 neither.

    \b
    Examples:
      molprof doctor
      molprof doctor --format json | jq .can
    """
    from molprof.profiler.doctor.checks import TRIALS, diagnose

    with click.progressbar(length=len(TRIALS), label="checks", file=sys.stderr) as bar:
        diagnosis = diagnose(config, limit_s, lambda: bar.update(1))
    if style == "json":
        deliver(escaped_json(json.dumps(diagnosis.to_json(), indent=2)), None)
    else:
        rows = []
        for check in diagnosis.checks:
            rows.append((check.state, check.name, check.value or ""))
            if check.fix is not None:
                rows.append(("", "", f"fix: {check.fix}"))
        can = (("analysis", diagnosis.can_analyse), ("capture", diagnosis.can_capture))
        summary = "\n".join(f"{what}: {'can work' if works else 'cannot work'}" for what, works in can)
        deliver(f"{aligned(rows)}\n\n{summary}", None)
    return 0 if diagnosis.can_analyse or diagnosis.can_capture else NEITHER
