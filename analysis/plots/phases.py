"""Phases per step: what an unprofiled step of each run spends its time on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from molprof.analysis.figures.run_model import Run
from molprof.analysis.plots.style import EDGE, PHASES, caption, legend_below, new_figure, time_unit
from molprof.analysis.plots.subject import NotRecordedError, Subject
from molprof.common.phases import STEP_PHASES
from molprof.common.values import time_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Narrower pieces have no room for their time.
_WRITTEN_RATIO = 0.09
_LABEL_LENGTH = 32


def draw_phases(subject: Subject) -> Figure:
    """A bar for each run, a piece for each phase: forward per decode step, the others per step.

    Raises:
        NotRecordedError: no run has unprofiled times.
    """
    runs = [
        (label, times)
        for label, report in zip(subject.labels, subject.reports, strict=True)
        if report.run is not None and (times := phase_times(report.run))
    ]
    if not runs:
        raise NotRecordedError("unprofiled times of phases, which molprof capture records")
    longest = max(sum(times.values()) for _, times in runs)
    scale, unit = time_unit(longest)
    figure, (axis,) = new_figure(1.05 + 0.34 * len(runs))
    handles = []
    for name in STEP_PHASES:
        fill, pattern = PHASES[name]
        starts = [_before(times, name) / scale for _, times in runs]
        values = [times.get(name, 0) / scale for _, times in runs]
        handles.append(
            axis.barh(
                range(len(runs)), values, 0.68, left=starts, color=fill, edgecolor=EDGE, linewidth=0.5, hatch=pattern
            )
        )
        for row, (start, value) in enumerate(zip(starts, values, strict=True)):
            if value * scale > _WRITTEN_RATIO * longest and not pattern:
                axis.text(
                    start + value / 2, row, time_text(value * scale), ha="center", va="center", fontsize=8,
                    color=EDGE,
                )  # fmt: skip
    for row, (_, times) in enumerate(runs):
        whole = sum(times.values())
        axis.annotate(
            time_text(whole), (whole / scale, row), (4, 0), textcoords="offset points", va="center", fontweight="bold"
        )
    axis.set_yticks(range(len(runs)), [caption(label, _LABEL_LENGTH) for label, _ in runs])
    axis.tick_params("y", length=0)
    axis.set_ylim(len(runs) - 0.45, -0.55)
    axis.set_xlim(0, 1.14 * longest / scale)
    axis.grid(True, axis="x")
    axis.set_xlabel(f"unprofiled time per step, mean of the median repeat ({unit})")
    legend_below(figure, handles, STEP_PHASES)
    return figure


def phase_times(run: Run) -> dict[str, float]:
    """Unprofiled ns per step by phase; empty without repeats."""
    found = {}
    for name in STEP_PHASES:
        wall_ns = run.phases[name].wall_ns
        steps = run.decode_steps if name == "forward" else run.steps
        if wall_ns is not None and steps:
            found[name] = wall_ns / steps
    return found if any(found.values()) else {}


def _before(times: dict[str, float], name: str) -> float:
    """Where the piece `name` begins."""
    return sum(times.get(earlier, 0) for earlier in STEP_PHASES[: STEP_PHASES.index(name)])
