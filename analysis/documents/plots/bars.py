"""Bars and lines of runs side by side: times by phase, class and position, drift of blocks, and their difference."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from molprof.analysis.compare.parts import PART_LABELS, RECORDED_LABELS
from molprof.analysis.documents.figures import Reports, is_spread
from molprof.analysis.documents.plots import NotRecordedError, style
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import Run, StepTime
from molprof.common.manifest import STEP_PHASES
from molprof.common.values import (
    count_text,
    counted,
    per,
    percent_text,
    signed_percent_text,
    signed_time_text,
    time_text,
)

# Narrower pieces have no room for their time.
_WRITTEN_RATIO = 0.09
_CLASSES = 14
# Numbers of drift beyond this, or below its negative, share a bar.
_LAST = 20
# With fewer places, bars of runs without drift would be as wide as the figure.
_FEWEST = 5
# Of so many bars each has room for a count above it.
_COUNTED = 18
# Table of the report and title; runs without a template lack the first.
_PANELS = (
    ("template_drift", "Drift: FREE positions of the template minus tokens that the coordinates need"),
    ("drift", "Junk and filler tokens in the blocks that were written"),
)
# Parts of a difference below this share of the largest are added up: their bars would be lines.
_SMALL_RATIO = 0.01
# The axis begins at 0 unless the bars would then be this much shorter than the totals.
_CUT_RATIO = 0.35
# Letters of a title above bars with long names.
_TITLE_LETTERS = 60


def draw_phases(subject: Reports) -> Figure:
    """Return a bar for each run, a piece for each phase: forward per decode step, others per step.

    Raises NotRecordedError.
    """
    runs = subject.of_each(lambda report: None if report.run is None else _phase_times(report.run))
    if not runs:
        raise NotRecordedError("unprofiled times of phases, which molprof capture records")
    longest_ns = max(sum(times.values()) for _, times in runs)
    figure, (axis,) = style.new_figure(len(runs))
    for row, (_, times) in enumerate(runs):
        end_ns = 0.0
        for name, time_ns in times.items():
            total = time_text(sum(times.values())) if name == [*times][-1] else ""
            style.draw_bar(axis, row, time_ns, style.PHASES[name], end_ns, behind=total, **style.TOTAL)
            if time_ns > _WRITTEN_RATIO * longest_ns and not style.PHASES[name][1]:
                axis.text(end_ns + time_ns / 2, row, time_text(time_ns), **style.INSIDE)
            end_ns += time_ns
    style.name_rows(axis, [label for label, _ in runs])
    axis.set_xlim(0, 1.14 * longest_ns)
    style.label_axis(axis.xaxis, longest_ns, "unprofiled time per step")
    style.legend_below(figure, [(name, style.PHASES[name]) for name in STEP_PHASES])
    return figure


def _phase_times(run: Run) -> dict[str, float]:
    """Return unprofiled ns per step by phase; empty without timed passes."""
    steps = {name: run.decode_steps if name == "forward" else run.steps for name in STEP_PHASES}
    times = {name: per(run.phases[name].wall_ns, steps[name]) for name in STEP_PHASES}
    recorded = {name: time for name, time in times.items() if time is not None}
    return recorded if any(recorded.values()) else {}


def draw_classes(subject: Reports) -> Figure:
    """Draw time by class: per recorded step if all reports are runs, else of the trace. Raises NotRecordedError."""
    per_step = all(report.run is not None and report.run.window.steps for report in subject.reports)
    runs = subject.of_each(lambda report: _classes(report, per_step))
    if not runs:
        raise NotRecordedError("kernels, copies and sets")
    totals = {name: sum(other.get(name, (0, 0))[1] for _, other in runs) for _, classes in runs for name in classes}
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    shown = ordered[:_CLASSES]
    longest_ns = max(time_ns for _, classes in runs for _, time_ns in classes.values())
    figure, (axis,) = style.new_figure(len(shown) * (0.4 + 0.5 * len(runs)))
    size = 0.82 / len(runs)
    for index, (_, classes) in enumerate(runs):
        whole = sum(time_ns for _, time_ns in classes.values())
        for row, name in enumerate(shown):
            count, time_ns = classes.get(name, (0, 0))
            times = count_text(count) if count >= 100 or float(count).is_integer() else f"{count:.1f}"
            text = f"{time_text(time_ns)} ({percent_text(per(time_ns, whole))}), {times}x" if count else "none"
            middle = row - 0.41 + size * (index + 0.5)
            style.draw_bar(axis, middle, time_ns, style.look(index), height=size * 0.92, behind=text)
    style.name_rows(axis, shown)
    axis.set_xlim(0, 1.34 * longest_ns)
    more = f"; {len(ordered) - _CLASSES} smaller classes not drawn" if len(ordered) > _CLASSES else ""
    where = "per recorded step" if per_step else "in the trace"
    style.label_axis(axis.xaxis, longest_ns, f"GPU time {where}, profiled", more)
    if len(runs) > 1:
        style.legend_below(figure, style.looks(style.caption(label) for label, _ in runs), 3)
    return figure


def _classes(report: Report, per_step: bool) -> dict[str, tuple[float, float]]:
    """Return count and time by class; empty without GPU work."""
    if not per_step or report.run is None:
        rows = report.table("kernel_classes").to_json()
        return {str(row["class"]): (_number(row["count"]), _number(row["time_ns"])) for row in rows}
    window = report.run.window
    return {
        name: (figures.count / window.steps, figures.time_ns / window.steps)
        for name, figures in (window.classes or {}).items()
    }


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def draw_latency(subject: Reports) -> Figure:
    """Return a line for each run: the median over batches and repeats, its middle 80 % as a band.

    Raises NotRecordedError.
    """
    runs = subject.step_times()
    if not runs:
        raise NotRecordedError("unprofiled times of single steps, which molprof capture records")
    figure, (axis,) = style.new_figure(style.ROWS)
    lines = []
    for index, (label, points) in enumerate(runs):
        where = [(point.first_step + point.last_step) / 2 for point in points]
        band = tuple(zip(*((point.low_ns, point.high_ns) for point in points), strict=True))
        medians = [point.median_ns for point in points]
        line = style.draw_line(axis, index, where, medians, band if is_spread(points) else None)
        lines.append((style.caption(label), line))
    axis.set_xlim(left=0)
    axis.set_ylim(0, _highest([points for _, points in runs]))
    axis.grid(True, axis="both")
    axis.set_xlabel("decode step (generated tokens before it)")
    longest_ns = max(point.median_ns for _, points in runs for point in points)
    style.label_axis(axis.yaxis, longest_ns, "unprofiled step time")
    style.legend_below(figure, lines, 3)
    return figure


def _highest(runs: Sequence[Sequence[StepTime]]) -> float:
    """Return the end of the axis: above 98 % of the bands, so that one slow step does not flatten the rest."""
    highs = sorted(point.high_ns for points in runs for point in points)
    medians = max(point.median_ns for points in runs for point in points)
    return 1.06 * max(highs[int(0.98 * (len(highs) - 1))], min(medians, 3 * highs[len(highs) // 2]))


def draw_drift(subject: Reports) -> Figure:
    """Draw the share of blocks by drift, and by junk and filler tokens, of trained runs. Raises NotRecordedError."""
    named = subject.of_each(lambda report: report if _blocks(report, "drift") and not _random(report) else None)
    if not named and any(map(_random, subject.reports)):
        raise NotRecordedError("drift of trained weights: the weights are random")
    panels = [(title, [_blocks(report, table) for _, report in named]) for table, title in _PANELS]
    panels = [(title, series) for title, series in panels if any(series)]
    if not panels:
        raise NotRecordedError("coordinate blocks")
    written = panels[-1][1]
    numbers = [tokens for _, series in panels for blocks in series for tokens in blocks]
    first, last = min(0, *numbers), max(_FEWEST, *numbers)
    figure, axes = style.new_figure(*[style.ROWS] * len(panels))
    for axis, (title, series) in zip(axes, panels, strict=True):
        _drift_bars(axis, series, range(first, last + 1))
        style.write_title(axis, title)
    axes[-1].set_xlabel("tokens in a coordinate block")
    labels = [
        f"{style.caption(label)}: {counted(sum(blocks.values()), 'block')}{_with_drift(report)}"
        for (label, report), blocks in zip(named, written, strict=True)
    ]
    style.legend_below(figure, style.looks(labels), 2)
    return figure


def _drift_bars(axis: Axes, series: Sequence[dict[int, int]], tokens: range) -> None:
    """Draw a group of bars for each number of tokens, one bar per run."""
    size = 0.84 / len(series)
    highest = 0.0
    for index, blocks in enumerate(series):
        whole = sum(blocks.values())
        positions = [number - 0.42 + size * (index + 0.5) for number in blocks]
        shares = [100 * count / whole for count in blocks.values()]
        highest = max(highest, *shares, 0.0)
        fill, hatch = style.look(index)
        bars = axis.bar(positions, shares, size * 0.94, facecolor=fill, hatch=hatch)
        if len(series) * len(tokens) <= _COUNTED:
            axis.bar_label(bars, list(map(count_text, blocks.values())), padding=2, **style.BEHIND)
    ends = {_LAST: f"{_LAST} or more", -_LAST: f"-{_LAST} or less"}
    axis.set_xticks(tokens, [ends.get(number, str(number)) for number in tokens])
    axis.set_xlim(tokens[0] - 0.6, tokens[-1] + 0.6)
    axis.set_ylim(0, 1.1 * highest)
    axis.grid(True, axis="y")
    axis.set_ylabel("share of the blocks (%)")


def _random(report: Report) -> bool:
    return report.run is not None and report.run.setup.random


def _with_drift(report: Report) -> str:
    """Return the number of blocks with drift as text, malformed ones included, which have no junk."""
    drift = None if report.run is None else report.run.drift
    return "" if drift is None or drift.drift_blocks is None else f", {count_text(drift.drift_blocks)} with drift"


def _blocks(report: Report, table: str) -> Counter[int]:
    """Return the number of blocks by number of tokens, from one of the report's tables."""
    counts: Counter[int] = Counter()
    for tokens, blocks in report.table(table).rows:
        if isinstance(tokens, int) and isinstance(blocks, int):
            counts[max(-_LAST, min(tokens, _LAST))] += blocks
    return counts


