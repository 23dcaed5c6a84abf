"""`molprof report`: the figures, findings and tables of one trace or several, and where GPU work comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from molprof import __version__
from molprof.analysis.reader import Reading, is_stream
from molprof.analysis.reader.remote import is_remote, listed
from molprof.analysis.render import render
from molprof.api import critical_path, each_report, load, memory, origins, roofline
from molprof.commands.options import (
    TRACE,
    Result,
    all_option,
    deliver_texts,
    ending_of,
    fail_if_option,
    given_options,
    judged,
    make_folder,
    note,
    reading_options,
    refuse,
    refuse_streams,
    refuse_twice,
    result_options,
    sweeps_expanded,
)
from molprof.commands.rows import Rows, refuse_bad, report_rows, rows_options
from molprof.commands.submission import Submission, Submittable, own_arguments, submit_command, submit_options
from molprof.common.document import Document, warned
from molprof.common.errors import MolprofError, UsageError
from molprof.common.files import check_output

if TYPE_CHECKING:
    from molprof.analysis.compare.thresholds import Threshold
    from molprof.analysis.documents.figures import TraceRow
    from molprof.analysis.figures import Report
    from molprof.profiler.jobs.job import Task

T = TypeVar("T")
_TREES = ("module", "source", "operator", "kernel")
_SHAPE, _PATH, _MEMORY = "shape", "path", "memory"
BYS = (*_TREES, _SHAPE, _PATH, _MEMORY)
SPEEDSCOPE = "speedscope"
_BY = (
    "Show where GPU work comes from, as a tree; by shape, how near to the GPU's peaks it runs; by path, what decides "
    "how long the trace takes; by memory, what it takes of it. Reads Python stacks."
)
_WHAT_IF = (
    "With --by path: how long the trace would take if something were faster, such as elementwise=0.2x, mask_fill=0x, "
    "'aten::cat=0.5x', gpu=0.5x, host=0.5x, launches=graph or syncs=none; several apart by commas. Repeatable."
)
_PEAK = (
    "With --by shape or a tree: a peak of the GPU in place of the data sheet's, such as bf16=989 (dense TFLOP/s) or "
    "memory=3.35 (TB/s). Repeatable."
)
_CAPTURE = "Open the graphs that TRACE replays with CAPTURE, the trace in which they were captured."
_NAMES = "Open the graphs that TRACE replays with RUN, the trace of the same program with graphs off."


@click.command("report", cls=Submittable)
@click.argument("traces", type=TRACE, nargs=-1, required=True, metavar="TRACE...")
@click.option("--stacks", is_flag=True, help="Read Python stacks too. No figure needs them.")
@all_option
@fail_if_option("'drift_blocks>0' or 'wall_ns>2s'")
@given_options
@reading_options
@rows_options
@click.option("--by", type=click.Choice(BYS), help=_BY)
@click.option("--peak", "peaks", multiple=True, metavar="NAME=NUMBER", help=_PEAK)
@click.option("--what-if", "what_if", multiple=True, metavar="CHANGES", help=_WHAT_IF)
@click.option("--graph-capture", "capture", type=TRACE, metavar="CAPTURE", help=_CAPTURE)
@click.option("--names-from", "names_from", type=TRACE, metavar="RUN", help=_NAMES)
@result_options("speedscope", "parquet")
@submit_options
@click.pass_context
def command(
    context: click.Context,
    /,
    traces: Sequence[Path],
    whole: bool,
    table: Rows,
    by: str | None,
    peaks: tuple[str, ...],
    what_if: tuple[str, ...],
    capture: Path | None,
    names_from: Path | None,
    thresholds: tuple[str, ...],
    tokens: tuple[int, ...],
    molecules: tuple[int, ...],
    reading: Reading,
    result: Result,
    submission: Submission,
) -> int:
    """Report launches, kernels, copies, host syncs, phases and tokens of TRACE.

    TRACE is a trace of torch.profiler, captured by molprof or foreign: Chrome JSON or .pftrace, plain, gzip or zstd.
    Use - for standard input. A folder stands for its traces; one with ranks of a distributed job is shown as by molprof
    ranks. With several traces, OUT is a folder that gets one file for each, and JSON on stdout is a list. If one cannot
    be read, it is named, the others are reported, and the exit code is 3.

    --rows makes one table of any number of traces, or of reports stored with --format json, or of rows that --parts
    kept. A trace that cannot be read becomes a row with the reason. Repeat an interrupted command to go on.

    --graph-capture names the trace in which the CUDA or HIP graphs that TRACE replays were captured: each kernel of a
    graph gets operator, shapes, module and Python function, with how sure that is. --names-from does so with a trace
    of another run of the same program with graphs off, whose kernels are aligned with those of the graphs.

    --by shows which modules, Python functions, operators or kernel classes the GPU's work comes from, and who asks for
    launches, copies and host syncs. With --format speedscope, or an OUT that ends in .speedscope.json, it is a flame
    graph for https://www.speedscope.app. --by shape shows what each operator must compute and move at least for the
    shapes that it was called with, what it reached of the GPU's peaks, and what stands between the trace and the speed
    of light. --by path shows the critical path over host, streams and syncs, and what each part could gain at most;
    --what-if replays the trace with changes, its dependencies kept. --by memory shows what lived at the peak and what
    for, who allocated it, how it grows, and what a batch of N would need.

    \b
    Examples:
      molprof report trace.json.gz
      molprof report trace.json.gz --all
      molprof report trace.json.gz --format json | jq .counts
      molprof report trace.json.gz -o report.md
      molprof report trace.json.gz -o report.html
      molprof report killed-job.json.gz --partial
      zcat trace.json.gz | molprof report -
      molprof report trace.json.gz --by module
      molprof report trace.json.gz --by source -o trace.speedscope.json
      molprof report trace.json.gz --by shape --peak memory=3.35
      molprof report trace.json.gz --by memory
      molprof report trace.json.gz --what-if elementwise=0.2x,launches=graph
      molprof report replay.json.gz --graph-capture capture.json.gz
      molprof report replay.json.gz --graph-capture capture.json.gz --by module
      molprof report replay.json.gz --names-from graphs-off.json.gz
      molprof report foreign.json.gz --tokens 96000 --molecules 64
      molprof report trace.json.gz --fail-if 'drift_blocks>0' --fail-if 'launches_per_token>30'
      molprof report my-sweep --format json -o reports --submit slurm
      molprof report reports --rows -o table.csv
      molprof report traces --rows --parts parts -o rows.parquet
    """
    given = {"fail_if": thresholds, "tokens": tokens, "molecules": molecules}
    by = by or (_PATH if what_if else None)
    if by not in _TREES and result.style == SPEEDSCOPE:
        hint = f"--by {', '.join(_TREES[:-1])} or {_TREES[-1]}"
        raise UsageError("speedscope shows a tree, and none is chosen", hint=hint)
    if by in (_SHAPE, _PATH, _MEMORY):
        opening = {"names_from": names_from} | ({} if by == _SHAPE else {"graph_capture": capture})
        refuse(f"--by {by}", "it does not open graphs in this way: leave it out", **opening)
    if peaks and by not in (*_TREES, _SHAPE):
        raise UsageError("--peak goes with --by shape or a tree", hint="--by shape --peak NAME=NUMBER")
    if peaks and by != _SHAPE:
        refuse(f"--by {by} --peak", "it has no figures of graphs", graph_capture=capture, names_from=names_from)
    if what_if and by != _PATH:
        raise UsageError("--what-if goes with --by path", hint="molprof report TRACE --what-if CHANGES")
    if by is not None:
        refuse("--by", "leave --by or these out", **given, all=whole)
    several = len(traces) > 1 or traces[0].is_dir()
    traces = sweeps_expanded(traces)
    if result.style == "parquet" and not table.rows:
        raise UsageError("parquet has a row for each trace", hint="molprof report TRACE... --rows -o rows.parquet")
    if table.rows:
        hint = "molprof report DIR --format json -o REPORTS --submit NAME, then molprof report REPORTS --rows"
        others: dict[str, object] = {"by": by, "stacks": reading.stacks, "graph_capture": capture}
        others |= {"names_from": names_from, **given, "all": whole, "submit": submission.cluster}
        refuse("--rows", f"leave one out; on a cluster: {hint}", **others)
        files = _expanded(traces, stored=True)
        result.check(files)
        report_rows(files, reading, result, table)
        return 0
    if len(traces) == 1 and traces[0].is_dir():
        from molprof.analysis.ranks.files import holds_ranks

        if holds_ranks(traces[0]):
            from molprof.commands.ranks import rank_inputs, show_ranks

            what = f"{traces[0]} holds ranks of a job: a report of ranks"
            refuse(what, "report the trace of one rank", by=by, **given, submit=submission.cluster)
            result.check(rank_inputs(traces, result.output))
            note(f"{traces[0]} holds ranks of a job, shown as molprof ranks shows them")
            return show_ranks(traces, reading, result)
    traces = _expanded(traces, stored=False)
    outputs = [result.output]
    if several:
        outputs = _outputs(traces, result)
    else:
        result.check([*traces, *filter(None, [capture, names_from])])
    if (helper := capture or names_from) is not None:
        option = "--graph-capture" if capture else "--names-from"
        if len(traces) > 1:
            raise UsageError(f"{option} takes one TRACE", hint="report the traces one by one")
        if capture and names_from:
            raise UsageError("--graph-capture and --names-from open the same graphs", hint="give one of the two")
        refuse(option, "leave them out", **given, submit=submission.cluster)
        refuse_twice([*traces, helper])
        if by is None:
            refuse_streams(*traces)
    bounds: list[Threshold] = []
    if thresholds:
        from molprof.analysis.compare.thresholds import parse_threshold

        bounds = [parse_threshold(text, relative=False) for text in thresholds]
    if submission.cluster is not None:
        if max(len(tokens), len(molecules)) > 1:
            raise UsageError("each report of a cluster gets the same --tokens and --molecules: give one of each")
        submit_command(submission, "report", _tasks(traces, outputs, own_arguments(context, "output", "config")))
        return 0
    if by is not None:
        _report_by(traces, outputs, by, _reader(by, peaks, what_if, capture, names_from), reading, result)
        return 0
    if helper is not None:
        _report_graphs(traces[0], capture, names_from, reading, result, whole)
        return 0
    from molprof.analysis.documents.report import report_document
    from molprof.analysis.reports import with_given

    # Which of several numbers is whose is not known without all reports.
    needs_all = max(len(tokens), len(molecules)) > 1
    read, outputs, bad = _readable(traces, outputs, each_report(traces, reading, stored=False), needs_all)
    read = with_given(read, tokens, molecules) if read else []
    texts = [render(report_document(report), result.style, result.columns, whole) for report in read]
    for report in read:
        note(*(f"{report.trace.path}: {remark}" if several else remark for remark in report.trace.remarks))
    deliver_texts(texts, outputs, result.style, len(traces) > 1)
    code = _judged(read, bounds, several)
    refuse_bad(bad, len(traces))
    return code


def _readable(
    traces: Sequence[Path], outputs: Sequence[Path | None], found: Iterable[T | MolprofError], needs_all: bool = False
) -> tuple[list[T], list[Path | None], list[TraceRow]]:
    """What was read of traces, the outputs of that, and rows of the traces that could not be read, told as they come.

    Raises the error of a single trace, and where all are needed the first one.
    """
    from molprof.analysis.documents.figures import trace_row

    good: list[T] = []
    places: list[Path | None] = []
    bad: list[TraceRow] = []
    for trace, output, item in zip(traces, outputs, found, strict=True):
        if not isinstance(item, MolprofError):
            good.append(item)
            places.append(output)
        elif needs_all or len(traces) == 1:
            raise item
        else:
            bad.append(trace_row(str(trace), item))
            note(f"{trace}: {bad[-1].reason}")
    return good, places, bad


def _judged(found: Sequence[Report], bounds: Sequence[Threshold], several: bool) -> int:
    """Print what the thresholds find in each report, with its path where there are several; the exit code."""
    if not bounds:
        return 0
    from molprof.analysis.compare.thresholds import judge_report

    codes = []
    for report in found:
        if several:
            note(f"{report.trace.path}:")
        codes.append(judged(judge_report(report, bounds)))
    return 1 if 1 in codes else max(codes)


def _reader(
    by: str, peaks: Sequence[str], what_if: Sequence[str], capture: Path | None, names_from: Path | None
) -> tuple[Callable[[Path, Reading], Sequence[Any]], Callable[[Any], Document]]:
    """What reads a trace, last of all the notes about it, and what makes the document of what is read."""
    if by == _SHAPE:
        from molprof.analysis.documents.roofline import roofline_document

        return partial(roofline, peaks=peaks, capture=capture), roofline_document
    if by == _PATH:
        from molprof.analysis.documents.critical import critical_document

        return partial(critical_path, changes=what_if), critical_document
    if by == _MEMORY:
        from molprof.analysis.documents.memory import memory_document

        return memory, memory_document
    from molprof.analysis.documents.origin import origin_document

    return partial(origins, capture=capture, names_from=names_from, peaks=peaks), lambda found: origin_document(
        found, by
    )


def _report_by(
    traces: Sequence[Path],
    outputs: Sequence[Path | None],
    by: str,
    reader: tuple[Callable[[Path, Reading], Sequence[Any]], Callable[[Any], Document]],
    reading: Reading,
    result: Result,
) -> None:
    """Write what the reader finds in each trace to its file, or all to stdout, and the notes about it."""
    notes: list[str] = []
    read, made = reader

    def text(trace: Path) -> str | MolprofError:
        try:
            found, *_, remarks = read(trace, replace(reading, cached=False))
            if result.style == SPEEDSCOPE:
                from molprof.analysis.origin.tree import speedscope_text

                shown = speedscope_text(found, by, f"molprof {__version__}")
            else:
                shown = render(warned(made(found), remarks), result.style, result.columns)
        except MolprofError as error:
            return error
        notes.extend(remarks)
        return shown

    texts, outputs, bad = _readable(traces, outputs, map(text, traces))
    note(*notes)
    deliver_texts(texts, outputs, result.style, len(traces) > 1)
    refuse_bad(bad, len(traces))


def _report_graphs(
    trace: Path, capture: Path | None, names_from: Path | None, reading: Reading, result: Result, whole: bool
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


def _expanded(given: Sequence[Path], stored: bool) -> list[Path]:
    """The traces, folders replaced by those in them, with remarks on what is left out.

    stored: with other files that are named as traces, such as stored reports; a folder without any stays. Else raises
    UsageError for a folder without traces.
    """
    if any(map(is_remote, given)):
        from molprof.analysis.reader.source import ENDINGS

        given = [item for path in given for item in ((is_remote(path) and listed(path, ENDINGS)) or [path])]
    if not any(path.is_dir() for path in given):
        return list(given)
    from molprof.analysis.reader.source import is_other, left_out, traces_in

    found: list[Path] = []
    for path in given:
        if not path.is_dir():
            found.append(path)
            continue
        inside = traces_in(path)
        others = [] if stored else [item for item in inside if is_other(item)]
        note(*left_out(path, others))
        inside = [item for item in inside if item not in others]
        if not inside and not stored:
            raise UsageError(f"{path} holds no traces", hint="give traces, or a folder with traces in it")
        found += inside or [path]
    return found


def _outputs(traces: Sequence[Path], result: Result) -> list[Path | None]:
    """A file for each of several traces in the folder OUT, which is made; without OUT none.

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
    places: dict[Path, Path] = {}
    for trace in traces:
        place = output / (_stem(trace) + ending_of(result.style))
        if place in places:
            raise UsageError(f"{places[place]} and {trace} would share {place}", hint="report them one by one")
        check_output(place, result.force, traces)
        places[place] = trace
    return list(places)


def _stem(trace: Path) -> str:
    return re.sub(r"(\.json)?(\.zst)?(\.gz)?$", "", trace.name)


def _tasks(traces: Sequence[Path], outputs: Sequence[Path | None], own: Sequence[str]) -> list[Task]:
    from molprof.profiler.jobs.job import Task

    tasks = []
    for trace, place in zip(traces, outputs, strict=True):
        if place is None or is_stream(trace):
            raise UsageError("a report on a cluster reads a file and writes one", hint="-o OUT")
        tasks.append(Task(_stem(trace), ("report", str(trace), *own, "-o", str(place)), str(place.absolute())))
    return tasks
