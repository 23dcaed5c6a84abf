"""Step latency over sequence position: each step reads more keys and values than the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from molprof.analysis.documents.plots.style import caption, colour, legend_below, line, new_figure, time_unit
from molprof.analysis.documents.plots.subject import NotRecordedError, Subject
from molprof.analysis.figures import Report
from molprof.analysis.figures.step_times import StepTime

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(subject: Subject) -> Figure:
    """A line for each run: the median over batches and repeats, its middle 80 % as a band. Raises NotRecordedError."""
    runs = subject.of_each(_points)
    if not runs:
        raise NotRecordedError("unprofiled times of single steps, which molprof capture records")
    scale, unit = time_unit(max(point.median_ns for _, points in runs for point in points))
    figure, (axis,) = new_figure(3.1)
    handles = []
    for index, (_, points) in enumerate(runs):
        where = [(point.first_step + point.last_step) / 2 for point in points]
        if _is_spread(points):
            axis.fill_between(
                where, [point.low_ns / scale for point in points], [point.high_ns / scale for point in points],
                color=colour(index), alpha=0.18, linewidth=0,
            )  # fmt: skip
        medians = [point.median_ns / scale for point in points]
        handles += axis.plot(where, medians, line(index), color=colour(index), linewidth=1.4)
    axis.set_xlim(left=0)
    axis.set_ylim(0, _highest([points for _, points in runs]) / scale)
    axis.grid(True, axis="both")
    axis.set_xlabel("decode step (generated tokens before it)")
    axis.set_ylabel(f"unprofiled step time ({unit})")
    legend_below(figure, handles, [caption(label) for label, _ in runs], 3)
    return figure


def has_bands(subject: Subject) -> bool:
    """Whether a run's steps were timed more than once, which gives a band."""
    return any(_is_spread(points) for _, points in subject.of_each(_points))


def _points(report: Report) -> tuple[StepTime, ...]:
    return () if report.run is None else report.run.step_times[1:]  # without the prefill


def _is_spread(points: tuple[StepTime, ...]) -> bool:
    return any(point.high_ns > point.low_ns for point in points)


def _highest(runs: list[tuple[StepTime, ...]]) -> float:
    """The end of the axis: above 98 % of the bands, so that one slow step does not flatten the rest."""
    highs = sorted(point.high_ns for points in runs for point in points)
    medians = max(point.median_ns for points in runs for point in points)
    return 1.06 * max(highs[int(0.98 * (len(highs) - 1))], min(medians, 3 * highs[len(highs) // 2]))