class _Panel(NamedTuple):
    """One run against the first."""

    label: str
    first_ns: int  # total of the first run
    total_ns: int
    parts: Mapping[str, int]  # ns of what is between, by id or label
    what: str  # what both totals are
    of_total: bool = False  # percentages are of `total_ns`, else of `first_ns`

    @property
    def steps(self) -> list[tuple[str, int]]:
        """Label and ns of each bar between the totals; small parts together, the unexplained rest last."""
        labels = PART_LABELS | RECORDED_LABELS
        least_ns = _SMALL_RATIO * max(map(abs, self.parts.values()), default=0)
        small = [ns for ns in self.parts.values() if ns and abs(ns) < least_ns]
        bars = [(labels.get(name, name), ns) for name, ns in self.parts.items() if ns and abs(ns) >= least_ns]
        if small:
            bars.append((f"{len(small)} smaller parts" if len(small) > 1 else "a smaller part", sum(small)))
        if unexplained_ns := self.total_ns - self.first_ns - sum(self.parts.values()):
            bars.append(("unexplained", unexplained_ns))
        return bars


def draw_waterfall(subject: Reports) -> Figure:
    """Return a panel for each run but the first: of unprofiled, else of the GPUs' recorded time.

    Raises NotRecordedError.
    """
    first, *others = subject.reports
    paired = any(item is not None and item.paired for item in subject.differences)
    what = f"unprofiled time, {'mean of the rounds' if paired else 'median of the timed passes'}"
    panels = [
        _Panel(label, wall_ns - item.wall_ns, wall_ns, item.parts, what)
        for label, report, item in zip(subject.labels[1:], others, subject.differences, strict=True)
        if item is not None and report.run is not None and (wall_ns := report.run.wall_ns.median) is not None
    ]
    if not panels:
        first_ns, what = sum(device.span_ns for device in first.devices.values()), "recorded time of the GPUs, profiled"
        panels = [
            _Panel(label, first_ns, first_ns + item.span_ns, item.parts, what)
            for label, item in zip(subject.labels[1:], subject.trace_differences, strict=True)
            if item is not None
        ]
    if not panels:
        raise NotRecordedError("two runs with unprofiled times, or two traces with GPU work, to compare")
    return _waterfall(subject.labels[0], panels)


