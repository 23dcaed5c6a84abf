"""Plots of a history: a figure by result, and where it changed."""

from __future__ import annotations

from matplotlib.figure import Figure

from molprof.analysis.documents.plots import style
from molprof.analysis.figures.figure import Figure as Measure
from molprof.analysis.history import History
from molprof.common.values import by_unit

_TICKS = 4


def draw_history(subject: tuple[History, Measure]) -> Figure:
    """Return the figure of each result, the mean of those between two changes, and a dashed line at each change."""
    history, measure = subject
    values = history.values(measure)
    changes = [change for change in history.changes if change.figure == measure.id]
    figure, (axis,) = style.new_figure(style.ROWS / 2)
    where = [number for number, _ in values]
    axis.plot(where, [value for _, value in values], "o", color=style.BLUE, markersize=3)
    ends = [where[0], *(change.first for change in changes), where[-1] + 1]
    means = [change.before for change in changes[:1]] + [change.after for change in changes]
    for start, end, mean in zip(ends, ends[1:], means, strict=False):
        axis.hlines(mean, start - 0.5, end - 0.5, color=style.ORANGE, linewidth=1.4)
    for change in changes:
        axis.axvline(change.first - 0.5, **style.END)
    axis.yaxis.set_major_formatter(lambda value, position: by_unit(measure.unit, value))
    ticks = sorted({where[round(share * (len(where) - 1) / (_TICKS - 1))] for share in range(_TICKS)})
    axis.set_xticks(ticks, [history.entries[number].time[:10] for number in ticks])
    axis.grid(True)
    return figure
