"""`molprof report`: the figures and findings of one trace or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molprof.analysis.reader import Reading
from molprof.analysis.render import render
from molprof.api import each_report, load, origins
from molprof.commands import plot, report_by, rows
from molprof.commands.command import moved
from molprof.commands.inputs import chosen, readable, refuse_bad, submitted
from molprof.commands.options import (
    TRACE,
    ResultOptions,
    all_option,
    deliver_texts,
    fail_if_option,
    given_options,
    judged,
    note,
    reading_options,
    refuse,
    refuse_streams,
    result_options,
    sweeps_expanded,
)
from molprof.commands.submission import ReadSubmission, Submittable, read_submit_options
from molprof.common.errors import UsageError

if TYPE_CHECKING:
    from molprof.analysis.compare.thresholds import Threshold
    from molprof.analysis.figures import Report


@click.command("report", cls=Submittable)
@click.argument("traces", type=TRACE, nargs=-1, required=True, metavar="TRACE...")
@click.option("--stacks", is_flag=True, help="Read Python stacks too. No figure needs them.")
@all_option
@fail_if_option("'drift_blocks>0' or 'wall_ns>2s'")
@given_options
@reading_options
@report_by.graph_options
@result_options()
@read_submit_options
@moved("--by", "molprof report by {} TRACE")
@moved("--peak", "molprof report by shape TRACE --peak {}", multiple=True)
@moved("--what-if", "molprof report by path TRACE --what-if {}", multiple=True)
@moved("--rows", "molprof report rows TRACE...", is_flag=True)
@click.pass_context
def command(
    context: click.Context,
    /,
    traces: Sequence[Path],
    whole: bool,
    graph_capture: Path | None,
    names_from: Path | None,
    thresholds: tuple[str, ...],
    tokens: tuple[int, ...],
    molecules: tuple[int, ...],
    reading: Reading,
    result: ResultOptions,
    submission: ReadSubmission,
) -> int:
    """Report launches, kernels, copies, host syncs, phases and tokens of TRACE.

    TRACE is a trace of torch.profiler, captured by molprof or foreign: Chrome JSON or .pftrace, plain, gzip or zstd.
    Use - for standard input. A folder stands for its traces; one with ranks of a distributed job is shown as by molprof
    ranks. With several traces, OUT is a folder that gets one file for each, and JSON on stdout is a list. If one cannot
    be read, it is named, the others are reported, and the exit code is 3. Write ./by for a trace that
    has the name of a command below.

    --graph-capture names the trace in which the CUDA or HIP graphs that TRACE replays were captured, or a folder of
    such traces (capture_traces of vLLM and SGLang): each kernel of a graph gets operator, shapes, module and Python
    function, with how sure that is. --names-from does so with a trace of another run of the same program with graphs
    off, whose kernels are aligned with those of the graphs.

    \b
    Examples:
      molprof report trace.json.gz
      molprof report trace.json.gz --all
      molprof report trace.json.gz -o report.html
      molprof report by module trace.json.gz
      molprof report trace.json.gz --format json | jq .counts
      molprof report killed-job.json.gz --partial
      zcat trace.json.gz | molprof report -
      molprof report replay.json.gz --graph-capture capture.json.gz
      molprof report replay.json.gz --names-from graphs-off.json.gz
      molprof report foreign.json.gz --tokens 96000 --molecules 64
      molprof report trace.json.gz --fail-if 'drift_blocks>0' --fail-if 'launches_per_token>30'
      molprof report my-sweep --format json -o reports --submit slurm
    """
    excluded = {"fail_if": thresholds, "tokens": tokens, "molecules": molecules, "submit": submission.cluster}
    several = len(traces) > 1 or traces[0].is_dir()
    traces = sweeps_expanded(traces)
    if report_by.hold_ranks(traces):
        from molprof.commands.ranks import rank_inputs, show_ranks

        refuse(f"{traces[0]} holds ranks of a job: a report of ranks", "report the trace of one rank", **excluded)
        result.check(rank_inputs(traces, result.output))
        note(f"{traces[0]} holds ranks of a job, shown as molprof ranks shows them")
        return show_ranks(traces, reading, result, submission)
    traces, outputs = chosen(traces, result, several, graph_capture=graph_capture, names_from=names_from)
    if helper := graph_capture or names_from:
        excluded["on"] = submission.where
        refuse("--graph-capture" if graph_capture else "--names-from", "leave them out", **excluded)
        refuse_streams(*traces)
    bounds: list[Threshold] = []
    if thresholds:
        from molprof.analysis.compare.thresholds import parse_threshold

        bounds = [parse_threshold(text, relative=False) for text in thresholds]
    if submission.cluster is not None and max(len(tokens), len(molecules)) > 1:
        raise UsageError("each report of a cluster gets the same --tokens and --molecules: give one of each")
    if submitted(context, submission, traces, outputs):
        return 0
    if helper is not None:
        _report_graphs(traces[0], graph_capture, names_from, reading, result, whole)
        return 0
    from molprof.analysis.documents.report import report_document
    from molprof.analysis.reports import with_given

    # Which of several numbers is whose is not known without all reports.
    needs_all = max(len(tokens), len(molecules)) > 1
    with submission.executor("report") as executor:
        each = each_report(traces, reading, stored=False, executor=executor)
        read, outputs, bad = readable(traces, outputs, each, needs_all)
    read = with_given(read, tokens, molecules) if read else []
    texts = [render(report_document(report), result.style, result.columns, whole) for report in read]
    for report in read:
        note(*(f"{report.trace.path}: {remark}" if several else remark for remark in report.trace.remarks))
    deliver_texts(texts, outputs, result.style, len(traces) > 1)
    code = _judged(read, bounds, several)
    refuse_bad(bad, len(traces))
    return code


def _judged(reports: Sequence[Report], bounds: Sequence[Threshold], several: bool) -> int:
    """Print the thresholds' verdicts on each report, with its path if there are several; return the exit code."""
    if not bounds:
        return 0
    from molprof.analysis.compare.thresholds import judge_report

    codes = []
    for report in reports:
        if several:
            note(f"{report.trace.path}:")
        codes.append(judged(judge_report(report, bounds)))
    return 1 if 1 in codes else max(codes)


def _report_graphs(
    trace: Path, capture: Path | None, names_from: Path | None, reading: Reading, result: ResultOptions, whole: bool
) -> None:
    """Write the report of the trace with its graphs opened, to OUT or stdout."""
    from molprof.analysis.documents.origin import opened_data, opened_sections
    from molprof.analysis.documents.report import report_document

    _, opened, _ = origins(trace, replace(reading, cached=False), capture, names_from)
    with load(trace, reading) as read:
        report = read.report
    note(*report.trace.remarks)
    graphs = opened_sections(opened)
    result.deliver(report_document(report, graphs, graphs_opened=opened_data(opened)), whole)


for _one in (report_by.command, rows.command, plot.command):
    command.add(_one)