def draw_sum(subject: tuple[tuple[str, str], tuple[int, int], Mapping[str, int], str]) -> Figure:
    """Draw one sum: labels and totals in ns of both sides, parts in ns by label, and what both totals are."""
    labels, totals, parts, what = subject
    return _waterfall(labels[0], [_Panel(labels[1], *totals, parts, what)])


def draw_light(subject: tuple[int, int, Mapping[str, int]]) -> Figure:
    """Draw the least time and the recorded one, both in ns, with the parts between."""
    panel = _Panel("the trace", *subject, "recorded time of the GPU, profiled", of_total=True)
    return _waterfall("speed of light", [panel])


def _waterfall(first_label: str, panels: Sequence[_Panel]) -> Figure:
    figure, axes = style.new_figure(*(len(panel.steps) + 2 for panel in panels))
    ends = [end for axis, panel in zip(axes, panels, strict=True) for end in _draw_panel(axis, first_label, panel)]
    highest, spread = max(ends), max(ends) - min(ends)
    start = 0.0  # cut where bars would be too short
    if spread < _CUT_RATIO * highest:
        start = max(0.0, min(ends) - 0.6 * spread if spread else 0.9 * highest)
    axes[0].set_xlim(start, highest + 0.3 * (highest - start))
    longest_ns = max(max(panel.total_ns, panel.first_ns) for panel in panels)
    style.label_axis(axes[-1].xaxis, longest_ns, panels[0].what, "; the axis does not begin at 0" if start else "")
    return figure


