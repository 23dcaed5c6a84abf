"""Drift histogram: how many junk and filler tokens the coordinate blocks hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from molprof.analysis.metrics import Report
from molprof.analysis.plots.style import EDGE, caption, colour, hatch, legend_below, new_figure
from molprof.analysis.plots.subject import NotRecordedError, Subject
from molprof.analysis.render.values import count_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More tokens than this share the last bar.
_LAST = 20
# Fewer places would make the bars of runs without drift as wide as the figure.
_FEWEST = 5
# Inches that the axis has for all places, and that a count over a bar needs.
_AXIS_INCHES = 6.5
_COUNT_INCHES = 0.3


def draw_drift(subject: Subject) -> Figure:
    """Share of the blocks by their number of junk and filler tokens, a colour for each run with trained weights.

    Raises:
        NotRecordedError: no report has coordinate blocks, or only those of random weights.
    """
    runs = [
        (label, blocks)
        for label, report in zip(subject.labels, subject.reports, strict=True)
        if (blocks := _blocks(report)) and not (report.run is not None and report.run.setup.random)
    ]
    if not runs and any(report.run is not None and report.run.setup.random for report in subject.reports):
        raise NotRecordedError("drift that is meaningful: the weights are random")
    if not runs:
        raise NotRecordedError("coordinate blocks, which molprof capture records with the tokens")
    last = max(_FEWEST, *(max(blocks) for _, blocks in runs))
    figure, (axis,) = new_figure(2.9)
    size = 0.84 / len(runs)
    handles = []
    for index, (_, blocks) in enumerate(runs):
        whole = sum(blocks.values())
        places = [drift - 0.42 + size * (index + 0.5) for drift in range(last + 1)]
        shares = [100 * blocks.get(drift, 0) / whole for drift in range(last + 1)]
        handles.append(
            axis.bar(
                places, shares, size * 0.94, color=colour(index), edgecolor=EDGE, linewidth=0.5, hatch=hatch(index)
            )
        )
        if size * _AXIS_INCHES / (last + 1) > _COUNT_INCHES:
            for place, share, drift in zip(places, shares, range(last + 1), strict=True):
                if drift in blocks:
                    axis.annotate(
                        count_text(blocks[drift]), (place, share), (0, 2), textcoords="offset points", ha="center",
                        fontsize=7.5,
                    )  # fmt: skip
    axis.set_xticks(range(last + 1), [f"{drift}" if drift < _LAST else f"{_LAST} or more" for drift in range(last + 1)])
    axis.set_xlim(-0.6, last + 0.6)
    axis.set_ylim(0, 1.1 * max(bar.get_height() for group in handles for bar in group))
    axis.grid(True, axis="y")
    axis.set_xlabel("junk and filler tokens in a coordinate block")
    axis.set_ylabel("share of the blocks (%)")
    legend_below(figure, handles, [f"{caption(label)}: {_counted(blocks)}" for label, blocks in runs], 2)
    return figure


def _blocks(report: Report) -> dict[int, int]:
    """Blocks by number of junk and filler tokens."""
    found: dict[int, int] = {}
    for drift, blocks in report.table("drift").rows:
        if isinstance(drift, int) and isinstance(blocks, int):
            found[min(drift, _LAST)] = found.get(min(drift, _LAST), 0) + blocks
    return found


def _counted(blocks: dict[int, int]) -> str:
    count = sum(blocks.values())
    return f"{count_text(count)} block{'s' if count != 1 else ''}"
