"""A typical step on a time axis: phases, launches and host syncs, and the GPU's work below them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from molprof.analysis.figures.timeline import SLOTS, Interval, TypicalStep
from molprof.analysis.plots.style import (
    DARK,
    EDGE,
    INK,
    PALETTE,
    PHASES,
    SLATE,
    caption,
    colour,
    hatch,
    legend_below,
    new_figure,
    time_unit,
)
from molprof.analysis.plots.subject import NotRecordedError, Subject
from molprof.common.values import count_text, time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path

_HEIGHT = 0.66
# Narrower bars have no room for their name.
_NAMED_RATIO = 0.085
_LANES = 4
_CLASSES = 7
_OTHER = "others"
_FOREIGN = "#c3c8d0"
_LOOKS = {"launch": (DARK, ""), "wait": (SLATE, "////")}
# Narrower bars get no hatch: its lines would be all that is seen.
_HATCHED_RATIO = 0.012
_HOST = (("phase", "phases"), ("launch", "launches"), ("wait", "host syncs"), ("operator", "operators"))
_EARLIER = "of another step"


def draw_timeline(subject: Subject) -> Figure:
    """One panel for each report with annotated steps, on one time axis. Raises NotRecordedError."""
    steps = subject.of_each(lambda report: report.typical_step)
    panels = [(label, step) for label, step in steps if step.intervals]
    if not panels:
        raise NotRecordedError("annotated steps")
    lanes = [_lanes(step) for _, step in panels]
    colours = _colours(step for _, step in panels)
    sizes = [len(rows) for rows in lanes]
    figure, axes = new_figure(0.95 + sum(0.33 * size + 0.42 for size in sizes), len(panels), sizes)
    ends = [_end(step) for _, step in panels]
    scale, unit = time_unit(max(ends))
    for axis, (label, step), rows in zip(axes, panels, lanes, strict=True):
        _panel(axis, label, step, rows, colours, (scale, max(ends)))
    axes[0].set_xlim(0, max(ends) / scale)
    together = any(interval.count > 1 for _, step in panels for interval in step.intervals)
    note = f"; what is shorter than {time_text(max(ends) / SLOTS)} is drawn together" if together else ""
    axes[-1].set_xlabel(f"time since the step began, profiled ({unit}){note}")
    _legend(figure, colours, [interval for _, step in panels for interval in step.intervals])
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
    rows.extend((f"GPU {_lane(lane)}", streams[lane]) for lane in sorted(busiest[:_LANES]))
    if rest := [item for lane in busiest[_LANES:] for item in streams[lane]]:
        rows.append((f"{len(busiest) - _LANES} more streams", rest))
    return rows


def _lane(lane: str) -> str:
    device, _, stream = lane.partition("/")
    return caption(f"{device} stream {stream}", 18)


def _end(step: TypicalStep) -> int:
    return max(step.dur_ns, *(item.start_ns + item.dur_ns for item in step.intervals if item.own), 1)


def _colours(steps: Iterable[TypicalStep]) -> dict[str, tuple[str, str]]:
    """Colour and hatch of the classes or operators with the most time in all steps; the rest share one."""
    times: dict[str, int] = defaultdict(int)
    for step in steps:
        for total in step.totals:
            if total.work_class is not None:
                times[total.work_class] += total.time_ns
    ordered = sorted(times, key=lambda name: (-times[name], name))
    shown = ordered[: _CLASSES if len(ordered) > _CLASSES + 1 else _CLASSES + 1]
    # Slate, the last of the palette, is for the rest.
    colours = {name: (colour(index % (len(PALETTE) - 1)), hatch(index)) for index, name in enumerate(shown)}
    if len(ordered) > len(shown):
        colours[_OTHER] = (SLATE, "")
    return colours


def _panel(
    axis: Axes,
    label: str,
    step: TypicalStep,
    rows: list[tuple[str, list[Interval]]],
    colours: dict[str, tuple[str, str]],
    reach: tuple[int, int],
) -> None:
    from matplotlib.patches import PathPatch

    scale, end = reach
    for row, (_, intervals) in enumerate(rows):
        groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for interval in intervals:
            start = max(0, interval.start_ns)
            length = interval.start_ns + interval.dur_ns - start
            groups[_look(interval, colours, length > _HATCHED_RATIO * end)].append((start / scale, length / scale))
            if interval.kind == "phase" and interval.dur_ns > _NAMED_RATIO * end:
                middle = (start + length / 2) / scale
                axis.text(middle, row, caption(interval.name, 14), ha="center", va="center", fontsize=8, color=EDGE)
        for (fill, pattern), bars in groups.items():
            framed = intervals[0].kind == "phase" or pattern
            frame: dict[str, Any] = {} if framed else {"edgecolor": fill, "linewidth": 0.3}
            axis.add_patch(PathPatch(_outline(bars, row), facecolor=fill, hatch=pattern or None, **frame))
    axis.axvline(step.dur_ns / scale, color=INK, linewidth=0.8, linestyle=(0, (2, 2)))
    axis.set_yticks(range(len(rows)), [name for name, _ in rows])
    axis.tick_params("y", length=0)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(True, axis="x")
    axis.set_title(_title(label, step))


def _outline(bars: list[tuple[float, float]], row: int) -> Path:
    """Bars (start, length) as one path: a figure with thousands of shapes opens slowly."""
    from matplotlib.path import Path

    top, bottom = row - _HEIGHT / 2, row + _HEIGHT / 2
    corners: list[tuple[float, float]] = []
    for start, length in bars:
        end = start + length
        corners += [(start, top), (end, top), (end, bottom), (start, bottom), (start, top)]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(bars)
    return Path(corners, codes)


def _look(interval: Interval, colours: dict[str, tuple[str, str]], wide: bool) -> tuple[str, str]:
    """Colour and hatch."""
    if interval.work_class is not None:
        look = colours.get(interval.work_class, colours.get(_OTHER, (SLATE, "")))
        fill, pattern = look if interval.own else (_FOREIGN, "")
    elif interval.kind == "phase":
        fill, pattern = PHASES.get(interval.name, (SLATE, ""))
    else:
        fill, pattern = _LOOKS[interval.kind]
    return fill, pattern if wide else ""


def _title(label: str, step: TypicalStep) -> str:
    kind = f"{step.kind} step" if step.kind else "step"
    which = f"median of {count_text(step.steps)}" if step.steps > 1 else "the only one"
    return f"{caption(label, 34)}: {kind} of {time_text(step.dur_ns)} ({which})"


def _legend(figure: Figure, colours: dict[str, tuple[str, str]], intervals: list[Interval]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[object] = [Line2D([], [], color=INK, linewidth=0.8, linestyle=(0, (2, 2)))]
    labels = ["end of step (host)"]
    phases = {interval.name for interval in intervals if interval.kind == "phase"}
    looks = {name: look for name, look in PHASES.items() if name in phases} | colours
    if any(interval.kind == "gpu" and not interval.own for interval in intervals):
        looks[_EARLIER] = (_FOREIGN, "")
    for name, (fill, pattern) in looks.items():
        handles.append(Patch(facecolor=fill, hatch=pattern or None))
        labels.append(caption(name.removeprefix("aten::"), 20))
    legend_below(figure, handles, labels, 5)
