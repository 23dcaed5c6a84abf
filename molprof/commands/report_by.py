"""`molprof report by`: origin of traces' GPU work, operator shapes, critical path, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from molprof import __version__, api
from molprof.analysis.reader import Reading
from molprof.analysis.render import render
from molprof.commands.command import CommandGroup
from molprof.commands.inputs import chosen, readable, refuse_bad, submitted
from molprof.commands.options import (
    SPEEDSCOPE,
    TRACE,
    ResultOptions,
    deliver_texts,
    note,
    refuse,
    result_options,
    sweeps_expanded,
    uncached_options,
    with_options,
)
from molprof.commands.submission import Submission, Submittable, submit_options
from molprof.common.document import Document, warned
from molprof.common.errors import MolprofError, UsageError

# What reads a trace, last of all the notes about it, and what makes the document of what is read.
Reader = tuple[Callable[[Path, Reading], Sequence[Any]], Callable[[Any], Document]]
_capture_option = click.option(
    "--graph-capture", type=TRACE, metavar="CAPTURE",
    help="Open the graphs that TRACE replays with CAPTURE, the trace in which they were captured, or a folder of such "
    "traces, of which those of its batch sizes and rank are read.",
)  # fmt: skip
_names_option = click.option(
    "--names-from", type=TRACE, metavar="RUN",
    help="Open the graphs that TRACE replays with RUN, the trace of the same program with graphs off.",
)  # fmt: skip
_peak_option = click.option(
    "--peak", "peaks", multiple=True, metavar="NAME=NUMBER",
    help="A peak of the GPU in place of the data sheet's, such as bf16=989 (dense TFLOP/s) or memory=3.35 (TB/s). "
    "Repeatable.",
)  # fmt: skip
_change_option = click.option(
    "--what-if", "changes", multiple=True, metavar="CHANGES",
    help="How long the trace would take if something were faster, such as elementwise=0.2x, mask_fill=0x, "
    "'aten::cat=0.5x', gpu=0.5x, host=0.5x, launches=graph or syncs=none; several apart by commas. Repeatable.",
)  # fmt: skip


def graph_options(function: Any) -> Any:
    """Add `--graph-capture` and `--names-from`: another trace that opens graphs."""
    return with_options(function, _capture_option, _names_option)


def hold_ranks(traces: Sequence[Path]) -> bool:
    """Return True for a single folder with ranks of a distributed job."""
    if len(traces) > 1 or not traces[0].is_dir():
        return False
    from molprof.analysis.ranks.files import holds_ranks

    return holds_ranks(traces[0])


@click.group("by", cls=CommandGroup)
def command() -> None:
    """Show the origin of GPU work, operators against the GPU's peaks, the critical path, or memory.

    \b
    Examples:
      molprof report by module trace.json.gz
      molprof report by shape trace.json.gz --peak memory=3.35
    """


def _by(name: str, text: str, *options: Callable[[Any], Any], formats: Sequence[str] = ()) -> Callable[[Any], None]:
    """Return a decorator that adds a command; its function makes a `Reader` from the command's own options."""

    def add(reader_of: Callable[..., Reader]) -> None:
        @click.pass_context
        def show(
            context: click.Context, /, reading: Reading, result: ResultOptions, submission: Submission, **arguments: Any
        ) -> None:
            several = len(arguments["traces"]) > 1 or arguments["traces"][0].is_dir()
            traces = sweeps_expanded(arguments.pop("traces"))
            if hold_ranks(traces):
                hint = "report the trace of one rank; molprof ranks shows them together"
                raise UsageError(f"{traces[0]} holds ranks of a job", hint)
            helpers = {key: arguments[key] for key in ("graph_capture", "names_from") if key in arguments}
            traces, outputs = chosen(traces, result, several, **helpers)
            reader = reader_of(**arguments)
            refuse("a report with graphs opened", "leave it out", submit=any(helpers.values()) and submission.cluster)
            if not submitted(context, submission, traces, outputs):
                _show(traces, outputs, name, reader, reading, result)

        argument = click.argument("traces", type=TRACE, nargs=-1, required=True, metavar="TRACE...")
        function = with_options(show, argument, *options, uncached_options, result_options(*formats), submit_options)
        command.add_command(click.command(name, cls=Submittable, help=text)(function))

    return add


