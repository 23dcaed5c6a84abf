"""Times of each run side by side: phases of a step, classes of GPU work, steps over their position in the sequence."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from molprof.analysis.documents.plots import NotRecordedError, style
from molprof.analysis.documents.plots.subject import Subject, is_spread
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import Run, StepTime
from molprof.common.manifest import STEP_PHASES
from molprof.common.values import count_text, percent_text, time_text

# Narrower pieces have no room for their time.
_WRITTEN_RATIO = 0.09
_CLASSES = 14


def draw_phases(subject: Subject) -> Figure:
    """A bar for each run, a piece for each phase: forward per decode step, others per step. Raises NotRecordedError."""
    runs = subject.of_each(lambda report: None if report.run is None else _phase_times(report.run))
    if not runs:
        raise NotRecordedError("unprofiled times of phases, which molprof capture records")
    longest = max(sum(times.values()) for _, times in runs)
    scale, unit = style.time_unit(longest)
    figure, (axis,) = style.new_figure(1.05 + 0.34 * len(runs))
    handles = []
    before_ns = [0.0] * len(runs)
    for name in STEP_PHASES:
        fill, pattern = style.PHASES[name]
        starts = [before / scale for before in before_ns]
        before_ns = [before + times.get(name, 0) for before, (_, times) in zip(before_ns, runs, strict=True)]
        values = [times.get(name, 0) / scale for _, times in runs]
        handles.append(axis.barh(range(len(runs)), values, 0.68, left=starts, color=fill, hatch=pattern))
        for row, (start, value) in enumerate(zip(starts, values, strict=True)):
            if value * scale > _WRITTEN_RATIO * longest and not pattern:
                style.write_inside(axis, start + value / 2, row, time_text(value * scale))
    for row, (_, times) in enumerate(runs):
        whole = sum(times.values())
        style.write_behind(axis, whole / scale, row, time_text(whole), 9, "bold")
    style.name_rows(axis, [label for label, _ in runs], 32)
    axis.set_xlim(0, 1.14 * longest / scale)
    axis.set_xlabel(f"unprofiled time per step, mean of the median pass ({unit})")
    style.legend_below(figure, handles, STEP_PHASES)
    return figure


def _phase_times(run: Run) -> dict[str, float]:
    """Unprofiled ns per step by phase; empty without timed passes."""
    found = {}
    for name in STEP_PHASES:
        wall_ns = run.phases[name].wall_ns
        steps = run.decode_steps if name == "forward" else run.steps
        if wall_ns is not None and steps:
            found[name] = wall_ns / steps
    return found if any(found.values()) else {}


def draw_classes(subject: Subject) -> Figure:
    """Time by class: per recorded step if all reports are runs, else of the trace. Raises NotRecordedError."""
    per_step = all(report.run is not None and report.run.window.steps for report in subject.reports)
    runs = subject.of_each(lambda report: _classes(report, per_step))
    if not runs:
        raise NotRecordedError("kernels, copies and sets")
    totals: dict[str, float] = {}
    for _, classes in runs:
        for name, (_, time_ns) in classes.items():
            totals[name] = totals.get(name, 0) + time_ns
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    shown = ordered[:_CLASSES]
    figure, (axis,) = style.new_figure(0.95 + len(shown) * (0.13 + 0.16 * len(runs)))
    longest = max(time_ns for _, classes in runs for _, time_ns in classes.values())
    scale, unit = style.time_unit(longest)
    size = 0.82 / len(runs)
    handles = []
    for index, (_, classes) in enumerate(runs):
        rows = [row - 0.41 + size * (index + 0.5) for row in range(len(shown))]
        values = [classes.get(name, (0, 0)) for name in shown]
        lengths = [time_ns / scale for _, time_ns in values]
        handles.append(axis.barh(rows, lengths, size * 0.92, color=style.colour(index), hatch=style.hatch(index)))
        whole = sum(time_ns for _, time_ns in classes.values())
        for row, (count, time_ns) in zip(rows, values, strict=True):
            times = count_text(count) if count >= 100 or float(count).is_integer() else f"{count:.1f}"
            text = f"{time_text(time_ns)} ({percent_text(time_ns / whole if whole else None)}), {times}x"
            style.write_behind(axis, time_ns / scale, row, text if count else "none")
    style.name_rows(axis, shown, 26)
    axis.set_xlim(0, 1.34 * longest / scale)
    more = f"; {len(ordered) - _CLASSES} smaller classes not drawn" if len(ordered) > _CLASSES else ""
    axis.set_xlabel(f"GPU time {'per recorded step' if per_step else 'in the trace'}, profiled ({unit}){more}")
    if len(runs) > 1:
        style.legend_below(figure, handles, [style.caption(label) for label, _ in runs], 3)
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


def draw_latency(subject: Subject) -> Figure:
    """A line for each run: the median over batches and repeats, its middle 80 % as a band. Raises NotRecordedError."""
    runs = subject.step_times()
    if not runs:
        raise NotRecordedError("unprofiled times of single steps, which molprof capture records")
    scale, unit = style.time_unit(max(point.median_ns for _, points in runs for point in points))
    figure, (axis,) = style.new_figure(3.1)
    handles = []
    for index, (_, points) in enumerate(runs):
        where = [(point.first_step + point.last_step) / 2 for point in points]
        if is_spread(points):
            low, high = [point.low_ns / scale for point in points], [point.high_ns / scale for point in points]
            axis.fill_between(where, low, high, color=style.colour(index), alpha=0.18, linewidth=0)
        medians = [point.median_ns / scale for point in points]
        handles += axis.plot(where, medians, style.line(index), color=style.colour(index), linewidth=1.4)
    axis.set_xlim(left=0)
    axis.set_ylim(0, _highest([points for _, points in runs]) / scale)
    axis.grid(True, axis="both")
    axis.set_xlabel("decode step (generated tokens before it)")
    axis.set_ylabel(f"unprofiled step time ({unit})")
    style.legend_below(figure, handles, [style.caption(label) for label, _ in runs], 3)
    return figure


def _highest(runs: Sequence[Sequence[StepTime]]) -> float:
    """The end of the axis: above 98 % of the bands, so that one slow step does not flatten the rest."""
    highs = sorted(point.high_ns for points in runs for point in points)
    medians = max(point.median_ns for points in runs for point in points)
    return 1.06 * max(highs[int(0.98 * (len(highs) - 1))], min(medians, 3 * highs[len(highs) // 2]))
