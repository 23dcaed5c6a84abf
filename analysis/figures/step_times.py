"""Unprofiled time of decode steps by their position in the sequence."""

from __future__ import annotations

from statistics import median

from msgspec import Struct

from molprof.common.manifest import Repeat

# Positions are grouped so that there are no more points.
MAX_POINTS = 240


class StepTime(Struct, frozen=True):
    """Steps at neighbouring positions (0: prefill) of all batches, each as its median over the timed passes."""

    first_step: int
    last_step: int
    steps: int
    median_ns: int
    low_ns: int  # 10th percentile
    high_ns: int  # 90th percentile


def step_times(repeats: list[Repeat]) -> tuple[StepTime, ...]:
    """Step times by position; empty without timed passes, or if their numbers of steps differ."""
    batches = _medians(repeats)
    longest = max((len(steps) for steps in batches), default=0)
    if not longest:
        return ()
    size = -(-(longest - 1) // MAX_POINTS) or 1
    bins = [(0, 0), *((first, min(first + size, longest) - 1) for first in range(1, longest, size))]
    return tuple(_point(first, last, batches) for first, last in bins)


def _medians(repeats: list[Repeat]) -> list[list[int]]:
    """Median over the timed passes, by batch and step."""
    shapes = {tuple(len(steps) for steps in repeat.steps_ns) for repeat in repeats}
    if len(shapes) != 1:
        return []
    return [
        [round(median(times)) for times in zip(*batch, strict=True)]
        for batch in zip(*(repeat.steps_ns for repeat in repeats), strict=True)
    ]


def _point(first: int, last: int, batches: list[list[int]]) -> StepTime:
    times = sorted(time for steps in batches for time in steps[first : last + 1])
    tail = int(0.1 * len(times))
    return StepTime(first, last, len(times), round(median(times)), times[tail], times[-1 - tail])
