"""Intervals from repeats: exact levels, exact bounds, and nothing where too few repeats tell."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molprof.analysis.compare import statistics
from molprof.analysis.compare.statistics import Interval, best_level, median_interval, ratio_interval, significant

TIMES = st.lists(st.integers(1, 10**12), min_size=3, max_size=8)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5, 1], None),
        ([3, 1, 2], Interval(1, 3, 0.75)),
        ([1, 2, 3, 4, 5], Interval(1, 5, 0.9375)),
        ([6, 5, 4, 3, 2, 1], Interval(1, 6, 0.96875)),
        # Tables of the sign test: of 20, from the 6th to the 15th.
        (list(range(1, 21)), Interval(6, 15, 1 - 2 * sum(math.comb(20, k) for k in range(6)) / 2**20)),
    ],
)
def test_the_interval_of_a_median(values: list[float], expected: Interval | None) -> None:
    assert median_interval(values) == expected


@pytest.mark.parametrize(
    ("values", "first", "expected"),
    [
        ([2, 3, 4], [1, 2], None),
        ([2, 4, 6], [1, 2, 0], None),
        ([2, 3, 4], [1, 2, 3], Interval(2 / 3, 4, 0.9)),
        ([20, 30, 40, 50], [10, 10, 10, 10], Interval(2, 5, 1 - 2 / 70)),
        # Tables of the rank-sum test: for 5 and 5 repeats at 95 % two ratios are left out at each end.
        ([10, 20, 30, 40, 50], [1, 1, 1, 1, 1], Interval(10, 50, 1 - 2 * 4 / 252)),
    ],
)
def test_the_interval_of_a_ratio(values: list[float], first: list[float], expected: Interval | None) -> None:
    found = ratio_interval(values, first)
    assert (found is None) is (expected is None)
    if found is not None and expected is not None:
        assert (found.low, found.high) == (expected.low, expected.high)
        assert found.level == pytest.approx(expected.level)


@pytest.mark.parametrize(("many", "others"), [(3, 3), (3, 4), (4, 4), (2, 5)])
def test_the_distribution_is_that_of_all_arrangements(many: int, others: int) -> None:
    """Counted out: each choice of ranks is as likely as any other."""
    counts = Counter(
        sum(rank - place for place, rank in enumerate(ranks))
        for ranks in itertools.combinations(range(many + others), many)
    )
    expected = [counts[value] / math.comb(many + others, many) for value in range(many * others + 1)]
    assert statistics._mann_whitney(many, others).tolist() == pytest.approx(expected)


def test_levels() -> None:
    assert [round(best_level(count, count), 3) for count in (3, 4, 5)] == [0.9, 0.971, 0.992]


@given(TIMES, TIMES)
def test_a_ratio_and_its_inverse_agree(values: list[int], first: list[int]) -> None:
    there, back = ratio_interval(values, first), ratio_interval(first, values)
    assert there is not None
    assert back is not None
    assert there.level == pytest.approx(back.level)
    assert (1 / there.low, 1 / there.high) == pytest.approx((back.high, back.low))
    assert significant(there) is significant(back)


@given(TIMES)
def test_a_run_does_not_differ_from_itself(values: list[int]) -> None:
    assert significant(ratio_interval(values, values)) is False
    interval = median_interval(values)
    assert interval is not None
    assert interval.low <= sorted(values)[len(values) // 2] <= interval.high


def test_many_repeats_stay_cheap() -> None:
    interval = ratio_interval(range(1000, 1200), range(1000, 1200))
    assert interval is not None
    assert interval.reached


def test_significance() -> None:
    assert significant(Interval(1.1, 1.2, 0.9)) is True
    assert significant(Interval(0.9, 1.2, 0.9)) is False
    assert significant(Interval(1.1, 1.2, 0.9), 1.15) is False
    assert significant(None) is None
