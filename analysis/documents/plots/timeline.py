"""Plots over time: a typical step with its phases and work; the ranks of a job; memory by category."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from molprof.analysis.documents.figures import Reports
from molprof.analysis.documents.plots import NotRecordedError, style
from molprof.analysis.documents.plots.style import Look
from molprof.analysis.figures.step_model import SLOTS, StepInterval, TypicalStep
from molprof.common.values import bytes_text, count_text, time_text

if TYPE_CHECKING:
    from molprof.analysis.memory import MemoryTimeline
    from molprof.analysis.ranks import RankedJob

# Narrower bars have no room for their name.
_NAMED_RATIO = 0.085
_LANES = 4
_CLASSES = 7
_OTHER = "others"
_LOOKS: dict[str, Look] = {"launch": (style.DARK, ""), "wait": (style.SLATE, "////")}
# Narrower bars get no hatch: its lines would be all that is seen.
_HATCHED_RATIO = 0.012
_HOST = (("phase", "phases"), ("launch", "launches"), ("wait", "host syncs"), ("operator", "operators"))
# Columns of the picture of ranks; each shows what takes most of it.
_COLUMNS = 900
_RANKS = 64


def draw_timeline(subject: Reports) -> Figure:
    """Draw one panel for each report with annotated steps, on one time axis. Raises NotRecordedError."""
    steps = subject.of_each(lambda report: report.typical_step)
    panels = [(label, step) for label, step in steps if step.intervals]
    if not panels:
        raise NotRecordedError("annotated steps")
    lanes = [_lanes(step) for _, step in panels]
    colours = _colours(step for _, step in panels)
    figure, axes = style.new_figure(*map(len, lanes))
    intervals = [interval for _, step in panels for interval in step.intervals]
    ends = (interval.start_ns + interval.dur_ns for interval in intervals if interval.own)
    end = max(1, *(step.dur_ns for _, step in panels), *ends)
    for axis, (label, step), rows in zip(axes, panels, lanes, strict=True):
        for row, (_, lane) in enumerate(rows):
            _draw_lane(axis, row, lane, colours, end)
        axis.axvline(step.dur_ns, **style.END)
        style.name_rows(axis, [name for name, _ in rows])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        kind = f"{step.kind} step" if step.kind else "step"
        which = f"median of {count_text(step.steps)}" if step.steps > 1 else "the only one"
        style.write_title(axis, f"{style.caption(label, 34)}: {kind} of {time_text(step.dur_ns)} ({which})")
    axes[0].set_xlim(0, end)
    together = any(interval.count > 1 for interval in intervals)
    note = f"; what is shorter than {time_text(end / SLOTS)} is drawn together" if together else ""
    style.label_axis(axes[-1].xaxis, end, "time since the step began, profiled", note)
    phases = {interval.name for interval in intervals if interval.kind == "phase"}
    looks = {name: look for name, look in style.PHASES.items() if name in phases}
    if phases - looks.keys():
        looks["other phases"] = style.OTHER_PHASE
    looks |= colours
    if any(interval.kind == "gpu" and not interval.own for interval in intervals):
        looks["of another step"] = (style.FOREIGN, "")
    named = [(style.caption(name.removeprefix("aten::"), 20), look) for name, look in looks.items()]
    style.legend_below(figure, [("end of step (host)", Line2D([], [], **style.END)), *named], 5)
    return figure


def _lanes(step: TypicalStep) -> list[tuple[str, list[StepInterval]]]:
    """Return name and intervals of each sub-track, from the top."""
    kinds: dict[str, list[StepInterval]] = defaultdict(list)
    streams: dict[str, list[StepInterval]] = defaultdict(list)
    for interval in step.intervals:
        kinds[interval.kind].append(interval)
        if interval.device_stream is not None:
            streams[interval.device_stream].append(interval)
    rows = [(title, kinds[kind]) for kind, title in _HOST if kinds[kind]]
    busiest = sorted(streams, key=lambda lane: (-sum(item.dur_ns for item in streams[lane]), lane))
    for lane in sorted(busiest[:_LANES]):
        rows.append((f"GPU {style.caption(lane.replace('/', ' stream ', 1), 18)}", streams[lane]))
    if rest := [item for lane in busiest[_LANES:] for item in streams[lane]]:
        rows.append((f"{len(busiest) - _LANES} more streams", rest))
    return rows


def _colours(steps: Iterable[TypicalStep]) -> dict[str, Look]:
    """Return the looks of the classes or operators with the most time in all steps; the rest share one."""
    times: Counter[str] = Counter()
    for step in steps:
        for total in step.totals:
            if total.work_class is not None:
                times[total.work_class] += total.time_ns
    ordered = sorted(times, key=lambda name: (-times[name], name))
    shown = ordered[: _CLASSES if len(ordered) > _CLASSES + 1 else _CLASSES + 1]
    last = len(style.PALETTE) - 1  # slate, which is for the rest
    colours = {name: (style.PALETTE[index % last], style.look(index)[1]) for index, name in enumerate(shown)}
    return colours | ({_OTHER: (style.SLATE, "")} if len(ordered) > len(shown) else {})


def _draw_lane(axis: Axes, row: int, intervals: list[StepInterval], colours: Mapping[str, Look], end: int) -> None:
    of_phases = intervals[0].kind == "phase"

    def spans() -> Iterator[tuple[Look, float, float]]:
        for interval in intervals:
            start = max(0, interval.start_ns)
            length = interval.start_ns + interval.dur_ns - start
            fill, hatch = _look(interval, colours)
            yield (fill, hatch if length > _HATCHED_RATIO * end else ""), start, length
            if of_phases and interval.dur_ns > _NAMED_RATIO * end:
                middle, name = start + length / 2, style.caption(interval.name, 14)
                axis.text(middle, row, name, **style.INSIDE)

    style.draw_spans(axis, row, spans(), of_phases)


def _look(interval: StepInterval, colours: Mapping[str, Look]) -> Look:
    if interval.work_class is not None:
        rest = colours.get(_OTHER, (style.SLATE, ""))
        return colours.get(interval.work_class, rest) if interval.own else (style.FOREIGN, "")
    return style.PHASES.get(interval.name, style.OTHER_PHASE) if interval.kind == "phase" else _LOOKS[interval.kind]


def draw_ranks(job: RankedJob) -> Figure:
    """Draw one row for each rank: computing, moving data, waiting, idle; starts of steps are marked."""
    shown = job.ranks[:_RANKS]
    offsets = job.clocks.offsets_ns
    begin = min(rank.start_ns - offsets[rank.rank] for rank in shown)
    end = max(rank.end_ns - offsets[rank.rank] for rank in shown)
    figure, (axis,) = style.new_figure(len(shown))
    edges = np.linspace(0, end - begin, _COLUMNS + 1).astype(np.int64)
    looks = list(style.STATES.values())
    for row, rank in enumerate(shown):
        edges_ns = begin + edges + offsets[rank.rank]
        most = np.argmax(job.activities[rank.rank].times_ns(edges_ns[:-1], edges_ns[1:]), axis=0)
        for state, look in enumerate(looks[:-1]):  # all but idle
            ends = np.flatnonzero(np.diff(most == state, prepend=False, append=False)).reshape(-1, 2)
            spans = ((look, edges[first], edges[last] - edges[first]) for first, last in ends)
            style.draw_spans(axis, row, spans)
        for step in rank.steps[1:]:
            start_ns = step.start_ns - offsets[rank.rank] - begin
            axis.plot((start_ns, start_ns), (row - 0.5, row + 0.5), color=style.INK, linewidth=0.8)
    style.name_rows(axis, [f"rank {rank.rank}" for rank in shown])
    axis.set_xlim(0, end - begin)
    more = f"; the first {_RANKS} of {len(job.ranks)} ranks" if len(job.ranks) > _RANKS else ""
    column = f"; a column is {time_text((end - begin) / _COLUMNS)}{more}"
    style.label_axis(axis.xaxis, end - begin, f"time on the clock of rank {shown[0].rank}", column)
    style.legend_below(figure, style.STATES.items())
    return figure


def draw_memory(course: MemoryTimeline) -> Figure:
    """Draw allocated bytes by category, stacked; those that vary least at the bottom."""
    figure, (axis,) = style.new_figure(style.ROWS)
    begin, end, total = course.ts[0], course.ts[-1], course.total
    # Of events in one column the one with most alive.
    columns = np.linspace(begin, end + 1, _COLUMNS // 3 + 1)[:-1]
    firsts = np.unique(np.searchsorted(course.ts, columns))
    at = np.array([int(part[0] + total[part].argmax()) for part in np.split(np.arange(len(total)), firsts[1:])])
    times = course.ts[at] - begin
    looks = style.looks(sorted(course.live, key=lambda name: int(np.ptp(course.live[name]))))
    colours, hatches = zip(*(look for _, look in looks), strict=True)
    values = [course.live[name][at] for name, _ in looks]
    axis.stackplot(times, values, colors=colours, hatch=hatches, step="post", edgecolor=style.EDGE, linewidth=0)
    axis.axvline(course.ts[course.peak] - begin, **style.END)
    axis.set_xlim(0, max(times[-1], 1))
    axis.set_ylim(0, None)
    style.label_axis(axis.yaxis, total.max(), "alive", units=style.BYTES)
    peak = f"; dashed: the peak of {bytes_text(int(total.max()))}"
    style.label_axis(axis.xaxis, end - begin, "time since the first memory event", peak)
    style.legend_below(figure, looks)
    return figure
