"""Bars and lines of runs side by side: times by phase, class and position, drift of blocks, and their difference."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

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
# Width of the axis, and of a count above a bar.
_AXIS_INCHES = 6.5
_COUNT_INCHES = 0.3
# Table of the report and title; runs without a template lack the first.
_PANELS = (
    ("template_drift", "Drift: FREE positions of the template minus tokens that the coordinates need"),
    ("drift", "Junk and filler tokens in the blocks that were written"),
)
# Parts of a difference below this share of the largest are added up: their bars would be lines.
_SMALL_RATIO = 0.01
_BAR = 0.62
# The axis begins at 0 unless the bars would then be this much shorter than the totals.
_CUT_RATIO = 0.35
_ROOM_RATIO = 0.3
_LABEL_LENGTH = 36
# Longer titles go over two lines.
_TITLE_LENGTH = 44


def draw_phases(subject: Reports) -> Figure:
    """A bar for each run, a piece for each phase: forward per decode step, others per step. Raises NotRecordedError."""
    runs = subject.of_each(lambda report: None if report.run is None else _phase_times(report.run))
    if not runs:
        raise NotRecordedError("unprofiled times of phases, which molprof capture records")
    longest_ns = max(sum(times.values()) for _, times in runs)
    scale, unit = style.time_unit(longest_ns)
    figure, (axis,) = style.new_figure(1.05 + 0.34 * len(runs))
    ends_ns = [0.0] * len(runs)
    for name in STEP_PHASES:
        look, bars = style.PHASES[name], []
        for row, (_, times) in enumerate(runs):
            time_ns = times.get(name, 0.0)
            is_written = time_ns > style.room(_WRITTEN_RATIO) * longest_ns and not look[1]
            bars.append(style.Bar(row, time_ns, look, ends_ns[row], time_text(time_ns) if is_written else ""))
            ends_ns[row] += time_ns
        style.draw_bars(axis, bars, scale)
    for row, end_ns in enumerate(ends_ns):
        style.write_behind(axis, end_ns / scale, row, time_text(end_ns), 9, "bold")
    style.name_rows(axis, [label for label, _ in runs], 32)
    axis.set_xlim(0, (1 + style.room(0.14)) * longest_ns / scale)
    axis.set_xlabel(f"unprofiled time per step ({unit})")
    style.legend_below(figure, [(name, style.PHASES[name]) for name in STEP_PHASES])
    return figure


def _phase_times(run: Run) -> dict[str, float]:
    """Unprofiled ns per step by phase; empty without timed passes."""
    steps = {name: run.decode_steps if name == "forward" else run.steps for name in STEP_PHASES}
    found = {name: per(run.phases[name].wall_ns, steps[name]) for name in STEP_PHASES}
    known = {name: time for name, time in found.items() if time is not None}
    return known if any(known.values()) else {}


def draw_classes(subject: Reports) -> Figure:
    """Time by class: per recorded step if all reports are runs, else of the trace. Raises NotRecordedError."""
    per_step = all(report.run is not None and report.run.window.steps for report in subject.reports)
    runs = subject.of_each(lambda report: _classes(report, per_step))
    if not runs:
        raise NotRecordedError("kernels, copies and sets")
    totals = {name: sum(other.get(name, (0, 0))[1] for _, other in runs) for _, classes in runs for name in classes}
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    shown = ordered[:_CLASSES]
    figure, (axis,) = style.new_figure(0.95 + len(shown) * (0.13 + 0.16 * len(runs)))
    longest = max(time_ns for _, classes in runs for _, time_ns in classes.values())
    scale, unit = style.time_unit(longest)
    size = 0.82 / len(runs)
    for index, (_, classes) in enumerate(runs):
        whole = sum(time_ns for _, time_ns in classes.values())
        bars = []
        for row, name in enumerate(shown):
            count, time_ns = classes.get(name, (0, 0))
            times = count_text(count) if count >= 100 or float(count).is_integer() else f"{count:.1f}"
            text = f"{time_text(time_ns)} ({percent_text(per(time_ns, whole))}), {times}x" if count else "none"
            bars.append(style.Bar(row - 0.41 + size * (index + 0.5), time_ns, style.look(index), behind=text))
        style.draw_bars(axis, bars, scale, size * 0.92)
    style.name_rows(axis, shown, 26)
    axis.set_xlim(0, (1 + style.room(0.34)) * longest / scale)
    more = f"; {len(ordered) - _CLASSES} smaller classes not drawn" if len(ordered) > _CLASSES else ""
    where = "per recorded step" if per_step else "in the trace"
    axis.set_xlabel(style.lines(f"GPU time {where}, profiled ({unit}){more}"))
    if len(runs) > 1:
        labels = [(style.caption(label), style.look(index)) for index, (label, _) in enumerate(runs)]
        style.legend_below(figure, labels, 3)
    return figure


def _classes(report: Report, per_step: bool) -> dict[str, tuple[float, float]]:
    """Count and time by class; empty without GPU work."""
    if not per_step or report.run is None:
        found = report.table("kernel_classes").to_json()
        return {str(row["class"]): (_number(row["count"]), _number(row["time_ns"])) for row in found}
    window = report.run.window
    return {
        name: (figures.count / window.steps, figures.time_ns / window.steps)
        for name, figures in (window.classes or {}).items()
    }


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def draw_latency(subject: Reports) -> Figure:
    """A line for each run: the median over batches and repeats, its middle 80 % as a band. Raises NotRecordedError."""
    runs = subject.step_times()
    if not runs:
        raise NotRecordedError("unprofiled times of single steps, which molprof capture records")
    scale, unit = style.time_unit(max(point.median_ns for _, points in runs for point in points))
    figure, (axis,) = style.new_figure(3.1)
    lines: list[tuple[str, Line2D]] = []
    for index, (label, points) in enumerate(runs):
        fill, _ = style.look(index)
        where = [(point.first_step + point.last_step) / 2 for point in points]
        low, high, median = (
            [getattr(point, name) / scale for point in points] for name in ("low_ns", "high_ns", "median_ns")
        )
        if is_spread(points):
            axis.fill_between(where, low, high, color=fill, alpha=0.18, linewidth=0)
        (line,) = axis.plot(where, median, style.line(index), color=fill, linewidth=1.4)
        lines.append((style.caption(label), line))
    axis.set_xlim(left=0)
    axis.set_ylim(0, _highest([points for _, points in runs]) / scale)
    axis.grid(True, axis="both")
    axis.set_xlabel("decode step (generated tokens before it)")
    axis.set_ylabel(f"unprofiled step time ({unit})")
    style.legend_below(figure, lines, 3)
    return figure


def _highest(runs: Sequence[Sequence[StepTime]]) -> float:
    """The end of the axis: above 98 % of the bands, so that one slow step does not flatten the rest."""
    highs = sorted(point.high_ns for points in runs for point in points)
    medians = max(point.median_ns for points in runs for point in points)
    return 1.06 * max(highs[int(0.98 * (len(highs) - 1))], min(medians, 3 * highs[len(highs) // 2]))


def draw_drift(subject: Reports) -> Figure:
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
    figure, axes = style.new_figure(0.6 + 2.3 * len(panels), len(panels))
    for axis, (title, series) in zip(axes, panels, strict=True):
        _drift_bars(axis, series, range(first, last + 1))
        axis.set_title(style.lines(title, title=True))
    axes[-1].set_xlabel("tokens in a coordinate block")
    labels = [
        f"{style.caption(label)}: {counted(sum(blocks.values()), 'block')}{_with_drift(report)}"
        for (label, report), blocks in zip(named, written, strict=True)
    ]
    style.legend_below(figure, [(label, style.look(index)) for index, label in enumerate(labels)], 2)
    return figure


def _drift_bars(axis: Axes, series: Sequence[dict[int, int]], tokens: range) -> None:
    """Draws a group of bars for each number of tokens, one bar per run."""
    size = 0.84 / len(series)
    labelled = size * _AXIS_INCHES / style.room(1) / len(tokens) > _COUNT_INCHES
    highest = 0.0
    for index, blocks in enumerate(series):
        whole = sum(blocks.values())
        places = [number - 0.42 + size * (index + 0.5) for number in blocks]
        shares = [100 * count / whole for count in blocks.values()]
        highest = max(highest, *shares, 0.0)
        fill, hatch = style.look(index)
        axis.bar(places, shares, size * 0.94, facecolor=fill, hatch=hatch)
        for place, share, count in zip(places, shares, blocks.values(), strict=True) if labelled else ():
            text = count_text(count)
            axis.annotate(text, (place, share), (0, 2), textcoords="offset points", ha="center", fontsize=7.5)
    ends = {_LAST: f"{_LAST} or more", -_LAST: f"-{_LAST} or less"}
    axis.set_xticks(tokens, [ends.get(number, str(number)) for number in tokens])
    axis.set_xlim(tokens[0] - 0.6, tokens[-1] + 0.6)
    axis.set_ylim(0, 1.1 * highest)
    axis.grid(True, axis="y")
    axis.set_ylabel("share of the blocks (%)")


def _random(report: Report) -> bool:
    return report.run is not None and report.run.setup.random


def _with_drift(report: Report) -> str:
    """How many blocks are not good: one that never reads x,y,z has no junk, and so stands over 0."""
    drift = None if report.run is None else report.run.drift
    return "" if drift is None or drift.drift_blocks is None else f", {count_text(drift.drift_blocks)} with drift"


def _blocks(report: Report, table: str) -> Counter[int]:
    """Blocks by number of tokens, from one of the report's tables."""
    found: Counter[int] = Counter()
    for tokens, blocks in report.table(table).rows:
        if isinstance(tokens, int) and isinstance(blocks, int):
            found[max(-_LAST, min(tokens, _LAST))] += blocks
    return found


