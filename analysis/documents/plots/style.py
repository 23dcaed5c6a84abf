"""Style of figures on pages and in files: all colours, hatches and sizes, and functions that draw with them."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import rc, rc_context, rcdefaults
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import get_registered_canvas_class
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from molprof.common.text import escaped
from molprof.common.values import short_name

Look = tuple[str, str]  # colour and hatch

INK = "#1b1f24"
MUTED = "#6b7280"
GRID = "#d5d9e0"
PAPER = "#ffffff"
DARK = "#4b5563"
FOREIGN = "#c3c8d0"
# Edges, hatches and text on any of these: the same in dark mode.
EDGE = "#0b0e14"
# After Okabe and Ito: distinct with any colour vision. Hatches are for print without colour.
BLUE, ORANGE, GREEN, PINK = "#0072b2", "#e69f00", "#009e73", "#cc79a7"
SKY, RED, YELLOW, SLATE = "#56b4e9", "#d55e00", "#f0e442", "#7f8792"
PALETTE = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, SLATE)
# What is made for white paper, and its colour on a page in dark mode.
_DARK_MODE = {
    INK: "#e6e9ee", MUTED: "#8b95a5", GRID: "#38404c", DARK: "#9aa4b3", FOREIGN: "#59626f", BLUE: "#2f93d0",
}  # fmt: skip
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
OTHER_PHASE: Look = ("#b9bfc9", "")
# Of the first pass of a benchmark, beyond a timed one.
FIRST = (PAPER, HATCHES[1])
# Of a waterfall.
WHOLE, MORE, LESS = (MUTED, ""), (ORANGE, "////"), (BLUE, "")
# Of the ranks of a job.
STATES: dict[str, Look] = {
    "compute": (BLUE, ""),
    "exposed communication": (ORANGE, "////"),
    "waiting for the last rank": (RED, "xxxx"),
    "idle": (PAPER, ""),
}
END: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (2, 2))}
# Texts in the middle of bars, behind them, and behind the total.
INSIDE: dict[str, Any] = {"ha": "center", "va": "center", "size": 8, "color": EDGE}
BEHIND: dict[str, Any] = {"size": 7.5}
PART: dict[str, Any] = {"size": 8.5}
TOTAL: dict[str, Any] = {"size": 8.5, "weight": "bold"}
MARKED: dict[str, Any] = {"marker": "o", "markersize": 3.5}
_LINES = ("-", "--", "-.", ":")

# The width of figures; the heights of a row of bars, of what else is in a panel and in a figure, of a legend's line.
_WIDTH_INCHES = 7.6
_ROW_INCHES, _PANEL_INCHES, _FIGURE_INCHES, _LEGEND_INCHES = 0.3, 0.35, 0.6, 0.19
# Axes of lines or upright bars are as high as so many rows. What a bar takes of its row.
ROWS, BAR = 7, 0.66
# Letters in a line of the legend, and those that a colour's patch takes.
_LEGEND_LETTERS, _HANDLE_LETTERS = 104, 6
# In the name of a row, in a title, and in the label of an axis.
_NAME_LETTERS, _TITLE_LETTERS, _LABEL_LETTERS = 36, 76, 90
# Units of axes.
Units = Sequence[tuple[float, str]]
TIME: Units = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
BYTES: Units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))

# matplotlib would write the time and its own version.
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def house_style(salt: str = "", paper: str = PAPER) -> Iterator[None]:
    """Set matplotlib's settings for the block, whatever the user's are; drawing and saving both need it.

    salt: keeps what an SVG refers to apart from other figures' on a page.
    """
    with rc_context():
        rcdefaults()
        rc("figure", dpi=200, facecolor=paper)
        rc("svg", fonttype="none")  # text stays text: small, searchable, in the page's font
        rc("svg", hashsalt=f"molprof {salt}")  # the same figures give the same file
        rc("pdf", fonttype=42)
        rc("text", parse_math=False, color=INK)  # a $ in a kernel's name is a $
        rc("font", family=["DejaVu Sans"], size=9.0)
        rc("axes", titlesize=9.5, titleweight="bold", titlelocation="left", titlepad=7.0, titlecolor=INK)
        rc("axes", edgecolor=MUTED, labelcolor=INK, axisbelow=True, facecolor="none")
        rc("axes.spines", top=False, right=False)
        rc("axes.formatter", useoffset=False)
        rc("grid", color=GRID, linewidth=0.7)
        rc("xtick", color=MUTED, labelcolor=INK)
        rc("ytick", color=MUTED, labelcolor=INK)
        rc("legend", frameon=False, fontsize=8.5)
        rc("hatch", linewidth=0.7)
        rc("patch", edgecolor=EDGE, force_edgecolor=True, linewidth=0.5)
        yield


def figure_bytes(figure: Figure, form: str) -> bytes:
    """Return the figure in png, svg or pdf. The same figure gives the same bytes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Names from traces may hold characters that the font lacks: a PNG shows a box.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        # A long label may leave no room for the axes; the figure is still whole.
        warnings.filterwarnings("ignore", "constrained_layout not applied", UserWarning)
        # `savefig` would draw twice: at first for the layout alone.
        getattr(get_registered_canvas_class(form)(figure), f"print_{form}")(buffer, metadata=_METADATA[form])
    return buffer.getvalue()


