"""The difference between two runs: from the time of the first, part by part, to that of the other."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from molprof.analysis.compare.parts import PART_LABELS, RECORDED_LABELS
from molprof.analysis.documents.plots import NotRecordedError
from molprof.analysis.documents.plots.style import (
    BLUE,
    MUTED,
    ORANGE,
    caption,
    name_rows,
    new_figure,
    time_unit,
    write_behind,
)
from molprof.analysis.documents.plots.subject import Subject
from molprof.common.values import signed_percent_text, signed_time_text, time_text

# Parts below this share of the largest are added up: their bars would be lines.
_SMALL_RATIO = 0.01
_BAR = 0.62
# The axis begins at 0 unless the bars would then be this much shorter than the totals.
_CUT_RATIO = 0.35
_ROOM_RATIO = 0.3
_LABEL_LENGTH = 36
# Longer titles go over two lines.
_TITLE_LENGTH = 44


@dataclass(frozen=True)
class _Panel:
    """One run against the first."""

    label: str
    first_ns: int  # total of the first run
    total_ns: int
    steps: tuple[tuple[str, int], ...]  # label and ns of the parts between
    what: str  # what both totals are


def draw_waterfall(subject: Subject) -> Figure:
    """A panel for each run but the first: of unprofiled, else of the GPUs' recorded time. Raises NotRecordedError."""
    panels = _unprofiled_panels(subject) or _recorded_panels(subject)
    if not panels:
        raise NotRecordedError("two runs with unprofiled times, or two traces with GPU work, to compare")
    return _figure(subject.labels[0], panels)


def draw_sum(subject: tuple[tuple[str, str], tuple[int, int], Mapping[str, int], str]) -> Figure:
    """One sum: labels and totals in ns of both sides, parts in ns by label, and what both totals are."""
    labels, totals, parts, what = subject
    steps = _steps(parts, totals[1] - totals[0] - sum(parts.values()), {})
    return _figure(labels[0], [_Panel(labels[1], *totals, steps, what)])


def _figure(first_label: str, panels: Sequence[_Panel]) -> Figure:
    sizes = [len(panel.steps) + 2 for panel in panels]
    figure, axes = new_figure(0.55 + sum(0.27 * size + 0.35 for size in sizes), len(panels), sizes)
    scale, unit = time_unit(max(max(panel.total_ns, panel.first_ns) for panel in panels))
    for axis, panel in zip(axes, panels, strict=True):
        _draw(axis, first_label, panel, scale)
    ends = [end for panel in panels for end in _ends(panel)]
    highest, spread = max(ends), max(ends) - min(ends)
    start = 0.0  # cut where bars would be too short
    if spread < _CUT_RATIO * highest:
        start = max(0.0, min(ends) - 0.6 * spread if spread else 0.9 * highest)
    axes[0].set_xlim(start / scale, (highest + _ROOM_RATIO * (highest - start)) / scale)
    axes[-1].set_xlabel(f"{panels[0].what} ({unit}){'; the axis does not begin at 0' if start else ''}")
    return figure


def _unprofiled_panels(subject: Subject) -> list[_Panel]:
    panels = []
    for label, report, item in zip(subject.labels[1:], subject.reports[1:], subject.differences, strict=True):
        total = report.run.wall_ns.median if report.run is not None else None
        if item is not None and total is not None:
            steps = _steps(item.parts, item.residual_ns, PART_LABELS)
            what = "unprofiled time, median of the timed passes"
            panels.append(_Panel(label, total - item.wall_ns, total, steps, what))
    return panels


def _recorded_panels(subject: Subject) -> list[_Panel]:
    panels = []
    first_ns = sum(device.span_ns for device in subject.reports[0].devices.values())
    for label, item in zip(subject.labels[1:], subject.trace_differences, strict=True):
        if item is not None:
            steps = _steps(item.parts, item.residual_ns, RECORDED_LABELS)
            what = "recorded time of the GPUs, profiled"
            panels.append(_Panel(label, first_ns, first_ns + item.span_ns, steps, what))
    return panels


def _steps(parts: Mapping[str, int], residual_ns: int, labels: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Label and ns of each bar; small parts together, the unexplained rest last."""
    largest = max(map(abs, parts.values()), default=0)
    large = {name: ns for name, ns in parts.items() if abs(ns) >= _SMALL_RATIO * largest and ns}
    small = [ns for name, ns in parts.items() if name not in large and ns]
    steps = [(labels.get(name, name), ns) for name, ns in large.items()]
    if small:
        steps.append((f"{len(small)} smaller parts" if len(small) > 1 else "a smaller part", sum(small)))
    if residual_ns:
        steps.append(("unexplained", residual_ns))
    return tuple(steps)


def _ends(panel: _Panel) -> list[int]:
    """Where the bars between the totals begin, and where the last ends."""
    return list(itertools.accumulate((ns for _, ns in panel.steps), initial=panel.first_ns))


def _draw(axis: Axes, first_label: str, panel: _Panel, scale: int) -> None:
    change = panel.total_ns - panel.first_ns
    names = [first_label, *(name for name, _ in panel.steps), panel.label]
    for row, ((_, ns), place) in enumerate(zip(panel.steps, _ends(panel), strict=False), 1):
        fill, pattern = (ORANGE, "////") if ns > 0 else (BLUE, "")
        left = min(place, place + ns) / scale
        axis.barh(row, abs(ns) / scale, _BAR, left=left, color=fill, linewidth=0.6, hatch=pattern)
        share = f" ({signed_percent_text(ns / change)})" if change else ""
        write_behind(axis, max(place, place + ns) / scale, row, signed_time_text(ns) + share, 8.5)
    for row, end in enumerate(_ends(panel)):  # down to the start of the next bar
        axis.plot([end / scale] * 2, [row + _BAR / 2, row + 1 - _BAR / 2], color=MUTED, linewidth=0.7)
    for row, ns in ((0, panel.first_ns), (len(panel.steps) + 1, panel.total_ns)):
        axis.barh(row, ns / scale, _BAR, color=MUTED, linewidth=0.6)
        write_behind(axis, ns / scale, row, time_text(ns), 8.5, "bold")
    name_rows(axis, names, _LABEL_LENGTH)
    axis.set_ylim(len(names) - 0.4, -0.6)
    other, against = (caption(label, _LABEL_LENGTH) for label in (panel.label, first_label))
    between = "\n" if len(other) + len(against) > _TITLE_LENGTH else " "
    axis.set_title(f"{other}{between}against {against}: {signed_time_text(change)}")
