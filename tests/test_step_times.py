"""Unprofiled step times by sequence position: medians over repeats, positions put together, nothing made up."""

from __future__ import annotations

from molprof.analysis.figures.run import MAX_POINTS, step_times
from molprof.analysis.figures.run_model import StepTime
from molprof.common.manifest import Repeat


def repeat(*batches: list[int]) -> Repeat:
    return Repeat(sum(map(sum, batches)), {}, list(batches))


def test_medians_over_repeats_then_over_batches() -> None:
    repeats = [repeat([90, 10, 20], [80, 30]), repeat([70, 14, 22], [60, 34]), repeat([50, 12, 99], [70, 90])]
    assert step_times(repeats) == (
        StepTime(0, 0, 2, 70, 70, 70),
        StepTime(1, 1, 2, 23, 12, 34),
        StepTime(2, 2, 1, 22, 22, 22),
    )


def test_low_and_high_leave_out_a_tenth_on_either_side() -> None:
    batches = [[5, time] for time in range(100, 120)]
    assert step_times([repeat(*batches)])[1] == StepTime(1, 1, 20, 110, 102, 117)


def test_many_positions_are_put_together_and_prefill_stands_alone() -> None:
    points = step_times([repeat([1_000, *range(1, 2 * MAX_POINTS)])])
    assert len(points) == MAX_POINTS + 1
    assert points[0] == StepTime(0, 0, 1, 1_000, 1_000, 1_000)
    assert points[1] == StepTime(1, 2, 2, 2, 1, 2)
    assert points[-1].last_step == 2 * MAX_POINTS - 1
    assert sum(point.steps for point in points) == 2 * MAX_POINTS


def test_without_repeats_or_with_unlike_ones_there_are_none() -> None:
    assert step_times([]) == ()
    assert step_times([repeat([])]) == ()
    assert step_times([repeat([1, 2]), repeat([1, 2, 3])]) == ()
