"""A figure that is drawn once when it is saved.

`savefig` draws a figure with a layout engine twice: first without output, for the layout, then into the file with the
engine replaced. The layout measures what it needs by itself, so the first time need not draw.
"""

from __future__ import annotations

from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine


class FigureDrawnOnce(Figure):
    """A figure whose drawing is the layout alone, as long as it has a constrained layout."""

    def draw(self, renderer: RendererBase) -> None:
        engine = self.get_layout_engine()
        if isinstance(engine, ConstrainedLayoutEngine):
            engine.execute(self)
        else:
            super().draw(renderer)
