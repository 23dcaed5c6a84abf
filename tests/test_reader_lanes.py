"""The reader puts slices that partly overlap on sub-tracks, and loses none."""

from __future__ import annotations

import itertools
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
from trace_rows import ARGS, SLICES, load, rows, x

from molprof.analysis.facts.lanes import assign_lanes, time_order
from molprof.analysis.trace_processor import TraceProcessor


def test_partly_overlapping_slices_get_a_lane(engine: TraceProcessor, tmp_path: Path) -> None:
    events = [
        x("c", 7, 10, args={"stream": 7, "correlation": 3}),
        *(x("a", 0, 10), x("b", 5, 10), x("inside a", 1, 2), x("touches a", 10, 1), x("alone", 30, 1)),
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "stream 7"}},
        *(
            x("same", 45, 2),
            x("same", 45, 2),
            x("child", 45, 1),
            x("empty", 45, 0),
            x("empty", 47, 0),
            x("next", 47, 1),
        ),
    ]
    info = load(engine, tmp_path, events)
    assert (info.lanes, info.lost_events) == (2, 0)
    columns = ("name", "ts", "dur", "thread", "home_tid", "depth")
    assert rows(engine.query(SLICES), *columns) == [
        ("a", 0, 10000, "stream 7", None, 0),
        ("inside a", 1000, 2000, "stream 7", None, 1),
        ("b", 5000, 10000, "stream 7 (lane 2)", 2, 0),
        ("c", 7000, 10000, "stream 7 (lane 3)", 2, 0),
        ("touches a", 10000, 1000, "stream 7", None, 0),
        ("alone", 30000, 1000, "stream 7", None, 0),
        ("same", 45000, 2000, "stream 7", None, 0),
        ("same", 45000, 2000, "stream 7", None, 1),
        ("child", 45000, 1000, "stream 7", None, 2),
        ("empty", 45000, 0, "stream 7", None, 3),
        ("next", 47000, 1000, "stream 7", None, 0),
        ("empty", 47000, 0, "stream 7", None, 1),
    ]
    assert rows(engine.query(ARGS), "name", "key", "value")[0] == ("c", "args.correlation", 3)


def test_flows_follow_their_slice_to_its_lane(engine: TraceProcessor, tmp_path: Path) -> None:
    events = [x("launch", ts, 1, tid=9, cat="cuda_runtime") for ts in (0, 2)]
    events += [x(f"k{number}", ts, 10, pid=0, tid=7, cat="kernel") for number, ts in ((1, 10), (2, 15))]
    for number, (start, end) in enumerate([(0, 10), (2, 15)], 1):
        flow = {"cat": "ac2g", "name": "ac2g", "id": number}
        events.append({"ph": "s", "pid": 1, "tid": 9, "ts": start, **flow})
        events.append({"ph": "f", "bp": "e", "pid": 0, "tid": 7, "ts": end, **flow})
    load(engine, tmp_path, events)
    sql = "SELECT a.ts, b.name FROM flow JOIN slice AS a ON a.id = slice_out JOIN slice AS b ON b.id = slice_in "
    assert sorted(rows(engine.query(sql))) == [(0, "k1"), (2000, "k2")]


INTERVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), max_size=40)


def plain_lanes(slices: list[tuple[int, int, int]], deepest: int) -> list[int]:
    """The first lane into which each slice fits, one after the other."""
    lanes = [0] * len(slices)
    open_slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for place in sorted(range(len(slices)), key=lambda place: (slices[place][1], -slices[place][2], place)):
        track, start, length = slices[place]
        for lane in itertools.count():
            stack = open_slices.setdefault((track, lane), [])
            # The engine nests empty slices of one moment.
            while stack and stack[-1][1] <= start and stack[-1] != (start, start):
                stack.pop()
            if not stack or (start + length <= stack[-1][1] and len(stack) < deepest):
                stack.append((start, start + length))
                lanes[place] = lane
                break
    return lanes


@hypothesis.settings(deadline=None)
@hypothesis.example([(0, start % 40, 12) for start in range(80)], 1, 500)
@hypothesis.given(INTERVALS, st.sampled_from([1, 12]), st.sampled_from([2, 3, 5, 500]))
def test_each_slice_has_the_first_lane_into_which_it_fits(
    slices: list[tuple[int, int, int]], often: int, deepest: int
) -> None:
    """Many times each, they are nested deeper, and on more lanes, than is found level by level."""
    slices = slices * often
    tracks, starts, lengths = np.array(slices, dtype=np.int64).reshape(-1, 3).T
    lanes = np.zeros(len(slices), dtype=np.int32)
    assign_lanes(lanes, time_order(starts, starts + lengths), tracks, starts, starts + lengths, deepest)
    assert lanes.tolist() == plain_lanes(slices, deepest)
