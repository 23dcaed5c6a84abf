"""Drift histogram: positions that the template left over or lacked, and junk and filler of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from molprof.analysis.documents.plots import NotRecordedError
from molprof.analysis.documents.plots.style import caption, colour, hatch, legend_below, new_figure
from molprof.analysis.documents.plots.subject import Subject
from molprof.analysis.figures import Report
from molprof.common.values import count_text, counted

# Numbers beyond this, or below its negative, share a bar.
_LAST = 20
# With fewer places, bars of runs without drift would be as wide as the figure.
_FEWEST = 5
# Width of the axis, and of a count above a bar.
_AXIS_INCHES = 6.5
_COUNT_INCHES = 0.3
# Table of the report and title; runs without a template lack the first.
_PANELS = (
    ("template_drift", "Drift: FREE positions of the template minus tokens that the coordinates need"),
    ("drift", "Junk and filler tokens in the blocks that were written"),
)


def draw_drift(subject: Subject) -> Figure:
    """Share of the blocks by drift, and by junk and filler tokens, of trained runs. Raises NotRecordedError."""
    named = subject.of_each(lambda report: report if _blocks(report, "drift") and not _random(report) else None)
    if not named and any(map(_random, subject.reports)):
        raise NotRecordedError("drift of trained weights: the weights are random")
    panels = [(title, [_blocks(report, table) for _, report in named]) for table, title in _PANELS]
    panels = [(title, series) for title, series in panels if any(series)]
    if not panels:
        raise NotRecordedError("coordinate blocks")
    written = panels[-1][1]
    places = [tokens for _, series in panels for blocks in series for tokens in blocks]
    first, last = min(0, *places), max(_FEWEST, *places)
    figure, axes = new_figure(0.6 + 2.3 * len(panels), len(panels))
    for axis, (title, series) in zip(axes, panels, strict=True):
        handles = _bars(axis, series, range(first, last + 1))
        axis.set_title(title)
    axes[-1].set_xlabel("tokens in a coordinate block")
    labels = [
        f"{caption(label)}: {counted(sum(blocks.values()), 'block')}{_with_drift(report)}"
        for (label, report), blocks in zip(named, written, strict=True)
    ]
    legend_below(figure, handles, labels, 2)
    return figure


def _bars(axis: Axes, series: Sequence[dict[int, int]], tokens: range) -> list[Any]:
    """Draws a group of bars for each number of tokens, one bar per run; returns the runs' legend handles."""
    size = 0.84 / len(series)
    labelled = size * _AXIS_INCHES / len(tokens) > _COUNT_INCHES
    handles = []
    highest = 0.0
    for index, blocks in enumerate(series):
        whole = sum(blocks.values())
        places = [number - 0.42 + size * (index + 0.5) for number in blocks]
        shares = [100 * count / whole for count in blocks.values()]
        highest = max(highest, *shares, 0.0)
        style: dict[str, Any] = {"facecolor": colour(index), "hatch": hatch(index)}
        axis.bar(places, shares, size * 0.94, **style)
        handles.append(Patch(**style))
        for place, share, count in zip(places, shares, blocks.values(), strict=True):
            if labelled:
                text = count_text(count)
                axis.annotate(text, (place, share), (0, 2), textcoords="offset points", ha="center", fontsize=7.5)
    axis.set_xticks(tokens, [_tick(number) for number in tokens])
    axis.set_xlim(tokens[0] - 0.6, tokens[-1] + 0.6)
    axis.set_ylim(0, 1.1 * highest)
    axis.grid(True, axis="y")
    axis.set_ylabel("share of the blocks (%)")
    return handles


def _tick(tokens: int) -> str:
    if abs(tokens) < _LAST:
        return f"{tokens}"
    return f"{_LAST} or more" if tokens > 0 else f"-{_LAST} or less"


def _random(report: Report) -> bool:
    return report.run is not None and report.run.setup.random


def _with_drift(report: Report) -> str:
    """How many blocks are not good: one that never reads x,y,z has no junk, and so stands over 0."""
    drift = None if report.run is None else report.run.drift
    return "" if drift is None or drift.drift_blocks is None else f", {count_text(drift.drift_blocks)} with drift"


def _blocks(report: Report, table: str) -> dict[int, int]:
    """Blocks by number of tokens, from one of the report's tables."""
    found: dict[int, int] = {}
    for tokens, blocks in report.table(table).rows:
        if isinstance(tokens, int) and isinstance(blocks, int):
            place = max(-_LAST, min(tokens, _LAST))
            found[place] = found.get(place, 0) + blocks
    return found