def _draw_panel(axis: Axes, first_label: str, panel: _Panel) -> list[int]:
    """Draw the totals and the parts between; return where these begin, and where the last ends, ns."""
    ends = list(itertools.accumulate((ns for _, ns in panel.steps), initial=panel.first_ns))
    whole_ns = panel.total_ns if panel.of_total else panel.first_ns
    for row, (_, ns) in enumerate(panel.steps, 1):
        text = signed_time_text(ns) + (f" ({signed_percent_text(ns / whole_ns)})" if whole_ns else "")
        look, start = style.MORE if ns > 0 else style.LESS, min(ends[row - 1 : row + 1])
        style.draw_bar(axis, row, abs(ns), look, start, behind=text, **style.PART)
    for row, end in enumerate(ends):  # down to the start of the next bar
        axis.plot([end] * 2, [row + style.BAR / 2, row + 1 - style.BAR / 2], color=style.MUTED, linewidth=0.7)
    for row, ns in ((0, panel.first_ns), (len(ends), panel.total_ns)):
        style.draw_bar(axis, row, ns, style.WHOLE, behind=time_text(ns), **style.TOTAL)
    style.name_rows(axis, [first_label, *(name for name, _ in panel.steps), panel.label])
    axis.set_ylim(len(ends) + 0.6, -0.6)
    change = signed_time_text(panel.total_ns - panel.first_ns)
    title = f"{style.caption(panel.label)} against {style.caption(first_label)}: {change}"
    style.write_title(axis, title, _TITLE_LETTERS)
    return ends
