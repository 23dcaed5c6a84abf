"""A typical step on a time axis: phases, launches and host syncs, and the GPU's work below them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch

from molprof.analysis.documents.plots import NotRecordedError, style
from molprof.analysis.documents.plots.subject import Subject
from molprof.analysis.figures.model import SLOTS, Interval, TypicalStep
from molprof.common.values import count_text, time_text

_HEIGHT = 0.66
# Narrower bars have no room for their name.
_NAMED_RATIO = 0.085
_LANES = 4
_CLASSES = 7
_OTHER = "others"
_FOREIGN = "#c3c8d0"
_LOOKS = {"launch": (style.DARK, ""), "wait": (style.SLATE, "////")}
# Narrower bars get no hatch: its lines would be all that is seen.
_HATCHED_RATIO = 0.012
_HOST = (("phase", "phases"), ("launch", "launches"), ("wait", "host syncs"), ("operator", "operators"))


def draw_timeline(subject: Subject) -> Figure:
    """One panel for each report with annotated steps, on one time axis. Raises NotRecordedError."""
    steps = subject.of_each(lambda report: report.typical_step)
    panels = [(label, step) for label, step in steps if step.intervals]
    if not panels:
        raise NotRecordedError("annotated steps")
    lanes = [_lanes(step) for _, step in panels]
    colours = _colours(step for _, step in panels)
    sizes = [len(rows) for rows in lanes]
    figure, axes = style.new_figure(0.95 + sum(0.33 * size + 0.42 for size in sizes), len(panels), sizes)
    intervals = [interval for _, step in panels for interval in step.intervals]
    ends = (interval.start_ns + interval.dur_ns for interval in intervals if interval.own)
    end = max(1, *(step.dur_ns for _, step in panels), *ends)
    scale, unit = style.time_unit(end)
    for axis, (label, step), rows in zip(axes, panels, lanes, strict=True):
        _panel(axis, label, step, rows, colours, (scale, end))
    axes[0].set_xlim(0, end / scale)
    together = any(interval.count > 1 for interval in intervals)
    note = f"; what is shorter than {time_text(end / SLOTS)} is drawn together" if together else ""
    axes[-1].set_xlabel(f"time since the step began, profiled ({unit}){note}")
    _legend(figure, colours, intervals)
    return figure


def _lanes(step: TypicalStep) -> list[tuple[str, list[Interval]]]:
    """Name and intervals of each lane, from the top."""
    kinds: dict[str, list[Interval]] = defaultdict(list)
    streams: dict[str, list[Interval]] = defaultdict(list)
    for interval in step.intervals:
        kinds[interval.kind].append(interval)
        if interval.lane is not None:
            streams[interval.lane].append(interval)
    rows = [(title, kinds[kind]) for kind, title in _HOST if kinds[kind]]
    busiest = sorted(streams, key=lambda lane: (-sum(item.dur_ns for item in streams[lane]), lane))
    for lane in sorted(busiest[:_LANES]):
        rows.append((f"GPU {style.caption(lane.replace('/', ' stream ', 1), 18)}", streams[lane]))
    if rest := [item for lane in busiest[_LANES:] for item in streams[lane]]:
        rows.append((f"{len(busiest) - _LANES} more streams", rest))
    return rows


def _colours(steps: Iterable[TypicalStep]) -> dict[str, tuple[str, str]]:
    """Colour and hatch of the classes or operators with the most time in all steps; the rest share one."""
    times: dict[str, int] = defaultdict(int)
    for step in steps:
        for total in step.totals:
            if total.work_class is not None:
                times[total.work_class] += total.time_ns
    ordered = sorted(times, key=lambda name: (-times[name], name))
    shown = ordered[: _CLASSES if len(ordered) > _CLASSES + 1 else _CLASSES + 1]
    last = len(style.PALETTE) - 1  # slate, which is for the rest
    colours = {name: (style.colour(index % last), style.hatch(index)) for index, name in enumerate(shown)}
    if len(ordered) > len(shown):
        colours[_OTHER] = (style.SLATE, "")
    return colours


def _panel(
    axis: Axes,
    label: str,
    step: TypicalStep,
    rows: list[tuple[str, list[Interval]]],
    colours: dict[str, tuple[str, str]],
    reach: tuple[int, int],
) -> None:
    scale, end = reach
    for row, (_, intervals) in enumerate(rows):
        groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for interval in intervals:
            start = max(0, interval.start_ns)
            length = interval.start_ns + interval.dur_ns - start
            groups[_look(interval, colours, length > _HATCHED_RATIO * end)].append((start / scale, length / scale))
            if interval.kind == "phase" and interval.dur_ns > _NAMED_RATIO * end:
                style.write_inside(axis, (start + length / 2) / scale, row, style.caption(interval.name, 14))
        for (fill, pattern), bars in groups.items():
            framed = intervals[0].kind == "phase" or pattern
            frame: dict[str, Any] = {} if framed else {"edgecolor": fill, "linewidth": 0.3}
            path = style.bars_path(bars, row, _HEIGHT)
            axis.add_patch(PathPatch(path, facecolor=fill, hatch=pattern or None, **frame))
    axis.axvline(step.dur_ns / scale, color=style.INK, linewidth=0.8, linestyle=(0, (2, 2)))
    style.name_rows(axis, [name for name, _ in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    kind = f"{step.kind} step" if step.kind else "step"
    which = f"median of {count_text(step.steps)}" if step.steps > 1 else "the only one"
    axis.set_title(f"{style.caption(label, 34)}: {kind} of {time_text(step.dur_ns)} ({which})")


def _look(interval: Interval, colours: dict[str, tuple[str, str]], wide: bool) -> tuple[str, str]:
    """Colour and hatch."""
    if interval.work_class is not None:
        look = colours.get(interval.work_class, colours.get(_OTHER, (style.SLATE, "")))
        fill, pattern = look if interval.own else (_FOREIGN, "")
    elif interval.kind == "phase":
        fill, pattern = style.PHASES.get(interval.name, (style.SLATE, ""))
    else:
        fill, pattern = _LOOKS[interval.kind]
    return fill, pattern if wide else ""


def _legend(figure: Figure, colours: dict[str, tuple[str, str]], intervals: list[Interval]) -> None:
    handles: list[object] = [Line2D([], [], color=style.INK, linewidth=0.8, linestyle=(0, (2, 2)))]
    labels = ["end of step (host)"]
    phases = {interval.name for interval in intervals if interval.kind == "phase"}
    looks = {name: look for name, look in style.PHASES.items() if name in phases} | colours
    if any(interval.kind == "gpu" and not interval.own for interval in intervals):
        looks["of another step"] = (_FOREIGN, "")
    for name, (fill, pattern) in looks.items():
        handles.append(Patch(facecolor=fill, hatch=pattern or None))
        labels.append(style.caption(name.removeprefix("aten::"), 20))
    style.legend_below(figure, handles, labels, 5)
