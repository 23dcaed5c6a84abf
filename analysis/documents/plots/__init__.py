"""Figures: a subject in, a matplotlib figure out. Each is one of `PLOTS` and a module with a function `draw`.

A module, and matplotlib with it, is imported when its figure is drawn.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from molprof.analysis.documents.plots.output import FORMATS, figure_bytes, figure_svg
from molprof.analysis.documents.plots.style import house_style
from molprof.analysis.documents.plots.subject import NotRecordedError, Subject, subject_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "PLOTS", "NotRecordedError", "Subject", "draw", "plot_file", "plot_svg", "subject_of"]

# molprof plot says what each shows.
PLOTS = ("waterfall", "timeline", "phases", "classes", "latency", "drift")


def draw(kind: str, subject: Subject) -> Figure:
    """The figure `kind` of `PLOTS`, in matplotlib's present settings. Raises NotRecordedError."""
    return cast("Figure", import_module(f"{__name__}.{kind}").draw(subject))


def plot_file(kind: str, subject: Subject, form: str) -> bytes:
    """The figure `kind` of `PLOTS` as a file in one of `FORMATS`. Raises NotRecordedError."""
    with house_style():
        return figure_bytes(draw(kind, subject), form)


def plot_svg(kind: str, subject: Subject) -> str:
    """The figure `kind` of `PLOTS` as an element for a page, without background. Raises NotRecordedError."""
    with house_style():
        return figure_svg(draw(kind, subject), f"{kind}-")