def figure_svg(figure: Figure) -> str:
    """Return the figure as an `svg` element for a page, with other colours in dark mode."""
    dark = "".join(
        f"[style*='{part}: {light}']{{{part}:{shade}!important}}"
        for light, shade in _DARK_MODE.items()
        for part in ("fill", "stroke")
    )
    text = figure_bytes(figure, "svg").decode().partition("<svg ")[2]
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # the same in all figures, and not referred to
    # Its caption describes it; to a screen reader it is one picture.
    head, _, body = text.partition(">")
    style = f"<style>@media screen and (prefers-color-scheme: dark){{{dark}}}</style>"
    return f'<svg role="img" aria-hidden="true" {head}>{style}{body}'


def new_figure(*rows: float) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of stacked axes that share their x axis, each with room for so many rows of bars."""
    height = _FIGURE_INCHES + sum(_PANEL_INCHES + _ROW_INCHES * count for count in rows)
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    return figure, list(figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0])


def legend_below(figure: Figure, entries: Iterable[tuple[str, Look | Line2D]], columns: int = 4) -> None:
    """Add one legend of labels below the figure, with their look or line; the figure grows with it."""
    labels, items = zip(*entries, strict=True)
    handles = [it if isinstance(it, Line2D) else Patch(facecolor=it[0], hatch=it[1] or None) for it in items]
    columns = max(1, min(columns, _LEGEND_LETTERS // (max(map(len, labels)) + _HANDLE_LETTERS), len(labels)))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, handlelength=1.6, columnspacing=1.4)
    figure.set_figheight(figure.get_figheight() + _LEGEND_INCHES * (-(-len(labels) // columns) - 1))


def name_rows(axis: Axes, names: Sequence[str]) -> None:
    """Name the rows of horizontal bars, the first at the top, and add vertical grid lines."""
    axis.set_yticks(range(len(names)), list(map(caption, names)))
    axis.tick_params("y", length=0)
    axis.set_ylim(len(names) - 0.45, -0.55)
    axis.grid(True, axis="x")


def label_axis(axis: Axis, longest: float, label: str, more: str = "", units: Units = TIME) -> None:
    """Label an axis of nanoseconds, or of another unit, in the largest unit that is not beyond `longest`."""
    scale, unit = next((item for item in units if longest >= item[0]), units[-1])
    axis.set_major_formatter(lambda value, position: f"{value / scale:,.10g}")
    axis.set_label_text(_folded(f"{label} ({unit}){more}", _LABEL_LETTERS))


def write_title(axis: Axes, text: str, letters: int = _TITLE_LETTERS) -> None:
    """Write the title of a plot, folded to `letters` columns."""
    axis.set_title(_folded(text, letters))


def draw_bar(
    axis: Axes, row: float, length: float, look: Look, start: float = 0.0, height: float = BAR, behind: str = "",
    **text: Any,
) -> None:  # fmt: skip
    """Draw a horizontal bar with a text behind it; text: the look of the text."""
    bar = axis.barh(row, length, height, left=start, color=look[0], hatch=look[1])
    axis.bar_label(bar, [behind], padding=4, **(text or BEHIND))


def draw_line(
    axis: Axes, index: int, where: Sequence[float], values: Sequence[float], band: Any = None, **how: Any
) -> Line2D:
    """Draw the line of the series at `index`, with the band between low and high values; how: other properties."""
    colour = PALETTE[index % len(PALETTE)]
    if band is not None:
        axis.fill_between(where, *band, color=colour, alpha=0.2, linewidth=0)
    return axis.plot(where, values, _LINES[index % len(_LINES)], color=colour, linewidth=1.4, **how)[0]


def draw_spans(axis: Axes, row: int, spans: Iterable[tuple[Look, float, float]], framed: bool = False) -> None:
    """Draw spans (look, start, length) in a row, those of one look as one path: thousands of shapes open slowly.

    framed: all have an edge, not only those with a hatch, and a wider one.
    """
    top, bottom = row - BAR / 2, row + BAR / 2
    corners: dict[Look, list[Any]] = {}
    for look, start, size in spans:
        box = (start, top), (start + size, top), (start + size, bottom), (start, bottom)
        corners.setdefault(look, []).append(box)
    for (colour, hatch), boxes in corners.items():
        edge = {} if framed else {"edgecolor": EDGE if hatch else colour, "linewidth": 0.3}
        path = Path.make_compound_path_from_polys(np.array(boxes))
        axis.add_patch(PathPatch(path, facecolor=colour, hatch=hatch or None, **edge))


def look(index: int) -> Look:
    """Return the look of the series at `index`. After eight, colours repeat with other hatches."""
    return PALETTE[index % len(PALETTE)], HATCHES[(index + index // len(PALETTE)) % len(HATCHES)]


def looks(labels: Iterable[str]) -> list[tuple[str, Look]]:
    """Return the entries of a legend of series."""
    return [(label, look(index)) for index, label in enumerate(labels)]


def caption(name: str, letters: int = _NAME_LETTERS) -> str:
    """Return a name from a trace as a label: visible characters, one line, not too long."""
    shown = escaped(short_name(name))
    return shown if len(shown) <= letters else shown[: letters - 1] + "…"


def _folded(text: str, letters: int) -> str:
    return fill(text, letters, break_long_words=False, break_on_hyphens=False)
