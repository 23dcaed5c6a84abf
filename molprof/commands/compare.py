"""`molprof compare`: two or more traces side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molprof.analysis.reader import Reading, is_stream
from molprof.analysis.reader.parts import reading_summary, reason_of
from molprof.analysis.render import render
from molprof.api import compare, compare_kernels, each_report
from molprof.commands.command import Command
from molprof.commands.inputs import PARTIAL_HINT
from molprof.commands.options import (
    TRACE,
    ResultOptions,
    all_option,
    fail_if_option,
    given_options,
    judged,
    note,
    path_option,
    reading_options,
    refuse,
    result_options,
    sweep_groups,
    sweeps_expanded,
    write,
)
from molprof.common.errors import MolprofError, TraceError, UsageError

if TYPE_CHECKING:
    from molprof.analysis.figures.model import Report

_BESIDE = ("graphs", "incomplete")
BYS = ("kernel", "operator", "module", "source", "phase")


@click.command("compare", cls=Command)
@click.argument("traces", type=TRACE, nargs=-1, required=True)
@fail_if_option("'launches_per_token>+5%'")
@path_option("--predictions", text="TOML file of expectations to test besides the built-in ones.")
@click.option("--anyway", is_flag=True, help="Compare runs of different prompts or sampling anyway.")
@click.option(
    "--by",
    type=click.Choice(BYS),
    help="Compare two traces by kernel (or operator, without a GPU), operator, module, Python function or phase.",
)
@click.option(
    "--of", "region", type=click.Choice(("step", "steps", "trace")),
    help="What --by compares: the step of median time, all steps (default if both mark steps: medians), or the trace.",
)  # fmt: skip
@click.option(
    "--over", metavar="OPTION",
    help="Of a sweep: compare the values of this option, all others equal.  [default: processor, else model, else the"
    " last one]",
)  # fmt: skip
@click.option(
    "--base", type=TRACE, metavar="TRACE",
    help="The one of TRACES that the others are compared with.  [default: the only run without a constraint, else the"
    " first]",
)  # fmt: skip
@all_option
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
    over: str | None,
    base: Path | None,
    whole: bool,
    tokens: tuple[int, ...],
    molecules: tuple[int, ...],
    reading: Reading,
    result: ResultOptions,
) -> int:
    """Compare TRACES side by side; ratios and differences are against one of them, the base.

    The base is the only run without a constraint if there is exactly one, else the first.

    A trace may be a stored report (molprof report TRACE -o baseline.json) or a folder, such as of a capture of several
    processors or of a molprof sweep, which stands for its traces. The traces of one sweep are compared in
    groups that differ in one option, each against the base of its group. ~ stands for a ratio of times that noise
    explains. A threshold is a change against the base (a sign and %) or a value (wall_ns>2s). A threshold on a
    time fails only if its whole confidence interval is beyond the limit. Exit codes: 1 a threshold failed, 3 one is
    undecided, or a trace of a folder could not be read, which stops no other.

    --by takes medians over all recorded steps, and their spread: a row whose steps overlap is noise (~). Only work that
    differs in number is named as a cause. --by kernel --all also aligns the work of both in the step of median time, in
    order, and splits the difference, to the nanosecond, into work that is matched and slower or faster, only in one
    trace, or moved, and idle time between. Exit code 3: the parts do not add up.

    \b
    Examples:
      molprof compare llama.json.gz qwen.json.gz
      molprof compare qwen.json.gz qwen-lp.json.gz -o comparison.json
      molprof compare llama.json.gz qwen.json.gz -o comparison.html
      molprof compare baseline.json new.json.gz --fail-if 'launches_per_token>+5%' --fail-if 'wall_ns>+10%'
      molprof compare llama.json.gz qwen.json.gz --predictions mine.toml
      molprof compare a-foreign.json.gz b-foreign.json.gz --tokens 96000 --tokens 64000 --molecules 64
      molprof compare my-sweep
      molprof compare runs
      molprof compare before.json.gz after.json.gz --by kernel
      molprof compare before.json.gz after.json.gz --by source
      molprof compare h100.json.gz mi300.json.gz --by kernel --of trace -o kernels.html
    """
    groups = sweep_groups(traces, over) if by is None else []
    required = {*traces, *filter(None, [base])}  # of a folder any may fail
    traces = _expanded(traces)
    if len(traces) < 2:
        from molprof.analysis.reader.source import refuse_folder

        refuse_folder(traces[0])
        if not (is_stream(traces[0]) or traces[0].exists()):
            hint = "give two traces or more, or the folder of a sweep"
            raise UsageError(f"cannot read {traces[0]}: No such file or directory", hint)
        raise click.UsageError("compare needs at least two traces; for one: molprof report TRACE")
    if by is None and region is not None:
        raise UsageError("--of says what of two traces is compared kernel by kernel", hint="--by kernel")
    if by is not None:
        if len(traces) > 2:
            raise UsageError(f"--by {by} compares two traces, and {len(traces)} are given", hint="give two")
        excluded = {"fail_if": thresholds, "predictions": predictions, "tokens": tokens, "molecules": molecules}
        refuse(f"--by {by}", "leave these out", **excluded)
    result.check([*traces, *filter(None, [predictions])])
    if base is not None and _place_of(base, traces) is None:
        raise UsageError(f"--base {base} is none of the traces", hint=f"one of {', '.join(map(str, traces))}")
    if by is not None:
        from molprof.analysis.documents.kernels import kernels_document

        base_index = _place_of(base, traces) or 0
        ordered = [traces[base_index], *traces[:base_index], *traces[base_index + 1 :]]
        kernels = compare_kernels(ordered, region, replace(reading, cached=False), by)
        note(*kernels.notes)
        result.deliver(kernels_document(kernels), whole)
        return 3 if kernels.problems else 0
    from molprof.analysis.compare.thresholds import judge_rows, parse_threshold, read_expectations
    from molprof.analysis.documents.comparison import comparison_document, groups_document
    from molprof.analysis.reports import with_given

    bounds = [parse_threshold(text) for text in thresholds]
    expectations = () if predictions is None else read_expectations(predictions)
    read, failed = _read(traces, reading, required)
    all_reports = with_given(list(read.values()), tokens, molecules)
    runs = dict(zip(read, all_reports, strict=True))
    readable = [(name, [path for path in paths if path in runs]) for name, paths in groups or [("", traces)]]
    compared = [
        (
            name,
            compare(
                *(runs[path] for path in paths), anyway=anyway, expectations=expectations, base=_place_of(base, paths)
            ),
        )
        for name, paths in readable
        if len(paths) > 1
    ]
    if not compared:
        raise TraceError(reading_summary(len(failed) + len(read), failed), hint=PARTIAL_HINT)
    outcomes = [(name, judge_rows(item.labels, item.runs, item.rows, bounds)) for name, item in compared]
    outcome = [
        [f"{name}: {line}" if name else line for name, kinds in outcomes for line in kinds[index]] for index in range(3)
    ]
    document = groups_document(compared) if groups else comparison_document(compared[0][1])
    text = render(document, result.style, result.columns, whole)
    note(*(remark for report in all_reports for remark in report.trace.remarks))
    write(text, result.output)
    code = judged(outcome)
    if failed:
        raise TraceError(reading_summary(len(failed) + len(read), failed), hint=PARTIAL_HINT)
    return code


def _read(
    traces: Sequence[Path], reading: Reading, required: Collection[Path]
) -> tuple[dict[Path, Report], list[tuple[str, str]]]:
    """Return the reports of traces, and of each that cannot be read the reason and the whole error.

    Raises the error of one that is required, and where fewer than two are left.
    """
    each = list(dict.fromkeys(traces))
    reports: dict[Path, Report] = {}
    failed: list[tuple[str, str]] = []
    for path, report in zip(each, each_report(each, reading), strict=True):
        if not isinstance(report, MolprofError):
            reports[path] = report
            continue
        if path in required or len(each) - len(failed) <= 2:
            raise report
        failed.append((reason_of(str(path), str(report)), str(report)))
    return reports, failed


def _expanded(inputs: Sequence[Path]) -> list[Path]:
    """Return the traces, with a folder replaced by its traces; a sweep's folder by its index.

    A folder without any stays.

    What a capture writes beside a run's trace, of its graphs or of a failure, is no run to compare.
    """
    from molprof.analysis.reader.source import is_other, left_out, traces_in

    paths: list[Path] = []
    for path in sweeps_expanded(inputs):
        inside = traces_in(path) if path.is_dir() else []
        names = {item.name for item in inside}
        others = [
            item
            for item in inside
            if any(f".{kind}." in item.name and item.name.replace(f".{kind}.", ".") in names for kind in _BESIDE)
        ]
        note(*(f"{item}: left out: it belongs to the trace of its run" for item in others))
        unread = [item for item in inside if item not in others and is_other(item)]
        if inside:
            note(*left_out(path, unread))
        paths += [item for item in inside if item not in (*others, *unread)] or [path]
    return paths


def _place_of(base: Path | None, traces: Sequence[Path]) -> int | None:
    """Return the index of the base among the traces; None if it is not one of them."""
    return next((index for index, path in enumerate(traces) if base == path), None)
