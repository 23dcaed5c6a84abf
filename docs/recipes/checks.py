"""`molprof checks`: the sums of a trace that must hold."""

from __future__ import annotations

from pathlib import Path

import click

from molprof import api
from molprof.commands.command import Command
from molprof.commands.options import TRACE, ResultOptions, result_options


@click.command("checks", cls=Command)
@click.argument("trace", type=TRACE)
@result_options()
def command(trace: Path, result: ResultOptions) -> int:
    """Check TRACE, and print the checks. The exit code is 3 if one does not hold.

    \b
    Examples:
      molprof checks trace.json.gz
    """
    result.check([trace])
    from molprof.analysis.documents.checks import checks_document

    report = api.report(trace)
    result.deliver(checks_document(report))
    return 0 if all(check.holds for check in report.checks) else 3
