"""Intervals from repeats have exact levels and bounds; too few repeats give none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molprof.analysis.compare.statistics import (
    ConfidenceInterval,
    best_level,
    mean_interval,
    median_interval,
    paired_ratio,
    ratio_interval,
    significant,
    student,
)

TIMES = st.lists(st.integers(1, 10**12), min_size=3, max_size=8)


def same(found: ConfidenceInterval | None, expected: tuple[float, float, float] | None) -> None:
    bounds = None if found is None else (found.low, found.high, found.level)
    assert bounds == (None if expected is None else pytest.approx(expected, abs=1e-4))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5, 1], None),
        ([3, 1, 2], (1, 3, 0.75)),
        ([1, 2, 3, 4, 5], (1, 5, 0.9375)),
        ([6, 5, 4, 3, 2, 1], (1, 6, 0.96875)),
        # Tables of the sign test: of 20, from the 6th to the 15th.
        (list(range(1, 21)), (6, 15, 1 - 2 * sum(math.comb(20, k) for k in range(6)) / 2**20)),
    ],
)
def test_the_interval_of_a_median(values: list[float], expected: tuple[float, float, float] | None) -> None:
    same(median_interval(values), expected)


@pytest.mark.parametrize(
    ("values", "first", "expected"),
    [
        ([2, 3, 4], [1, 2], None),
        ([2, 4, 6], [1, 2, 0], None),
        ([2, 3, 4], [1, 2, 3], (2 / 3, 4, 0.9)),
        ([20, 30, 40, 50], [10, 10, 10, 10], (2, 5, 1 - 2 / 70)),
        # Tables of the rank-sum test: for 5 and 5 repeats at 95 % two ratios are left out at each end.
        ([10, 20, 30, 40, 50], [1, 1, 1, 1, 1], (10, 50, 1 - 2 * 4 / 252)),
    ],
)
def test_the_interval_of_a_ratio(
    values: list[float], first: list[float], expected: tuple[float, float, float] | None
) -> None:
    same(ratio_interval(values, first), expected)


@pytest.mark.parametrize(
    ("values", "expected"), [([1.0, 2.0], None), ([1.0, 2.0, 3.0], (2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5, 0.95))]
)
def test_the_interval_of_a_mean(values: list[float], expected: tuple[float, float, float] | None) -> None:
    same(mean_interval(values), expected)


@pytest.mark.parametrize(
    ("values", "first", "expected"),
    [
        ([2.0, 8.0], [1.0, 1.0], None),
        ([30.0, 31.5, 27.0], [10.0, 10.5, 9.0], (3.0, 3.0, 0.95)),
        ([3.0, 30.0, 300.0], [1.0, 10.0, 100.0], (3.0, 3.0, 0.95)),
        # e^(4.3027 s / 3**0.5), where s**2 = (0.1**2 + 0.1**2) / 2
        ([9.0, 11.0, 10.0], [5.0, 5.0, 5.0], (2 / 1.28199, 2 * 1.28199, 0.95)),
    ],
)
def test_the_interval_of_paired_rounds(
    values: list[float], first: list[float], expected: tuple[float, float, float] | None
) -> None:
    same(paired_ratio(values, first), expected)


@pytest.mark.parametrize("noise", [0.0, 0.1, 4.0, 30.0])
def test_the_interval_of_paired_rounds_is_above_0_holds_their_ratio_and_inverts(noise: float) -> None:
    first = [10.0, 13.0, 11.0 + 20 * noise]
    values = [10.5 + noise, 14.0, 12.0]
    ratio, back = paired_ratio(values, first), paired_ratio(first, values)
    assert ratio is not None
    assert back is not None
    assert 0 < ratio.low < sum(values) / sum(first) < ratio.high
    assert (1 / ratio.low, 1 / ratio.high) == pytest.approx((back.high, back.low))


@given(TIMES, TIMES)
def test_a_ratio_and_its_inverse_agree_and_a_run_does_not_differ_from_itself(
    values: list[int], first: list[int]
) -> None:
    there, back, alike = (ratio_interval(*pair) for pair in ((values, first), (first, values), (values, values)))
    assert there is not None
    assert back is not None
    assert there.level == pytest.approx(back.level)
    assert (1 / there.low, 1 / there.high) == pytest.approx((back.high, back.low))
    assert significant(there) is significant(back)
    assert significant(alike) is False
    middle = median_interval(values)
    assert middle is not None
    assert middle.low <= sorted(values)[len(values) // 2] <= middle.high


def test_levels_and_significance() -> None:
    assert [round(best_level(count, count), 3) for count in (3, 4, 5)] == [0.9, 0.971, 0.992]
    cases = [
        (ConfidenceInterval(1.1, 1.2, 0.9), 1.0),
        (ConfidenceInterval(0.9, 1.2, 0.9), 1.0),
        (ConfidenceInterval(1.1, 1.2, 0.9), 1.15),
    ]
    assert [significant(*case) for case in [*cases, (None, 1.0)]] == [True, False, False, None]
    found = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 9: 2.2622, 30: 2.0423}  # from tables
    assert [student(0.95, freedom) for freedom in found] == pytest.approx(list(found.values()), abs=1e-4)
    many = ratio_interval(range(1000, 1200), range(1000, 1200))
    assert many is not None
    assert many.reached