class _Panel(NamedTuple):
    """One run against the first."""

    label: str
    first_ns: int  # total of the first run
    total_ns: int
    steps: list[tuple[str, int]]  # label and ns of the parts between
    what: str  # what both totals are
    of_total: bool = False  # percentages are of `total_ns`, else of `first_ns`


def draw_waterfall(subject: Reports) -> Figure:
    """A panel for each run but the first: of unprofiled, else of the GPUs' recorded time. Raises NotRecordedError."""
    first, *others = subject.reports
    paired = any(item is not None and item.paired for item in subject.differences)
    what = f"unprofiled time, {'mean of the rounds' if paired else 'median of the timed passes'}"
    panels = [
        _Panel(label, wall_ns - item.wall_ns, wall_ns, _steps(item.parts, item.residual_ns), what)
        for label, report, item in zip(subject.labels[1:], others, subject.differences, strict=True)
        if item is not None and report.run is not None and (wall_ns := report.run.wall_ns.median) is not None
    ]
    if not panels:
        first_ns, what = sum(device.span_ns for device in first.devices.values()), "recorded time of the GPUs, profiled"
        panels = [
            _Panel(label, first_ns, first_ns + item.span_ns, _steps(item.parts, item.residual_ns), what)
            for label, item in zip(subject.labels[1:], subject.trace_differences, strict=True)
            if item is not None
        ]
    if not panels:
        raise NotRecordedError("two runs with unprofiled times, or two traces with GPU work, to compare")
    return _waterfall(subject.labels[0], panels)


