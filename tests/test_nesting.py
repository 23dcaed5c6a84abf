"""Nested slices equal the plain reference: parents, ancestors, and the time that windows share with slices."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from molprof.analysis.facts.intervals import Depth, shared
from molprof.analysis.facts.nesting import Nesting, ancestors

few = hypothesis.settings(max_examples=50, deadline=None)
# Thread, start and length.
INTERVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), max_size=40)


def columns(slices: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    threads, starts, lengths = np.array(slices, dtype=np.int64).reshape(-1, 3).T
    return threads, starts, starts + lengths


def test_ancestors() -> None:
    parents = {1: None, 2: 1, 3: 2, 4: 9}
    assert [list(ancestors(item, parents)) for item in (None, 1, 3)] == [[], [1], [3, 2, 1]]
    with pytest.raises(KeyError, match="9"):
        list(ancestors(4, parents))


@few
@hypothesis.given(INTERVALS.filter(len), st.sampled_from([1, 9]))
@hypothesis.example([(0, 0, 8)], 300)
def test_slices_are_nested_as_one_after_the_other(slices: list[tuple[int, int, int]], often: int) -> None:
    threads, starts, ends = columns(slices * often)
    nest = Nesting(threads, starts, ends, (ends - starts) % 3)
    around, path, outer, name = nest.nested
    assert len(set(zip(outer.tolist(), name.tolist(), strict=True))) == len(name)
    stack: list[int] = []
    expected: dict[int, tuple[int, ...]] = {-1: ()}  # names of each slice and those around it
    for place, (thread, start) in enumerate(zip(nest.threads, nest.starts, strict=True)):
        while stack and (nest.threads[stack[-1]] != thread or nest.ends[stack[-1]] <= start):
            stack.pop()
        holder = stack[-1] if stack else -1
        assert around[place] == holder
        expected[place] = (*expected[holder], int(nest.names[place]))
        stack.append(place)
        names, at = (), int(path[place])
        while at >= 0:
            names, at = (int(name[at]), *names), int(outer[at])
        assert names == expected[place]


@few
@hypothesis.given(INTERVALS, INTERVALS)
def test_the_innermost_slice_around_others(
    slices: list[tuple[int, int, int]], others: list[tuple[int, int, int]]
) -> None:
    nesting = Nesting(*columns(slices), np.zeros(len(slices), dtype=np.int64))
    rows = list(zip(nesting.threads.tolist(), nesting.starts.tolist(), nesting.ends.tolist(), strict=True))
    expected = []
    for thread, start, length in others:
        # An inner slice stands behind those around it.
        around = [
            place
            for place, (own, first, last) in enumerate(rows)
            if own == thread and first <= start < last and start + length <= last
        ]
        expected.append(max(around, default=-1))
    assert nesting.around(*columns(others)).tolist() == expected


@few
@hypothesis.given(INTERVALS, INTERVALS, st.sampled_from([1, 2**57]))
def test_time_that_windows_share_with_intervals_of_their_key(
    intervals: list[tuple[int, int, int]], windows: list[tuple[int, int, int]], scale: int
) -> None:
    (keys, starts, ends), (window_keys, begins, stops) = columns(intervals), columns(windows)
    one, other = (keys, starts * scale, ends * scale), (window_keys, begins * scale, stops * scale)
    expected = [
        (row, window, scale * max(start, begin), scale * min(start + length, begin + span))
        for row, (key, start, length) in enumerate(intervals)
        for window, (window_key, begin, span) in enumerate(windows)
        if key == window_key and max(start, begin) < min(start + length, begin + span)
    ]
    assert sorted(zip(*(column.tolist() for column in shared(one, other)), strict=True)) == expected
    times = [sum(last - first for _, row, first, last in expected if row == window) for window in range(len(windows))]
    assert Depth(*one).time(*other).tolist() == times
