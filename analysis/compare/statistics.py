"""How sure a figure is: intervals from repeats, without assuming a distribution.

A run's median has the interval between two order statistics, with the exact level that the binomial distribution
gives (Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3.6; benchstat prints the same). The ratio of two
runs has the interval between two order statistics of all ratios of a repeat of one to a repeat of the other, with the
exact level that the distribution of the Mann-Whitney statistic gives (ibid. 4.3, Moses, on logarithms): it assumes that
the runs' times differ by a factor. The level is the least that is LEVEL or more; few repeats reach less, and the level
that they reach is a part of the result. Four repeats of each of two runs reach 97 % for their ratio, three 90 %; for
one run's median, six repeats reach 97 %, three 75 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

LEVEL = 0.95
# Fewer repeats of either run, and nothing is said about significance.
LEAST_REPEATS = 3
# Of each of two runs: their ratio's interval reaches LEVEL.
ENOUGH_REPEATS = 4
# Of more, these many say enough: the exact distribution costs the cube of their number.
_MOST_REPEATS = 60


@dataclass(frozen=True)
class Interval:
    """What a figure lies in, with probability `level` or more; in the figure's unit."""

    low: float
    high: float
    level: float

    @property
    def reached(self) -> bool:
        """The repeats were enough for LEVEL."""
        return self.level >= LEVEL


def median_interval(values: Sequence[float]) -> Interval | None:
    """Of the median of what `values` are drawn from: the narrowest at LEVEL, else the whole range with its level.

    None with less than LEAST_REPEATS.
    """
    count = len(values)
    if count < LEAST_REPEATS:
        return None
    ordered = sorted(values)
    # P(fewer than `cut` values lie below the median), a fair coin `count` times.
    tails = np.cumsum([math.comb(count, place) for place in range(count // 2 + 1)]) / 2**count
    cut = _cut(tails)
    return Interval(ordered[cut - 1], ordered[count - cut], 1 - 2 * float(tails[cut - 1]))


def ratio_interval(values: Sequence[float], first: Sequence[float]) -> Interval | None:
    """Of the factor from `first` to `values`, times above 0. None with less than LEAST_REPEATS of either."""
    values, first = values[:_MOST_REPEATS], first[:_MOST_REPEATS]
    if min(len(values), len(first)) < LEAST_REPEATS or min(*values, *first) <= 0:
        return None
    ratios = np.sort(np.divide.outer(np.asarray(values, float), np.asarray(first, float)), axis=None)
    tails = np.cumsum(_mann_whitney(len(values), len(first)))
    cut = _cut(tails[: len(ratios) // 2 + 1])
    return Interval(float(ratios[cut - 1]), float(ratios[len(ratios) - cut]), 1 - 2 * float(tails[cut - 1]))


def best_level(count: int, others: int) -> float:
    """The level that the interval of a ratio of so many repeats to so many can reach."""
    return 1 - 2 / math.comb(count + others, count)


def significant(interval: Interval | None, bound: float = 1.0) -> bool | None:
    """Whether the ratio is certainly another than `bound`; None where too few repeats tell."""
    return None if interval is None else not interval.low <= bound <= interval.high


def _cut(tails: np.ndarray) -> int:
    """How many values to leave out at each end, plus one: as many as LEVEL allows."""
    return max(1, int(np.searchsorted(tails, (1 - LEVEL) / 2 + 1e-12, side="right")))


@cache
def _mann_whitney(many: int, others: int) -> np.ndarray:
    """P(U = 0, 1, ...) of the Mann-Whitney statistic of two samples of one distribution, without ties.

    The numbers of arrangements are the coefficients of the Gaussian binomial (many + others over many): the product of
    (1 - q^(others + i)) / (1 - q^i) for i = 1..many.
    """
    size = many * others + 1
    counts = [0] * size
    counts[0] = 1
    for step in range(1, many + 1):
        for place in range(size - 1, others + step - 1, -1):
            counts[place] -= counts[place - others - step]
        for place in range(step, size):
            counts[place] += counts[place - step]
    whole = math.comb(many + others, many)
    return np.array([count / whole for count in counts])