def draw_sum(subject: tuple[tuple[str, str], tuple[int, int], Mapping[str, int], str]) -> Figure:
    """One sum: labels and totals in ns of both sides, parts in ns by label, and what both totals are."""
    labels, totals, parts, what = subject
    steps = _steps(parts, totals[1] - totals[0] - sum(parts.values()))
    return _waterfall(labels[0], [_Panel(labels[1], *totals, steps, what)])


def draw_light(subject: tuple[int, int, Mapping[str, int]]) -> Figure:
    """From the least time to the recorded one, both in ns, by the parts between."""
    least_ns, span_ns, parts = subject
    steps = _steps(parts, span_ns - least_ns - sum(parts.values()))
    what = "recorded time of the GPU, profiled"
    return _waterfall("speed of light", [_Panel("the trace", least_ns, span_ns, steps, what, of_total=True)])


def _steps(parts: Mapping[str, int], residual_ns: int) -> list[tuple[str, int]]:
    """Label and ns of each bar; small parts together, the unexplained rest last."""
    labels = PART_LABELS | RECORDED_LABELS
    least_ns = _SMALL_RATIO * max(map(abs, parts.values()), default=0)
    small = [ns for ns in parts.values() if ns and abs(ns) < least_ns]
    together = f"{len(small)} smaller parts" if len(small) > 1 else "a smaller part"
    return [
        *((labels.get(name, name), ns) for name, ns in parts.items() if ns and abs(ns) >= least_ns),
        *(((together, sum(small)),) if small else ()),
        *((("unexplained", residual_ns),) if residual_ns else ()),
    ]


