"""What an unprofiled step of each run spends its time on."""

from __future__ import annotations

from matplotlib.figure import Figure

from molprof.analysis.documents.plots import style
from molprof.analysis.documents.plots.subject import NotRecordedError, Subject
from molprof.analysis.figures.run_model import Run
from molprof.common.phases import STEP_PHASES
from molprof.common.values import time_text

# Narrower pieces have no room for their time.
_WRITTEN_RATIO = 0.09


def draw(subject: Subject) -> Figure:
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
