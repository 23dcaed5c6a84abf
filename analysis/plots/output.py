"""A figure as a file: PNG, PDF or SVG, the same bytes from the same figures."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

from molprof.analysis.plots.svg import clean_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
# matplotlib would write the time and its own version.
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def figure_bytes(figure: Figure, form: str) -> bytes:
    """The figure in one of `FORMATS`, on white."""
    data = _saved(figure, form, transparent=False)
    return clean_svg(data, "").encode() if form == "svg" else data


def figure_svg(figure: Figure, prefix: str) -> str:
    """An `svg` element without background to put into a page; `prefix` keeps its ids apart from other figures'."""
    return clean_svg(_saved(figure, "svg", transparent=True), prefix, inline=True)


def _saved(figure: Figure, form: str, transparent: bool) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A character that the font lacks shows as a box in a PNG; names from traces may hold any.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        # Said where a label leaves no room for the axes: the figure is still whole.
        warnings.filterwarnings("ignore", "constrained_layout not applied", UserWarning)
        figure.savefig(buffer, format=form, metadata=_METADATA[form], transparent=transparent)
    return buffer.getvalue()