def _waterfall(first_label: str, panels: Sequence[_Panel]) -> Figure:
    sizes = [len(panel.steps) + 2 for panel in panels]
    figure, axes = style.new_figure(0.55 + sum(0.27 * size + 0.35 for size in sizes), len(panels), sizes)
    scale, unit = style.time_unit(max(max(panel.total_ns, panel.first_ns) for panel in panels))
    ends: list[int] = []
    for axis, panel in zip(axes, panels, strict=True):
        ends += _draw_panel(axis, first_label, panel, scale)
    highest, spread = max(ends), max(ends) - min(ends)
    start = 0.0  # cut where bars would be too short
    if spread < _CUT_RATIO * highest:
        start = max(0.0, min(ends) - 0.6 * spread if spread else 0.9 * highest)
    axes[0].set_xlim(start / scale, (highest + style.room(_ROOM_RATIO) * (highest - start)) / scale)
    cut = "; the axis does not begin at 0" if start else ""
    axes[-1].set_xlabel(style.lines(f"{panels[0].what} ({unit}){cut}"))
    return figure


def _share(ns: int, first_ns: int) -> str:
    return f"({signed_percent_text(ns / first_ns)})" if first_ns else ""


def _draw_panel(axis: Axes, first_label: str, panel: _Panel, scale: int) -> list[int]:
    """Draws the totals and the parts between; returns where these begin, and where the last ends, ns."""
    ends = list(itertools.accumulate((ns for _, ns in panel.steps), initial=panel.first_ns))
    change, whole_ns = panel.total_ns - panel.first_ns, panel.total_ns if panel.of_total else panel.first_ns
    bars = [
        style.Bar(row, abs(ns), (style.ORANGE, "////") if ns > 0 else (style.BLUE, ""), min(ends[row - 1 : row + 1]),
                  behind=" ".join(filter(None, (signed_time_text(ns), _share(ns, whole_ns)))))
        for row, (_, ns) in enumerate(panel.steps, 1)
    ]  # fmt: skip
    style.draw_bars(axis, bars, scale, _BAR, 8.5)
    for row, end in enumerate(ends):  # down to the start of the next bar
        axis.plot([end / scale] * 2, [row + _BAR / 2, row + 1 - _BAR / 2], color=style.MUTED, linewidth=0.7)
    for row, ns in ((0, panel.first_ns), (len(ends), panel.total_ns)):
        style.draw_bars(axis, [style.Bar(row, ns, (style.MUTED, ""))], scale, _BAR)
        style.write_behind(axis, ns / scale, row, time_text(ns), 8.5, "bold")
    style.name_rows(axis, [first_label, *(name for name, _ in panel.steps), panel.label], _LABEL_LENGTH)
    axis.set_ylim(len(ends) + 0.6, -0.6)
    other, against = (style.caption(label, _LABEL_LENGTH) for label in (panel.label, first_label))
    between = "\n" if len(other) + len(against) > style.fewer(_TITLE_LENGTH) else " "
    axis.set_title(f"{other}{between}against {against}: {signed_time_text(change)}")
    return ends