def _show(
    traces: Sequence[Path],
    outputs: Sequence[Path | None],
    by: str,
    reader: Reader,
    reading: Reading,
    result: ResultOptions,
) -> None:
    """Write each trace's result to its file, or all to stdout, and the notes about it."""
    notes: list[str] = []
    read, document_of = reader

    def text(trace: Path) -> str | MolprofError:
        try:
            content, *_, remarks = read(trace, reading)
            if result.style == SPEEDSCOPE:
                from molprof.analysis.origin.tree import speedscope_text

                shown = speedscope_text(content, by, f"molprof {__version__}")
            else:
                shown = render(warned(document_of(content), remarks), result.style, result.columns)
        except MolprofError as error:
            return error
        notes.extend(remarks)
        return shown

    texts, outputs, bad = readable(traces, outputs, map(text, traces))
    note(*notes)
    deliver_texts(texts, outputs, result.style, len(traces) > 1)
    refuse_bad(bad, len(traces))


_TREE = """{line}

A tree, and the callers of launches, copies and host syncs. With --format speedscope, or an OUT that ends in
.speedscope.json, it is a flame graph for https://www.speedscope.app. Reads Python stacks. With graphs opened, each of
their kernels has operator, module and Python function, and how sure that is.

\b
Examples:
  molprof report by {by} trace.json.gz
  molprof report by {by} trace.json.gz -o trace.speedscope.json
  molprof report by {by} replay.json.gz --graph-capture capture.json.gz
"""
_TREES = {
    "module": "Show which modules and named ranges the GPU work comes from.",
    "source": "Show which Python functions the GPU work comes from.",
    "operator": "Show which operators of torch the GPU work comes from.",
    "kernel": "Show which kernel classes and kernels the GPU work consists of.",
}


def _tree(by: str, peaks: tuple[str, ...], graph_capture: Path | None, names_from: Path | None) -> Reader:
    from molprof.analysis.documents.origin import origin_document

    if peaks:
        hint = "it has no figures of graphs"
        refuse(f"report by {by} --peak", hint, graph_capture=graph_capture, names_from=names_from)
    read = partial(api.origins, capture=graph_capture, names_from=names_from, peaks=peaks)
    return read, lambda origins: origin_document(origins, by)


for _name, _line in _TREES.items():
    _by(_name, _TREE.format(by=_name, line=_line), _peak_option, graph_options, formats=(SPEEDSCOPE,))(
        partial(_tree, _name)
    )

_SHAPE = """Show how near to the GPU's peaks each operator runs.

For each operator: the least work for its shapes, and the share of the GPU's peaks that it reached. For the trace: the
parts between the least time that its work needs and the recorded time.

\b
Examples:
  molprof report by shape trace.json.gz
  molprof report by shape trace.json.gz --peak memory=3.35
"""


@_by("shape", _SHAPE, _peak_option, _capture_option)
def _shape(peaks: tuple[str, ...], graph_capture: Path | None) -> Reader:
    from molprof.analysis.documents.roofline import roofline_document

    return partial(api.roofline, peaks=peaks, capture=graph_capture), roofline_document


_PATH = """Show the critical path of the trace.

The path of host time, GPU work and syncs that decides how long the trace takes, and the most that each part could gain.
--what-if replays the trace with changes and keeps its dependencies.

\b
Examples:
  molprof report by path trace.json.gz
  molprof report by path trace.json.gz --what-if elementwise=0.2x,launches=graph
"""


@_by("path", _PATH, _change_option)
def _path(changes: tuple[str, ...]) -> Reader:
    from molprof.analysis.documents.critical import critical_document

    return partial(api.critical_path, changes=changes), critical_document


_MEMORY = """Show what takes the GPU's memory.

Memory at the peak by category and by what allocated it, its growth, and the need of a batch of N.

\b
Examples:
  molprof report by memory trace.json.gz
"""


@_by("memory", _MEMORY)
def _memory() -> Reader:
    from molprof.analysis.documents.memory import memory_document

    return api.memory, memory_document
