"""Which steps of a capture are recorded."""

from __future__ import annotations

import pytest

from molprof.common.errors import UsageError
from molprof.common.manifest import Window
from molprof.profiler.capture.recorded_pass import choose_window
from molprof.profiler.engines.batches import BatchResult, PassResult


def result_of(*lengths: int, appended: tuple[tuple[int, ...], ...] | None = None) -> PassResult:
    rows = tuple(tuple(range(length)) for length in lengths)
    steps = max(lengths if appended is None else map(len, appended))
    return PassResult((BatchResult(rows, steps, None, appended, (len(rows),) * steps, None),), 1, 0, 0)


@pytest.mark.parametrize(
    ("asked", "lengths", "window"),
    [
        (None, (100, 90), (20, 39)),
        (None, (100, 40), (20, 39)),
        (None, (100, 30), (10, 29)),
        (None, (100, 15), (1, 14)),
        (None, (100, 1), (0, 0)),
        ((0, 3), (10, 5), (0, 3)),
        ((5, 99), (10, 5), (5, 9)),
    ],
)
def test_window(asked: tuple[int, int] | None, lengths: tuple[int, ...], window: tuple[int, int]) -> None:
    assert choose_window(asked, False, result_of(*lengths)) == Window(False, 0, *window)


def test_window_of_steps_that_made_several_tokens() -> None:
    result = result_of(9, 4, appended=((5, 1, 1, 2), (3, 1)))
    assert choose_window(None, False, result) == Window(False, 0, 1, 1)
    assert choose_window((1, 9), False, result) == Window(False, 0, 1, 3)
    assert [result.batches[0].written(row, 2) for row in (0, 1)] == [(0, 1, 2, 3, 4, 5), (0, 1, 2, 3)]


def test_window_after_the_end() -> None:
    with pytest.raises(UsageError, match="window 10:20 begins after the first batch's last step 9"):
        choose_window((10, 20), False, result_of(10, 5))
