"""Lanes: slices that partly overlap on their track are kept, on a track of their own."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from trace_rows import SLICES, load, losses, rows, x

from molprof.analysis.reader import stacks, survey
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine


def test_partly_overlapping_slices_get_a_lane(engine: TraceProcessor, tmp_path: Path) -> None:
    events = [
        x("c", 7, 10, args={"stream": 7, "correlation": 3}),
        x("a", 0, 10),
        x("b", 5, 10),
        x("inside a", 1, 2),
        x("touches a", 10, 1),
        x("alone", 30, 1),
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "stream 7"}},
    ]
    info = load(engine, tmp_path, events)
    assert (info.lanes, info.lost_events) == (2, 0)
    assert rows(engine.query(SLICES), "name", "ts", "dur", "thread", "home_tid", "pid", "depth") == [
        ("a", 0, 10000, "stream 7", None, 1, 0),
        ("inside a", 1000, 2000, "stream 7", None, 1, 1),
        ("b", 5000, 10000, "stream 7 (lane 2)", 2, 1, 0),
        ("c", 7000, 10000, "stream 7 (lane 3)", 2, 1, 0),
        ("touches a", 10000, 1000, "stream 7", None, 1, 0),
        ("alone", 30000, 1000, "stream 7", None, 1, 0),
    ]
    assert engine.query("SELECT EXTRACT_ARG(arg_set_id, 'args.correlation') AS c FROM slice WHERE name = 'c'")[
        "c"
    ].tolist() == [3]


def test_equal_and_empty_slices_stay_on_their_track(engine: TraceProcessor, tmp_path: Path) -> None:
    events = [
        x("same", 5, 2),
        x("same", 5, 2),
        x("child", 5, 1),
        x("empty", 5, 0),
        x("empty", 7, 0),
        x("next", 7, 1),
    ]
    info = load(engine, tmp_path, events)
    assert (info.lanes, info.lost_events) == (0, 0)
    assert rows(engine.query(SLICES), "name", "ts", "dur") == [
        ("same", 0, 2000), ("same", 0, 2000), ("child", 0, 1000), ("empty", 0, 0),
        ("next", 2000, 1000), ("empty", 2000, 0),
    ]  # fmt: skip


def test_flows_follow_their_slice_to_its_lane(engine: TraceProcessor, tmp_path: Path) -> None:
    events = [
        x("launch", 0, 1, tid=9, cat="cuda_runtime"),
        x("launch", 2, 1, tid=9, cat="cuda_runtime"),
        x("k1", 10, 10, pid=0, tid=7, cat="kernel"),
        x("k2", 15, 10, pid=0, tid=7, cat="kernel"),
    ]
    for number, (start, end) in enumerate([(0, 10), (2, 15)], 1):
        flow = {"cat": "ac2g", "name": "ac2g", "id": number}
        events.append({"ph": "s", "pid": 1, "tid": 9, "ts": start, **flow})
        events.append({"ph": "f", "bp": "e", "pid": 0, "tid": 7, "ts": end, **flow})
    load(engine, tmp_path, events)
    flows = engine.query(
        "SELECT a.ts, b.name FROM flow JOIN slice AS a ON a.id = slice_out JOIN slice AS b ON b.id = slice_in"
        " ORDER BY a.ts"
    )
    assert rows(flows) == [(0, "k1"), (2000, "k2")]


def intervals() -> st.SearchStrategy[list[tuple[int, int, int]]]:
    return st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), max_size=40)


def plain_lanes(slices: list[tuple[int, int, int]], deepest: int) -> list[int]:
    """The first lane into which each slice fits, one after the other."""
    lanes = [0] * len(slices)
    open_slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
    order = sorted(range(len(slices)), key=lambda place: (slices[place][1], -slices[place][2], place))
    for place in order:
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


@hypothesis.given(intervals(), st.sampled_from([0, 1, 16]), st.sampled_from([0, 1, 8]), st.sampled_from([2, 3, 5, 500]))
def test_each_slice_has_the_first_lane_into_which_it_fits(
    slices: list[tuple[int, int, int]], levels: int, few: int, deepest: int
) -> None:
    tracks, starts, lengths = np.array(slices, dtype=np.int64).reshape(-1, 3).T
    lanes = np.zeros(len(slices), dtype=np.int32)
    # What is deeper, and further lanes, are found all at once.
    with mock.patch.multiple(survey, _LEVELS=levels, _FEW_LANES=few):
        order = survey.time_order(starts, starts + lengths)
        survey.assign_lanes(lanes, order, tracks, starts, starts + lengths, deepest)
    assert lanes.tolist() == plain_lanes(slices, deepest)


@hypothesis.given(intervals().filter(len), st.integers(0, 3))
def test_stacks_are_nested_alike_at_any_depth(slices: list[tuple[int, int, int]], levels: int) -> None:
    def paths() -> list[tuple[int, list[int]]]:
        threads, starts, lengths = np.array(slices, dtype=np.int64).reshape(-1, 3).T
        around, path, outer, name = stacks.Nest(threads, starts, starts + lengths, lengths % 3).nested
        found = []
        for slice_, place in zip(around.tolist(), path.tolist(), strict=True):
            names: list[int] = []
            while place >= 0:
                names, place = [int(name[place]), *names], int(outer[place])
            found.append((slice_, names))
        assert len(set(zip(outer.tolist(), name.tolist(), strict=True))) == len(name)
        return found

    expected = paths()
    with mock.patch.object(stacks, "_LEVELS", levels):
        assert paths() == expected


def nested(count: int, length: float = 9000, **more: Any) -> list[dict[str, Any]]:
    return [x(f"outer {i}", i, length - 2 * i, **more) for i in range(count)]


@pytest.mark.parametrize("all_args", [True, False])
def test_arguments_are_kept_at_any_depth(engine: TraceProcessor, tmp_path: Path, all_args: bool) -> None:
    copies = {"cat": "gpu_memcpy", "pid": 0}
    events = [
        *nested(1200),
        x("launch", 1500, 1, cat="cuda_runtime", args={"correlation": 7}),
        {"ph": "i", "s": "t", "name": "note", "cat": "note", "pid": 1, "tid": 2, "ts": 1600, "args": {"bytes": 7}},
        *(x("copy", 5000, 2, tid=7, args={"bytes": 4, "stream": 7}, **copies) for _ in range(2000)),
        *(x("copy", 5000 + i / 1000, 9 - i / 500, tid=8, args={"bytes": 4}, **copies) for i in range(2000)),
        *(x("copy", 5000, 0, tid=9, args={"bytes": 4}, **copies) for _ in range(2000)),
    ]
    info = load(engine, tmp_path, events, all_args=all_args)
    assert (info.lost_events, info.deep_events) == (0, 701)
    sums = "SELECT name, SUM(EXTRACT_ARG(arg_set_id, 'args.bytes')) AS bytes FROM slice WHERE arg_set_id GROUP BY name"
    assert dict(rows(engine.query(f"{sums} HAVING bytes > 0"))) == {"copy": 24_000, "note": 7}
    assert engine.query("SELECT MAX(depth) AS depth FROM slice")["depth"].tolist() == [500]
    (parent,) = engine.query(
        "SELECT outer.name FROM slice JOIN slice AS outer ON outer.id = slice.parent_id WHERE slice.name = 'launch'"
        " AND EXTRACT_ARG(slice.arg_set_id, 'args.correlation') = 7"
    )["name"]
    assert parent == "outer 1199"


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    (0, 0),
                    (0, 7),
                    (1, 0),
                    (1, 1),
                    (1, 2),
                    (2, 1),
                    (2, 2),
                    ("Spans", "a b"),
                    (-1, 2**40),
                    (1, "two"),
                ]
            ),
            st.integers(0, 30),
            st.integers(0, 12),
            st.sampled_from(["kernel", "cpu_op", None]),
        ),
        max_size=60,
    ),
    st.sampled_from([0, 1712195495519689047]),
)
def test_random_slices_come_out_as_they_went_in(
    tmp_path_factory: pytest.TempPathFactory,
    slices: list[tuple[tuple[Any, Any], int, int, str | None]],
    origin_ns: int,
) -> None:
    events = []
    for (pid, tid), start, length, cat in slices:
        ts_ns = origin_ns + start
        ts = f"{ts_ns // 1000}.{ts_ns % 1000:03d}"
        category = "" if cat is None else f'"cat":"{cat}",'
        events.append(
            f'{{"ph":"X",{category}"name":"{pid}/{tid}","pid":{json.dumps(pid)},"tid":{json.dumps(tid)},'
            f'"ts":{ts},"dur":0.{length:03d}}}'
        )
    path = tmp_path_factory.mktemp("random") / "trace.json"
    path.write_text('{"traceEvents":[' + ",".join(events) + "]}")
    with open_engine() as engine:
        info = load_trace(path, engine)
        columns = engine.query(SLICES)
        stats = losses(engine)
    assert info.lost_events == 0
    assert stats == {}
    assert info.events_by_category == dict(sorted(Counter(str(cat) for *_, cat in slices).items()))
    base = min((start for _, start, _, _ in slices), default=0)
    assert info.origin_ns == (origin_ns + base if slices else 0)
    assert Counter(rows(columns, "name", "category", "ts", "dur")) == Counter(
        (f"{pid}/{tid}", cat, start - base, length) for (pid, tid), start, length, cat in slices
    )
    # Tracks of the file stay apart, and numbers that can be kept are.
    places: dict[tuple[int, int], set[str]] = {}
    for name, pid, tid, home in rows(columns, "name", "pid", "tid", "home_tid"):
        places.setdefault((pid, tid if home is None else home), set()).add(name)
    assert all(len(names) == 1 for names in places.values())
    for (pid, tid), names in places.items():
        (name,) = names
        if name in ("0/0", "0/7", "1/1", "1/2", "2/1", "2/2"):
            assert f"{pid}/{tid}" == name
