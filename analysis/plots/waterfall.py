"""Where the difference between two runs lies: from the first run's time, part by part, to the other's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from molprof.analysis.compare.model import Difference
from molprof.analysis.compare.parts import PART_LABELS
from molprof.analysis.plots.style import BLUE, EDGE, MUTED, ORANGE, caption, new_figure, time_unit
from molprof.analysis.plots.subject import NotRecordedError, Subject
from molprof.analysis.render.values import signed_percent_text, signed_time_text, time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Parts below this share of the largest are put together: their bars would be lines.
_SMALL_RATIO = 0.01
_BAR = 0.62
# The axis begins at 0 unless the bars would then be this much shorter than the totals.
_CUT_RATIO = 0.35
_ROOM_RATIO = 0.27
_LABEL_LENGTH = 32
# Longer titles go over two lines.
_TITLE_LENGTH = 44


def draw_waterfall(subject: Subject) -> Figure:
    """One panel for each run after the first.

    Raises:
        NotRecordedError: no two runs with unprofiled times.
    """
    panels = [
        (label, difference, report.run.wall_ns.median)
        for label, difference, report in zip(subject.labels[1:], subject.differences, subject.reports[1:], strict=True)
        if difference is not None and report.run is not None and report.run.wall_ns.median is not None
    ]
    if not panels:
        raise NotRecordedError("a difference takes two runs that molprof captured with unprofiled repeats")
    rows = [_steps(difference) for _, difference, _ in panels]
    sizes = [len(steps) + 2 for steps in rows]
    figure, axes = new_figure(0.55 + sum(0.27 * size + 0.35 for size in sizes), len(panels), sizes)
    longest = max(max(total, total - difference.wall_ns) for _, difference, total in panels)
    unit = time_unit(longest)
    reaches = [_reach(steps, total - item.wall_ns) for steps, (_, item, total) in zip(rows, panels, strict=True)]
    for axis, (label, difference, total), steps in zip(axes, panels, rows, strict=True):
        _panel(axis, (subject.labels[0], label), difference, total, steps, unit)
    _limits(axes, min(low for low, _ in reaches), max(high for _, high in reaches), unit)
    return figure


def _steps(difference: Difference) -> list[tuple[str, int]]:
    """Label and ns of each bar, in order; small parts together, and what no part accounts for."""
    largest = max(map(abs, difference.parts.values()), default=0)
    large = {name: ns for name, ns in difference.parts.items() if abs(ns) >= _SMALL_RATIO * largest and ns}
    small = [ns for name, ns in difference.parts.items() if name not in large and ns]
    steps = [(PART_LABELS.get(name, name), ns) for name, ns in large.items()]
    if small:
        steps.append((f"{len(small)} smaller parts" if len(small) > 1 else "a smaller part", sum(small)))
    if difference.residual_ns:
        steps.append(("in no part", difference.residual_ns))
    return steps


def _reach(steps: list[tuple[str, int]], start: int) -> tuple[int, int]:
    """The least and the most time that the bars touch."""
    ends = [start]
    for _, ns in steps:
        ends.append(ends[-1] + ns)
    return min(ends), max(ends)


def _panel(
    axis: Axes,
    labels: tuple[str, str],
    difference: Difference,
    total: int,
    steps: list[tuple[str, int]],
    unit: tuple[int, str],
) -> None:
    scale = unit[0]
    first = total - difference.wall_ns
    names = [labels[0], *(name for name, _ in steps), labels[1]]
    place = first
    for row, (_, ns) in enumerate(steps, 1):
        low, high = sorted((place, place + ns))
        more = ns > 0
        axis.barh(
            row,
            (high - low) / scale,
            _BAR,
            left=low / scale,
            color=ORANGE if more else BLUE,
            edgecolor=EDGE,
            linewidth=0.6,
            hatch="////" if more else "",
        )
        share = f" ({signed_percent_text(ns / difference.wall_ns)})" if difference.wall_ns else ""
        _write(axis, high / scale, row, signed_time_text(ns) + share)
        # From the end of one bar down to the start of the next.
        axis.plot([(place + ns) / scale] * 2, [row + _BAR / 2, row + 1 - _BAR / 2], color=MUTED, linewidth=0.7)
        place += ns
    axis.plot([first / scale] * 2, [_BAR / 2, 1 - _BAR / 2], color=MUTED, linewidth=0.7)
    for row, ns in ((0, first), (len(steps) + 1, total)):
        axis.barh(row, ns / scale, _BAR, color=MUTED, edgecolor=EDGE, linewidth=0.6)
        _write(axis, ns / scale, row, time_text(ns), weight="bold")
    axis.set_yticks(range(len(names)), [caption(name, _LABEL_LENGTH) for name in names])
    axis.tick_params("y", length=0)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.grid(True, axis="x")
    other, against = (caption(label, _LABEL_LENGTH) for label in (labels[1], labels[0]))
    between = "\n" if len(other) + len(against) > _TITLE_LENGTH else " "
    axis.set_title(f"{other}{between}against {against}: {signed_time_text(difference.wall_ns)}")


def _write(axis: Axes, x: float, row: int, text: str, weight: str = "normal") -> None:
    axis.annotate(text, (x, row), (4, 0), textcoords="offset points", va="center", fontsize=8.5, fontweight=weight)


def _limits(axes: list[Axes], lowest: int, highest: int, unit: tuple[int, str]) -> None:
    """One axis for all panels, with room for the texts on the right; cut where the bars would be too short."""
    scale, name = unit
    spread = highest - lowest
    start = 0.0
    if spread < _CUT_RATIO * highest:
        start = max(0.0, lowest - 0.6 * spread if spread else 0.9 * lowest)
    axes[0].set_xlim(start / scale, (highest + _ROOM_RATIO * (highest - start)) / scale)
    cut = "; the axis does not begin at 0" if start else ""
    axes[-1].set_xlabel(f"unprofiled time, median of the repeats ({name}){cut}")
