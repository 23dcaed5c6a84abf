"""`molprof compare`: two or more traces side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from molprof.analysis.render import render
from molprof.api import compare, recorded, reports
from molprof.commands.options import (
    TRACE,
    Result,
    fail_if_option,
    given_options,
    judged,
    note,
    path_option,
    reading_options,
    result_options,
    sweeps_expanded,
    write,
)
from molprof.common.errors import NotComparableError, UsageError
from molprof.common.reading import Reading

BYS = ("kernel",)


@click.command("compare")
@click.argument("traces", type=TRACE, nargs=-1, required=True)
@fail_if_option("'launches_per_token>+5%'")
@path_option("--predictions", text="TOML file of expectations to test besides the built-in ones.")
@click.option("--anyway", is_flag=True, help="Compare runs of different molecules or sampling anyway.")
@click.option("--by", type=click.Choice(BYS), help="Compare two traces kernel by kernel, or operator by operator.")
@click.option(
    "--of", "region", type=click.Choice(("step", "steps", "trace")),
    help="What --by compares: the step of median time (default if both mark steps), all steps, or the trace.",
)  # fmt: skip
@given_options
@reading_options
@result_options()
def command(
    traces: Sequence[Path],
    thresholds: tuple[str, ...],
    predictions: Path | None,
    anyway: bool,
    by: str | None,
    region: str | None,
    tokens: tuple[int, ...],
    molecules: tuple[int, ...],
    reading: Reading,
    result: Result,
) -> int:
    """Compare TRACES side by side; ratios and differences are against the first.

    A trace may be a stored report (molprof report TRACE -o baseline.json) or the folder of a molprof
    sweep, which stands for its traces. ~ stands for a ratio of times that noise explains. A threshold is a change
    against the first trace (a sign and %) or a value (wall_ns>2s). A threshold on a time fails only if its whole
    confidence interval is beyond the limit. Exit codes: 1 a threshold failed, 3 one is undecided.

    --by kernel aligns what both ran, in order: kernels, or operators where no GPU is recorded. It splits the difference
    in recorded time, to the nanosecond, into work that is matched and slower or faster, only in one trace, or moved,
    and idle time between. Exit code 3: the parts do not add up.

    \b
    Examples:
      molprof compare llama.json.gz qwen.json.gz
      molprof compare qwen.json.gz qwen-lp.json.gz -o comparison.json
      molprof compare llama.json.gz qwen.json.gz -o comparison.html
      molprof compare baseline.json new.json.gz --fail-if 'launches_per_token>+5%' --fail-if 'wall_ns>+10%'
      molprof compare llama.json.gz qwen.json.gz --predictions mine.toml
      molprof compare a-foreign.json.gz b-foreign.json.gz --tokens 96000 --tokens 64000 --molecules 64
      molprof compare my-sweep
      molprof compare before.json.gz after.json.gz --by kernel
      molprof compare h100.json.gz mi300.json.gz --by kernel --of trace -o kernels.html
    """
    traces = sweeps_expanded(traces)
    if len(traces) < 2:
        from molprof.analysis.reader.source import refuse_folder

        refuse_folder(traces[0])
        raise click.UsageError("compare needs at least two traces; for one: molprof report TRACE")
    _check_by(by, region, len(traces), (*thresholds, predictions, *tokens, *molecules))
    result.check([*traces, *filter(None, [predictions])])
    if by is not None:
        return _compare_by(traces, region, reading, result)
    from molprof.analysis.compare.predictions import read_expectations
    from molprof.analysis.compare.thresholds import judge_comparison, parse_threshold
    from molprof.analysis.documents.comparison import comparison_document
    from molprof.analysis.reports.given import with_given

    bounds = [parse_threshold(text) for text in thresholds]
    expectations = () if predictions is None else read_expectations(predictions)
    found = with_given(reports(traces, reading), tokens, molecules)
    comparison = compare(*found, anyway=anyway, expectations=expectations)
    document, outcome = comparison_document(comparison), judge_comparison(comparison, bounds)
    text = render(document, result.style, result.columns)
    note(*(remark for report in found for remark in report.trace.remarks))
    write(text, result.output)
    return judged(outcome)


def _check_by(by: str | None, region: str | None, count: int, excluded: Sequence[object]) -> None:
    """Refuse options that exclude each other. Raises UsageError."""
    if by is None:
        if region is not None:
            raise UsageError("--of says what of two traces is compared kernel by kernel", hint="--by kernel")
        return
    if count != 2:
        raise UsageError(f"--by {by} compares two traces, and {count} are given", hint="give two")
    if any(excluded):
        raise UsageError(
            f"--by {by} takes no --fail-if, --predictions, --tokens or --molecules", hint="leave these out"
        )


def _compare_by(traces: Sequence[Path], region: str | None, reading: Reading, result: Result) -> int:
    """Write the comparison of two traces. The exit code is 3 if the sum does not hold.

    Raises NotComparableError where only one of them records GPU work, or the steps that are asked for.
    """
    from molprof.analysis.compare.kernels.cut import STEP, TRACE, cut
    from molprof.analysis.compare.kernels.pairing import pair
    from molprof.analysis.compare.kernels.sums import summed
    from molprof.analysis.documents.kernels import kernels_document

    found = []
    for trace in traces:
        rows, remarks = recorded(trace, replace(reading, cached=False))
        found.append(rows)
        note(*(f"{trace}: {remark}" for remark in remarks))
    gpu = [trace for trace, rows in zip(traces, found, strict=True) if rows.has_gpu]
    if len(gpu) == 1:
        other = next(trace for trace in traces if trace != gpu[0])
        raise NotComparableError(f"{gpu[0]} records GPU work and {other} does not", hint="compare without --by kernel")
    without = [str(trace) for trace, rows in zip(traces, found, strict=True) if not rows.steps]
    if region is None:
        region = TRACE if without else STEP
        if 0 < len(without) < len(traces):
            note(f"no steps are marked in {without[0]}: the whole traces are compared")
    elif region != TRACE and without:
        raise NotComparableError(f"no steps are marked in {' and '.join(without)}", hint=f"--of {TRACE}")
    sums = summed(pair(*(cut(rows, region) for rows in found)))
    result.deliver(kernels_document(sums, region))
    return 3 if sums.problems else 0
