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

from molprof.analysis.reader import survey
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


@hypothesis.given(intervals(), st.sampled_from([0, 1, 16]))
def test_lanes_are_stacks(slices: list[tuple[int, int, int]], levels: int) -> None:
    tracks, starts, lengths = (
        (np.array(column, dtype=np.int64) for column in zip(*slices, strict=True))
        if slices
        else (np.empty(0, dtype=np.int64),) * 3
    )
    lanes = np.zeros(len(slices), dtype=np.int32)
    with mock.patch.object(survey, "_LEVELS", levels):  # of the rest, all at once
        survey.assign_lanes(lanes, survey.time_order(starts, starts + lengths), tracks, starts, starts + lengths)
    placed = [(track, lane, start, start + length) for (track, start, length), lane in zip(slices, lanes, strict=True)]
    crossing = [(a, b) for a, b in itertools.permutations(placed, 2) if a[:2] == b[:2] and a[2] < b[2] < a[3] < b[3]]
    assert crossing == []
    # None moves without a reason.
    if not any(a[0] == b[0] and a[2] < b[2] < a[3] < b[3] for a, b in itertools.permutations(placed, 2)):
        assert set(lanes.tolist()) <= {0}


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
