"""How figures look: colours and hatches that differ in print and for everyone, units, plain frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc, rc_context, rcdefaults, rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from molprof.common.text import escaped
from molprof.common.values import short_name

Look = tuple[str, str]  # colour and hatch

# The page's style sheet gives each of these another value in dark mode (render/page/page.css).
INK = "#1b1f24"
MUTED = "#6b7280"
GRID = "#d5d9e0"
PAPER = "#ffffff"
# After Okabe and Ito: distinct with any colour vision. Hatches are for print without colour.
BLUE, ORANGE, GREEN, PINK = "#0072b2", "#e69f00", "#009e73", "#cc79a7"
SKY, RED, YELLOW, SLATE = "#56b4e9", "#d55e00", "#f0e442", "#7f8792"
PALETTE = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, SLATE)
# Lines only: circles make an SVG ten times as large.
HATCHES = ("", "////", "\\\\\\\\", "----", "xxxx", "||||", "++++", "//\\\\")
# Phases are lighter than the classes of GPU work beside them.
PHASES = {
    "prefill": ("#cde7f7", ""),
    "forward": ("#cde7f7", ""),
    "processor": ("#f9d88f", "////"),
    "sampling": ("#aee0d0", "\\\\\\\\"),
    "bookkeeping": ("#ecc9dc", "----"),
    # Of engines.
    "schedule": ("#d9d3ee", ""),
    "prepare": ("#dfe3e8", ""),
    "mask_fill": ("#f9d88f", "////"),
    "mask_apply": ("#f4b183", ""),
    "sample": ("#aee0d0", "\\\\\\\\"),
    "postprocess": ("#ecc9dc", ""),
}
DARK = "#4b5563"
# Edges, hatches and text on any of these: the same in dark mode.
EDGE = "#0b0e14"
_LINES = ("-", "--", "-.", ":")

# Of a file; of a plot on a page, in a column or across a wide one.
WIDTH_INCHES, COLUMN_INCHES, WIDE_INCHES = 7.6, 5.2, 11.0
_LABEL_LENGTH = 44
# Letters in a line of the legend, and those that a colour's patch takes.
_LEGEND_LETTERS = 104
_HANDLE_LETTERS = 6
# In a title, and in the label of an axis.
_TITLE_LETTERS, _LINE_LETTERS = 76, 90
_LEGEND_LINE_INCHES = 0.19
_NS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


@contextmanager
def house_style(width_inches: float = WIDTH_INCHES) -> Iterator[None]:
    """Sets matplotlib's settings for the block, whatever the user's are; drawing and saving both need it."""
    with rc_context():
        rcdefaults()
        rc("figure", figsize=(width_inches, width_inches))
        rc("svg", fonttype="none")  # text stays text: small, searchable, in the page's font
        rc("svg", hashsalt="molprof")  # the same figures give the same file
        rc("pdf", fonttype=42)
        rc("text", parse_math=False, color=INK)  # a $ in a kernel's name is a $
        rc("font", family=["DejaVu Sans"], size=9.0)
        rc("axes", titlesize=9.5, titleweight="bold", titlelocation="left", titlepad=7.0, titlecolor=INK)
        rc("axes", edgecolor=MUTED, labelcolor=INK, axisbelow=True)
        rc("axes.spines", top=False, right=False)
        rc("axes.formatter", useoffset=False)
        rc("grid", color=GRID, linewidth=0.7)
        rc("xtick", color=MUTED, labelcolor=INK)
        rc("ytick", color=MUTED, labelcolor=INK)
        rc("legend", frameon=False, fontsize=8.5)
        rc("hatch", linewidth=0.7)
        rc("patch", edgecolor=EDGE, force_edgecolor=True, linewidth=0.5)
        rc("savefig", dpi=200)
        yield


class _DrawnOnce(Figure):
    """A figure whose drawing is the layout alone, as long as it has a constrained layout.

    `savefig` draws a figure with a layout engine twice: first without output, for the layout, then into the file with
    the engine replaced. The layout measures what it needs by itself, so the first time need not draw.
    """

    def draw(self, renderer: RendererBase) -> None:
        engine = self.get_layout_engine()
        if isinstance(engine, ConstrainedLayoutEngine):
            engine.execute(self)
        else:
            super().draw(renderer)


def new_figure(height_inches: float, rows: int = 1, ratios: Sequence[float] | None = None) -> tuple[Figure, list[Axes]]:
    """An empty figure with `rows` axes below each other that share their x axis."""
    figure = _DrawnOnce(figsize=(_width_inches(), height_inches), layout="constrained", facecolor=PAPER)
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False, height_ratios=ratios)
    return figure, [row[0] for row in axes]


def legend_below(figure: Figure, entries: Sequence[tuple[str, Look | Artist | Container]], columns: int = 4) -> None:
    """Adds one legend of labels with their look or artist below the figure, which grows by lines after the first."""
    labels = [label for label, _ in entries]
    handles: list[Any] = [
        item if isinstance(item, (Artist, Container)) else Patch(facecolor=item[0], hatch=item[1] or None)
        for _, item in entries
    ]
    fitting = fewer(_LEGEND_LETTERS) // (max(map(len, labels)) + _HANDLE_LETTERS)
    columns = max(1, min(columns, fitting, len(labels)))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, handlelength=1.6, columnspacing=1.4)
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE_INCHES * (-(-len(labels) // columns) - 1))


def name_rows(axis: Axes, names: Sequence[str], length: int = _LABEL_LENGTH) -> None:
    """Names the rows of horizontal bars, the first at the top, with vertical grid lines."""
    axis.set_yticks(range(len(names)), [_folded(caption(name, length), fewer(length)) for name in names])
    axis.tick_params("y", length=0)
    axis.set_ylim(len(names) - 0.45, -0.55)
    axis.grid(True, axis="x")


class Bar(NamedTuple):
    """A horizontal bar."""

    row: float
    length: float
    look: Look
    start: float = 0.0
    inside: str = ""
    behind: str = ""


def draw_bars(axis: Axes, bars: Iterable[Bar], scale: float, height: float = 0.68, size: float = 7.5) -> None:
    """Draws bars with the texts in their middle and, of a size, behind them. scale: of their values, 1 on the axis."""
    for bar in bars:
        fill, hatch = bar.look
        axis.barh(bar.row, bar.length / scale, height, left=bar.start / scale, color=fill, hatch=hatch)
        if bar.inside:
            write_inside(axis, (bar.start + bar.length / 2) / scale, bar.row, bar.inside)
        if bar.behind:
            write_behind(axis, (bar.start + bar.length) / scale, bar.row, bar.behind, size)


def write_behind(axis: Axes, end: float, row: float, text: str, size: float = 7.5, weight: str = "normal") -> None:
    """Writes `text` behind a horizontal bar that ends at `end`."""
    axis.annotate(text, (end, row), (4, 0), textcoords="offset points", va="center", fontsize=size, fontweight=weight)


def write_inside(axis: Axes, middle: float, row: float, text: str, **look: Any) -> None:
    axis.text(middle, row, text, **{"ha": "center", "va": "center", "fontsize": 8, "color": EDGE, **look})


def draw_spans(
    axis: Axes, row: int, height: float, spans: Iterable[tuple[Look, float, float]], frame: Callable[[Look], Any]
) -> None:
    """Draws spans (look, start, length) in a row, those of a look as one path: thousands of shapes open slowly.

    frame: edges of a look, as arguments of a patch.
    """
    top, bottom = row - height / 2, row + height / 2
    corners: dict[Look, list[Any]] = {}
    for key, start, size in spans:
        box = (start, top), (start + size, top), (start + size, bottom), (start, bottom)
        corners.setdefault(key, []).append(box)
    for key, boxes in corners.items():
        path = Path.make_compound_path_from_polys(np.array(boxes))
        axis.add_patch(PathPatch(path, facecolor=key[0], hatch=key[1] or None, **frame(key)))


def _width_inches() -> float:
    return float(rcParams["figure.figsize"][0])


def fewer(letters: int) -> int:
    """As many of the letters, which fit a figure of the usual width, as fit this one; more for a wider one."""
    return int(letters * _width_inches() / WIDTH_INCHES)


def room(ratio: float) -> float:
    """The ratio, which leaves room for text behind bars in a figure of the usual width, for this one."""
    return ratio * WIDTH_INCHES / _width_inches()


def lines(text: str, title: bool = False) -> str:
    """A title or the label of an axis, on as many lines as it takes."""
    return _folded(text, fewer(_TITLE_LETTERS if title else _LINE_LETTERS))


def _folded(text: str, letters: int) -> str:
    return fill(text, letters, break_long_words=False, break_on_hyphens=False)


def look(index: int) -> Look:
    """The look of the series at `index`. After eight, colours repeat with other hatches."""
    return PALETTE[index % len(PALETTE)], HATCHES[(index + index // len(PALETTE)) % len(HATCHES)]


def line(index: int) -> str:
    return _LINES[index % len(_LINES)]


def time_unit(longest_ns: float) -> tuple[int, str]:
    """The unit of an axis that reaches to `longest_ns`: its nanoseconds and its name."""
    return next((unit for unit in _NS if abs(longest_ns) >= unit[0]), _NS[-1])


def caption(name: str, length: int = _LABEL_LENGTH) -> str:
    """A name from a trace as a label: visible characters, one line, not too long."""
    shown = escaped(short_name(name))
    return shown if len(shown) <= length else shown[: length - 1] + "…"
