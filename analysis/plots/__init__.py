"""Figures: a subject in, a matplotlib figure out. Each is one function and one line of `PLOTS`.

matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from molprof.analysis.plots.classes import draw_classes
from molprof.analysis.plots.drift import draw_drift
from molprof.analysis.plots.latency import draw_latency
from molprof.analysis.plots.output import FORMATS, figure_bytes, figure_svg
from molprof.analysis.plots.phases import draw_phases
from molprof.analysis.plots.style import house_style
from molprof.analysis.plots.subject import NotRecordedError, Subject, subject_of
from molprof.analysis.plots.timeline import draw_timeline
from molprof.analysis.plots.waterfall import draw_waterfall

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "PLOTS", "NotRecordedError", "Subject", "plot_file", "plot_svg", "subject_of"]


@dataclass(frozen=True)
class Plot:
    line: str
    draw: Callable[[Subject], Figure]


PLOTS = {
    "waterfall": Plot("Where the difference in time to the first run lies, part by part.", draw_waterfall),
    "timeline": Plot("What ran when in a typical step: phases, launches, GPU work.", draw_timeline),
    "phases": Plot("What an unprofiled step spends its time on.", draw_phases),
    "classes": Plot("GPU time by class of kernel.", draw_classes),
    "latency": Plot("Unprofiled time of a step over its position in the sequence.", draw_latency),
    "drift": Plot("Drift of coordinate blocks, and their junk and filler tokens.", draw_drift),
}


def plot_file(kind: str, subject: Subject, form: str) -> bytes:
    """The figure `kind` of `PLOTS` as a file in one of `FORMATS`. Raises NotRecordedError."""
    with house_style():
        return figure_bytes(PLOTS[kind].draw(subject), form)


def plot_svg(kind: str, subject: Subject) -> str:
    """The figure `kind` of `PLOTS` as an element for a page, without background. Raises NotRecordedError."""
    with house_style():
        return figure_svg(PLOTS[kind].draw(subject), f"{kind}-")
