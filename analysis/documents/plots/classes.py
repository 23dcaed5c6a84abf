"""GPU work by kernel class: grouped bars, one colour for each run."""

from __future__ import annotations

from matplotlib.figure import Figure

from molprof.analysis.documents.plots import style
from molprof.analysis.documents.plots.subject import NotRecordedError, Subject
from molprof.analysis.figures import Report
from molprof.common.values import count_text, percent_text, time_text

_SHOWN = 14


def draw(subject: Subject) -> Figure:
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
    shown = ordered[:_SHOWN]
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
    more = f"; {len(ordered) - _SHOWN} smaller classes not drawn" if len(ordered) > _SHOWN else ""
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
