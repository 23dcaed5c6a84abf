"""Host time by phase and frame, in windows that may overlap, against a count of each nanosecond."""

from __future__ import annotations

from collections import Counter

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from test_nesting import INTERVALS, columns, few

from molprof.analysis.facts.intervals import Coverage
from molprof.analysis.facts.nesting import Nesting
from molprof.analysis.origin.host import _Lanes, _own_times


@few
@hypothesis.given(INTERVALS, INTERVALS, st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=9))
def test_each_nanosecond_counts_for_the_innermost_frame(
    windows: list[tuple[int, int, int]], phases: list[tuple[int, int, int]], frames: list[tuple[int, int]]
) -> None:
    merged = Coverage(*columns(phases))
    lanes = _Lanes(["a", "b"], merged.keys, merged.starts, merged.ends, np.arange(len(merged.keys)) % 2)
    # Nested: each frame of a thread begins and ends inside the one before, at most four deep.
    nested = [(thread, depth, 20 - 2 * depth) for thread, depth in dict.fromkeys(frames)]
    nest = Nesting(*columns(nested), np.arange(len(nested)))
    times = {(phase, frame): time_ns for phase, frame, time_ns in _own_times(columns(windows), lanes, nest)}
    nest_spans = nest.threads, nest.starts, nest.ends - nest.starts
    expected: Counter[tuple[str | None, int | None]] = Counter()
    spans = list(zip(lanes.threads, lanes.starts, lanes.ends, lanes.phase, strict=True))
    for thread, start, length in windows:
        for moment in range(start, start + length):
            phase = [lanes.phases[which] for key, ts, end, which in spans if key == thread and ts <= moment < end]
            around = [
                (ts, index)
                for index, (key, ts, dur) in enumerate(zip(*nest_spans, strict=True))
                if key == thread and ts <= moment < ts + dur
            ]
            expected[phase[0] if phase else None, max(around)[1] if around else None] += 1
    assert times == expected


@pytest.mark.parametrize("count", [20_000])
def test_many_windows_over_many_frames_are_not_paired(count: int) -> None:
    """As many GPUs that wait for one thread: pairs would take 400 million entries, 13 GB."""
    ends = np.arange(count, dtype=np.int64)
    zero = np.zeros(count, dtype=np.int64)
    nest = Nesting(zero, 10 * ends, 10 * ends + 10, np.arange(count))
    none = np.array([], dtype=np.int64)
    times = list(_own_times((zero, zero, zero + 10 * count), _Lanes([], none, none, none, none), nest))
    assert len(times) == count
    assert {time_ns for *_, time_ns in times} == {10 * count}
