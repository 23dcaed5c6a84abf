"""Plots: a subject in, a picture out. A plot is one entry here, and a function `draw_NAME` in the module that it names.

A module, and matplotlib with it, is imported when its plot is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from molprof.common.document import Plot, Section
from molprof.common.errors import TraceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Kind:
    """A kind of plot."""

    module: str
    title: str  # on a page
    caption: str  # what a page says of it
    help: str = ""  # what the command says of it
    across: bool = False  # takes the whole width of a page


# Plots of traces, drawn from `Reports`. Pages show them in this order.
PLOTS = {
    "waterfall": Kind(
        "bars",
        "Where the difference lies",
        "From the time of the first run, part by part, to that of the other: unprofiled time of runs, otherwise what "
        "the traces recorded of the GPUs. Hatched: more time; plain: less. The parts add up; the unexplained rest is "
        "shown too. Percentages are of the first run's time. Times of paired runs are means of the rounds.",
        "Where the difference in time to the first run lies, part by part.",
        across=True,
    ),
    "timeline": Kind(
        "timeline",
        "A typical step",
        "The recorded step of median length, profiler's cost included: {shown}.",
        "What ran when in a typical step: phases, launches, GPU work.",
        across=True,
    ),
    "phases": Kind(
        "bars",
        "Phases of a step",
        "Unprofiled time per step by phase: forward per decode step, the others per step.",
        "What an unprofiled step spends its time on.",
    ),
    "classes": Kind(
        "bars",
        "Kernel classes",
        "GPU time by class of kernel, with its share of all GPU time and the number of kernels, copies or memsets.",
        "GPU time by class of kernel.",
    ),
    "latency": Kind(
        "bars",
        "Step latency over sequence position",
        "Unprofiled time of decode steps by position in the sequence: median over batches and timed passes{band}. "
        "Rising lines show what a longer cache costs.",
        "Unprofiled time of a step over its position in the sequence.",
    ),
    "drift": Kind(
        "bars",
        "Drift of coordinate blocks",
        "Above, for runs with a template: FREE positions of a block that its numbers did not need (left of 0: they "
        "needed more). Below: junk and filler tokens written. Numbers over the bars count blocks.",
        "Drift of coordinate blocks, and their junk and filler tokens.",
    ),
}
# Of benchmark results.
BENCH_PLOTS = {
    "batch": Kind("benchmark", "Speed by batch size", "", "Speed by batch size, a line for each configuration."),
    "cache": Kind(
        "benchmark",
        "Static against dynamic KV cache",
        "",
        "Static against dynamic KV cache, first pass and steady state.",
    ),
    "heat": Kind("benchmark", "Speed of every configuration", "", "Speed of every configuration at every batch size."),
    "sdpa": Kind("benchmark", "Attention kernels by backend", "", "Time of the attention kernel by backend."),
}
_KINDS = {
    **PLOTS,
    **BENCH_PLOTS,
    "sum": Kind(  # of labels, totals and parts
        "bars",
        "From the first to the second",
        "From the time of the first trace, part by part, to that of the second",
        across=True,
    ),
    "light": Kind(  # of the least and the recorded time, and the parts between
        "bars",
        "The way, drawn",
        "The parts add up to the recorded time, of which percentages are.",
        across=True,
    ),
    "memory": Kind(  # of a `Course`
        "timeline",
        "The course",
        "Bytes that live, by category, and the peak. They add up to what torch recorded.",
        across=True,
    ),
    "rows": Kind(  # of predicted batch sizes
        "benchmark",
        "Batch sizes, drawn",
        "Predicted, with its interval; both axes are logarithmic. Dashed: with the launches in graphs.",
    ),
    "history": Kind("history", "", ""),  # of a `History` and a figure
    "ranks": Kind("timeline", "Timeline", "What each rank did when, on one clock", across=True),  # of a `Job`
}


class NotRecordedError(TraceError):
    """The traces, or the results of a benchmark, lack what a plot shows."""

    def __init__(self, what: str, hint: str = "molprof report TRACE shows what a trace holds") -> None:
        super().__init__(f"not recorded: {what}", hint)


def draw(kind: str, subject: Any) -> Figure:
    """Return the plot, drawn with matplotlib's current settings. Raises NotRecordedError."""
    return cast("Figure", getattr(import_module(f"{__name__}.{_KINDS[kind].module}"), f"draw_{kind}")(subject))


def plot_file(kind: str, subject: Any, form: str) -> bytes:
    """Return the plot as a file in one of `FORMATS`. Raises NotRecordedError."""
    from molprof.analysis.documents.plots import style

    with style.house_style():
        return style.figure_bytes(draw(kind, subject), form)


def plot_svg(kind: str, subject: Any) -> str:
    """Return the plot as an element for a page, without background. Raises NotRecordedError."""
    from molprof.analysis.documents.plots import style

    with style.house_style(kind, paper="none"):
        return style.figure_svg(draw(kind, subject))


def plot_section(kinds: Iterable[str], subject: Any, **words: str) -> Section:
    """Return the section of plots, each with its caption; words: for the captions."""
    plots = [
        Section(item.title, plot=Plot(item.caption.format(**words), partial(plot_svg, kind, subject), item.across))
        for kind, item in ((kind, _KINDS[kind]) for kind in kinds)
    ]
    return Section("", parts=tuple(plots))
