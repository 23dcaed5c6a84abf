"""Intervals of medians and ratios from timed passes, without assuming a distribution.

The interval of a median lies between two order statistics. Its exact level is binomial (Hollander, Wolfe, Chicken:
Nonparametric Statistical Methods, 3.6; benchstat prints the same). The interval of the ratio of two runs lies between
two order statistics of all ratios of a pass of one to a pass of the other. Its exact level is that of the Mann-Whitney
statistic (ibid. 4.3, Moses, on logarithms), which assumes that the times differ by a factor. The level is the smallest
of at least LEVEL. Few passes reach less: four of each run reach 97 % for a ratio, three 90 %; for a median, six reach
97 %, three 75 %.

Passes of paired runs are compared round by round: Student's interval of the mean difference, and on logarithms that of
the ratio of the means, which is above 0. They need three rounds, which make them wide.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from msgspec import Struct

LEVEL = 0.95
# With fewer passes of either run, significance is unknown.
LEAST_REPEATS = 3
# With these of each run, the interval of a ratio reaches LEVEL.
ENOUGH_REPEATS = 4
# More add little: the exact distribution costs the cube of their number.
_MOST_REPEATS = 60


class ConfidenceInterval(Struct, frozen=True):
    """An interval that contains a figure with probability `level` or more, in its unit."""

    low: float
    high: float
    level: float

    @property
    def reached(self) -> bool:
        """True if there were enough passes for LEVEL."""
        return self.level >= LEVEL


def median_interval(values: Sequence[float]) -> ConfidenceInterval | None:
    """Return the interval of the median: the narrowest at LEVEL, else the whole range. None below LEAST_REPEATS."""
    count = len(values)
    if count < LEAST_REPEATS:
        return None
    ordered = sorted(values)
    # P(fewer than `cut` values lie below the median), a fair coin `count` times.
    tails = [total / 2**count for total in accumulate(math.comb(count, index) for index in range(count // 2 + 1))]
    cut = _cut(tails)
    return ConfidenceInterval(ordered[cut - 1], ordered[count - cut], 1 - 2 * tails[cut - 1])


def ratio_interval(values: Sequence[float], first: Sequence[float]) -> ConfidenceInterval | None:
    """Return the interval of the ratio of `values` to `first`, times above 0. None below LEAST_REPEATS of either."""
    values, first = values[:_MOST_REPEATS], first[:_MOST_REPEATS]
    if min(len(values), len(first)) < LEAST_REPEATS or min(*values, *first) <= 0:
        return None
    ratios = sorted(value / before for value in values for before in first)
    tails = list(accumulate(_mann_whitney(len(values), len(first))))
    cut = _cut(tails[: len(ratios) // 2 + 1])
    return ConfidenceInterval(ratios[cut - 1], ratios[len(ratios) - cut], 1 - 2 * tails[cut - 1])


def mean_interval(values: Sequence[float], level: float = LEVEL) -> ConfidenceInterval | None:
    """Return the interval of the mean, by Student's t. None with less than LEAST_REPEATS."""
    count = len(values)
    if count < LEAST_REPEATS:
        return None
    mean, half = math.fsum(values) / count, _half(values, level)
    return ConfidenceInterval(mean - half, mean + half, level)


def paired_ratio(values: Sequence[float], first: Sequence[float]) -> ConfidenceInterval | None:
    """Return the interval of the ratio of mean times to those of `first`, round by round. None below LEAST_REPEATS.

    On logarithms, so that it is above 0 and that of the inverse is its inverse. By what share each round is above the
    mean of its run has the variance of the logarithm of the ratio, to first order.
    """
    count = len(values)
    if count < LEAST_REPEATS or min(*values, *first) <= 0:
        return None
    here, there = math.fsum(values) / count, math.fsum(first) / count
    shares = [value / here - before / there for value, before in zip(values, first, strict=True)]
    factor = math.exp(_half(shares, LEVEL))
    return ConfidenceInterval(here / there / factor, here / there * factor, LEVEL)


def _half(values: Sequence[float], level: float) -> float:
    """Return half the length of Student's interval of the mean of these values, two or more."""
    count, mean = len(values), math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return student(level, count - 1) * deviation / math.sqrt(count)


@cache
def student(level: float, freedom: int) -> float:
    """Return the t that Student's distribution of so many degrees of freedom stays within with this probability."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """Return P(|T| < tan(angle) sqrt(freedom)): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for index in range(2 if odd else 1, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * index / (index + 1)
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def best_level(count: int, others: int) -> float:
    """Return the highest level of the interval of a ratio of two runs with these numbers of passes."""
    return 1 - 2 / math.comb(count + others, count)


def significant(interval: ConfidenceInterval | None, bound: float = 1.0) -> bool | None:
    """Return True if the interval excludes `bound`; None without an interval."""
    return None if interval is None else not interval.low <= bound <= interval.high


def _cut(tails: Sequence[float]) -> int:
    """Return one plus the number of values that are left out at each end: as many as LEVEL allows."""
    return max(1, bisect_right(tails, (1 - LEVEL) / 2 + 1e-12))


@cache
def _mann_whitney(many: int, others: int) -> list[float]:
    """Return P(U = 0, 1, ...) of the Mann-Whitney statistic of two samples of one distribution, without ties.

    The numbers of arrangements are the coefficients of the Gaussian binomial (many + others over many): the product of
    (1 - q^(others + i)) / (1 - q^i) for i = 1..many.
    """
    size = many * others + 1
    counts = [1] + [0] * (size - 1)
    for step in range(1, many + 1):
        for index in range(size - 1, others + step - 1, -1):
            counts[index] -= counts[index - others - step]
        for index in range(step, size):
            counts[index] += counts[index - step]
    whole = math.comb(many + others, many)
    return [count / whole for count in counts]
