"""The reader: nothing lost, times exact, any layout, and errors that name the place."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from molprof.analysis.engine import Columns, Engine, open_engine
from molprof.analysis.reader import TraceInfo, document, load_trace, unpack
from molprof.analysis.reader.lanes import assign_lanes
from molprof.analysis.reader.text import may_have_wide_integer, needs_plain
from molprof.analysis.reader.times import nanoseconds
from molprof.errors import TraceError

SLICES = """
    SELECT s.name, s.category, s.ts, s.dur, t.tid, t.name AS thread, p.pid, p.name AS process,
        EXTRACT_ARG(s.arg_set_id, 'args.molprof_tid') AS home_tid, s.depth
    FROM slice AS s
    LEFT JOIN thread_track AS tt ON tt.id = s.track_id
    LEFT JOIN thread AS t USING (utid)
    LEFT JOIN process AS p USING (upid)
    ORDER BY s.ts, -s.dur, s.name, s.id
"""


@pytest.fixture
def engine() -> Iterator[Engine]:
    with open_engine() as engine:
        yield engine


def x(name: str, ts: Any, dur: Any, pid: Any = 1, tid: Any = 2, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, **more}


def load(engine: Engine, tmp_path: Path, trace: Any, **options: Any) -> TraceInfo:
    """Loads a trace given as a list of events, as a whole document, or as text."""
    path = tmp_path / "trace.json"
    if isinstance(trace, list):
        trace = {"traceEvents": trace}
    path.write_bytes(trace if isinstance(trace, bytes) else json.dumps(trace).encode())
    return load_trace(path, engine, **options)


def rows(columns: Columns, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(columns[name].tolist() for name in names or columns), strict=True))


# Real traces.


def corpus() -> Path:
    folder = os.environ.get("MOLPROF_CORPUS")
    if not folder:
        pytest.skip("MOLPROF_CORPUS is not set: no real traces to read")
    return Path(folder)


def corpus_names() -> list[str]:
    folder = os.environ.get("MOLPROF_CORPUS")
    return sorted(path.name for path in Path(folder, "traces").glob("*.json.gz")) if folder else ["(corpus)"]


def oracle(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("oracle", folder / "oracle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", corpus_names())
def test_real_traces_are_whole_and_exact(name: str, engine: Engine) -> None:
    folder = corpus()
    path = folder / "traces" / name
    ns = oracle(folder).ns
    info = load_trace(path, engine)
    expected = json.loads((folder / "expected.json").read_text())[name]
    assert info.events_by_category == expected["trace"]["events_by_category"]
    assert (info.lost_events, info.complete, info.problem, info.unread_events) == (0, True, None, 0)
    assert info.bytes == path.stat().st_size

    # Every slice: name, category, exact start and duration, place, and where its launch is found.
    with gzip.open(path) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    complete = [event for event in events if event.get("ph") == "X"]
    wanted = Counter(
        (
            event["name"],
            event.get("cat"),
            ns(event["ts"]) - info.origin_ns,
            ns(event.get("dur", 0)),
            event["tid"] if isinstance(event["tid"], int) and event["tid"] > 0 else None,
            (event.get("args") or {}).get("correlation"),
        )
        for event in complete
    )
    seen = engine.query(
        """
        SELECT s.name, s.category, s.ts, s.dur,
            COALESCE(EXTRACT_ARG(s.arg_set_id, 'args.molprof_tid'), t.tid) AS tid,
            EXTRACT_ARG(s.arg_set_id, 'args.correlation') AS correlation
        FROM slice AS s JOIN thread_track AS tt ON tt.id = s.track_id JOIN thread AS t USING (utid)
        WHERE IFNULL(s.category, '') != 'cpu_instant_event'
        """
    )
    shown = Counter(
        (name, category, ts, dur, tid if 0 < tid < 2**31 else None, correlation)
        for name, category, ts, dur, tid, correlation in rows(seen)
    )
    assert shown == wanted
    kernels = engine.query("SELECT SUM(dur) AS ns, COUNT(*) AS n FROM slice WHERE category = 'kernel'")
    assert rows(kernels) == [(expected["counts"]["kernel_time_ns"], expected["counts"]["kernels"])]


@pytest.mark.parametrize("name", corpus_names())
def test_without_stacks_the_counts_stay_and_the_rest_is_the_same(name: str, engine: Engine) -> None:
    folder = corpus()
    info = load_trace(folder / "traces" / name, engine, stacks=False)
    expected = json.loads((folder / "expected.json").read_text())[name]["trace"]["events_by_category"]
    assert info.events_by_category == expected
    assert info.lost_events == 0
    assert info.stacks == ("python_function" not in expected)
    by_category = dict(
        rows(engine.query("SELECT category, COUNT(*) AS n FROM slice WHERE category IS NOT NULL GROUP BY 1"))
    )
    by_category.pop("cpu_instant_event", None)
    assert by_category == {category: n for category, n in expected.items() if category != "python_function"}


def test_lanes_of_real_traces_are_those_that_overlap(engine: Engine) -> None:
    info = load_trace(corpus() / "traces" / "b200_vllm_eager.json.gz", engine)
    lanes = engine.query(
        """
        SELECT s.category, COUNT(*) AS n, MIN(EXTRACT_ARG(s.arg_set_id, 'args.molprof_tid')) AS home
        FROM slice AS s JOIN thread_track AS tt ON tt.id = s.track_id JOIN thread AS t USING (utid)
        WHERE t.name GLOB '*(lane [0-9])' GROUP BY s.category ORDER BY s.category
        """
    )
    assert rows(lanes) == [
        ("cpu_op", 2, 6583), ("kernel", 38, 7), ("python_function", 1, 6583), ("user_annotation", 1, 6583),
    ]  # fmt: skip
    assert info.lanes == 42


# Times.


def test_times_are_exact_whatever_their_size(engine: Engine, tmp_path: Path) -> None:
    text = b"""[
      {"ph":"X","cat":"a","name":"first","pid":1,"tid":2,"ts":1712195495519689.047,"dur":63.813},
      {"ph":"X","cat":"a","name":"second","pid":1,"tid":3,"ts":1712195495519690.1,"dur":0.001},
      {"ph":"X","cat":"a","name":"third","pid":1,"tid":4,"ts":"1712195495519691","dur":1.2345e1},
      {"ph":"X","cat":"a","name":"half even","pid":1,"tid":5,"ts":1712195495519692.0005,"dur":0.0015},
      {"ph":"X","cat":"a","name":"end","pid":1,"tid":5,"ts":1715195495519692.999,"dur":1000000000.001}
    ]"""
    info = load(engine, tmp_path, text)
    assert info.origin_ns == 1712195495519689047
    assert rows(engine.query(SLICES), "name", "ts", "dur") == [
        ("first", 0, 63813),
        ("second", 1053, 1),
        ("third", 1953, 12345),
        ("half even", 2953, 2),
        ("end", 3_000_000_000_003_952, 1_000_000_000_001),
    ]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"0", 0), (b"1", 1000), (b"1.5", 1500), (b"1.25", 1250), (b"1.125", 1125),
        (b"0.0005", 0), (b"0.0015", 2),
        (b"0.0025", 2), (b"-1.5", -1500), (b"1e3", 1_000_000), (b"1E-3", 1), (b"1.7e15", 1700000000000000000),
        (b'"12.5"', 12500), (b"999999999999999.999", 999999999999999999), (b"1.1230", 1123),
        (b"4607182418800017.408", 4607182418800017408),
    ],
)  # fmt: skip
def test_nanoseconds(text: bytes, ns: int) -> None:
    assert nanoseconds([text]).tolist() == [ns]
    assert nanoseconds([b"1.001", text, b"7"]).tolist() == [1001, ns, 7000]


@pytest.mark.parametrize("text", [b"", b"null", b"true", b'"x"', b"[1]", b"1e400", b"99999999999999999999", b'"NaN"'])
def test_what_is_no_time_is_placed(text: bytes) -> None:
    with pytest.raises(ValueError, match="is not a time in microseconds") as failure:
        nanoseconds([b"1", text])
    assert failure.value.args[1] == 1


@hypothesis.given(st.lists(st.decimals(0, 10**15 - 1, places=3), min_size=1))
def test_nanoseconds_agree_with_decimal_arithmetic(values: list[Decimal]) -> None:
    texts = [format(value, "f").encode() for value in values]
    assert nanoseconds(texts).tolist() == [int(value * 1000) for value in values]


def test_a_span_that_floats_cannot_hold_is_refused(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="times span"):
        load(engine, tmp_path, [x("a", 0, 1), x("b", 1.7e15, 1)])


def test_dur_zero_and_missing_are_slices(engine: Engine, tmp_path: Path) -> None:
    missing = x("missing", 3, 0)
    del missing["dur"]
    info = load(engine, tmp_path, [x("zero", 1, 0), missing, x("null", 4, None)])
    assert (info.events_by_category, info.lost_events) == ({"cpu_op": 3}, 0)
    assert rows(engine.query(SLICES), "name", "ts", "dur") == [
        ("zero", 0, 0),
        ("missing", 2000, 0),
        ("null", 3000, 0),
    ]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (x("a", 1, -1), "event 'a' has a negative dur, -1 us"),
        ({"ph": "X", "name": "b", "pid": 1, "tid": 1, "dur": 1}, "ts of event 'b'"),
        (x("c", "soon", 1), "'soon' is not a time in microseconds"),
        (x("d", 1, [1]), "dur of event 'd'"),
    ],
)
def test_wrong_times_are_named(engine: Engine, tmp_path: Path, event: dict[str, Any], reason: str) -> None:
    with pytest.raises(TraceError, match=r"trace\.json") as failure:
        load(engine, tmp_path, [x("ok", 1, 1), event])
    assert reason in str(failure.value)


# Lanes.


def test_partly_overlapping_slices_get_a_lane(engine: Engine, tmp_path: Path) -> None:
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


def test_equal_and_empty_slices_stay_on_their_track(engine: Engine, tmp_path: Path) -> None:
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


def test_flows_follow_their_slice_to_its_lane(engine: Engine, tmp_path: Path) -> None:
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


@hypothesis.given(intervals())
def test_lanes_are_stacks(slices: list[tuple[int, int, int]]) -> None:
    tracks, starts, lengths = (
        (np.array(column, dtype=np.int64) for column in zip(*slices, strict=True))
        if slices
        else (np.empty(0, dtype=np.int64),) * 3
    )
    lanes = assign_lanes(tracks, starts, starts + lengths).tolist()
    placed = [(track, lane, start, start + length) for (track, start, length), lane in zip(slices, lanes, strict=True)]
    crossing = [(a, b) for a, b in itertools.permutations(placed, 2) if a[:2] == b[:2] and a[2] < b[2] < a[3] < b[3]]
    assert crossing == []
    # None moves without a reason.
    if not any(a[0] == b[0] and a[2] < b[2] < a[3] < b[3] for a, b in itertools.permutations(placed, 2)):
        assert set(lanes) <= {0}


@hypothesis.settings(max_examples=60, deadline=None)
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
        stats = engine.stats()
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


# Places, names, args.


def test_ids_and_names(engine: Engine, tmp_path: Path) -> None:
    meta = [
        {"ph": "M", "name": "process_name", "pid": 5, "tid": 0, "ts": 9, "args": {"name": "python3"}},
        {"ph": "M", "name": "process_labels", "pid": 5, "tid": 0, "args": {"labels": "GPU 5"}},
        {"ph": "M", "name": "thread_name", "pid": 5, "tid": 0, "args": {"name": "stream 0"}},
        {"ph": "M", "name": "thread_name", "pid": 5, "tid": 8, "args": {"name": "stream 8"}},
        {"ph": "M", "name": "thread_name", "pid": 6, "tid": 8, "args": {"name": "other 8"}},
    ]
    load(
        engine,
        tmp_path,
        [
            x("a", 0, 1, pid=5, tid=5),
            x("b", 1, 1, pid=5, tid=0),
            x("c", 2, 1, pid=5, tid=8),
            x("d", 3, 1, pid=6, tid=8),
            x("e", 4, 1, pid="Spans", tid="PyTorch Profiler"),
            x("f", 5, 1, pid=5, tid=140076543212345),
            x("g", 6, 1, pid=-7, tid=-7),
            {"ph": "X", "name": "h", "ts": 7, "dur": 1},
            *meta,
        ],
    )
    shown = rows(engine.query(SLICES), "name", "tid", "thread", "pid", "process")
    made_up = [(name, thread, process) for name, tid, thread, pid, process in shown if tid >= 2**31]
    assert [row for row in shown if row[1] < 2**31] == [
        ("a", 5, None, 5, "python3"),
        ("c", 8, "stream 8", 5, "python3"),
        ("d", 8, "other 8", 6, None),
        ("h", 0, None, 0, None),
    ]
    assert made_up == [
        ("b", "stream 0", "python3"),
        ("e", "PyTorch Profiler", "Spans"),
        ("f", "140076543212345", "python3"),
        ("g", "-7", "-7"),
    ]


def test_args_keep_keys_types_and_nesting(engine: Engine, tmp_path: Path) -> None:
    args = {
        "External id": 7, "grid": [1, 2, 3], "occupancy %": 12.5, "name": "é中😀", "flag": True, "none": None,
        "empty": [],
        "nested": {"a": [{"b": [1, "x"]}]}, "Addr": 137877174353920, "big": 2**63 - 1,
        "quote": 'say "hi"', "braces": '}],{"',
    }  # fmt: skip
    load(engine, tmp_path, [x("a", 0, 1, args=args)])
    seen = engine.query(
        "SELECT key, COALESCE(int_value, real_value, string_value) AS v, value_type FROM args"
        " JOIN slice USING (arg_set_id) ORDER BY key"
    )
    assert rows(seen) == [
        ("args.Addr", 137877174353920, "int"),
        ("args.External id", 7, "int"),
        ("args.big", 2**63 - 1, "int"),
        ("args.braces", '}],{"', "string"),
        ("args.flag", 1, "bool"),
        ("args.grid[0]", 1, "int"),
        ("args.grid[1]", 2, "int"),
        ("args.grid[2]", 3, "int"),
        ("args.name", "é中😀", "string"),
        ("args.nested.a[0].b[0]", 1, "int"),
        ("args.nested.a[0].b[1]", "x", "string"),
        ("args.occupancy %", 12.5, "real"),
        ("args.quote", 'say "hi"', "string"),
    ]


def test_text_that_the_engine_would_change_reads_alike(engine: Engine, tmp_path: Path) -> None:
    events = [
        x("C:\\temp\\", 0, 1, cat="a\\b"),
        x(
            "line\nend\ttab",
            1,
            1,
            args={"token": "\n", "tail\\": "x\\", "huge": 2**64 - 1, "\u0000": "\u0000"},
        ),
        x("é \U0001f600 \u2028 'q\"q'", 2, 1),
        x("", 3, 1, cat=""),
    ]
    info = load(engine, tmp_path, events)
    assert info.lost_events == 0
    assert info.events_by_category == {"": 1, "a\\b": 1, "cpu_op": 2}
    assert rows(engine.query(SLICES), "name", "category") == [
        ("C:⧵temp⧵", "a⧵b"),
        ("line␊end␉tab", "cpu_op"),
        ("é \U0001f600 \u2028 'q\"q'", "cpu_op"),
        ("[No name]", None),
    ]
    seen = engine.query("SELECT key, string_value FROM args JOIN slice USING (arg_set_id) ORDER BY key")
    assert rows(seen) == [
        ("args.huge", "18446744073709551615"),
        ("args.tail⧵", "x⧵"),
        ("args.token", "␊"),
        ("args.␀", "␀"),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"1" * 18, False),
        (b"1" * 19, True),
        (b"x" * 100 + b"2" * 19 + b"y" * 100, True),
        (b"0." + b"3" * 30, False),
    ],
)
def test_wide_integers_are_found(text: bytes, found: bool) -> None:
    for shift in range(20):
        assert may_have_wide_integer(b" " * shift + text + b" " * 20) == found
    assert needs_plain(text) == found


def test_other_kinds_of_events_are_kept_or_counted(engine: Engine, tmp_path: Path) -> None:
    base = {"pid": 1, "tid": 2}
    events = [
        {"ph": "B", "name": "begin", "cat": "span", "ts": 0, **base},
        {"ph": "E", "ts": 8, **base},
        {
            "ph": "i",
            "s": "t",
            "name": "[memory]",
            "cat": "cpu_instant_event",
            "ts": 1,
            "args": {"Bytes": -512},
            **base,
        },
        {"ph": "i", "s": "g", "name": "global", "ts": 2, **base},
        {"ph": "b", "id": "0x1", "name": "async", "cat": "as", "ts": 3, **base},
        {"ph": "e", "id": "0x1", "name": "async", "cat": "as", "ts": 7, **base},
        {"ph": "C", "name": "memory", "ts": 4, "args": {"used": 5}, **base},
        {"ph": "O", "name": "object", "ts": 4, **base},
        {"name": "no phase", "ts": 4, **base},
        {},
    ]
    info = load(engine, tmp_path, events)
    assert (info.events_by_category, info.lost_events, info.unread_events) == ({}, 0, 3)
    assert rows(engine.query(SLICES), "name", "category", "ts", "dur", "tid") == [
        ("begin", "span", 0, 8000, 2),
        ("[memory]", "cpu_instant_event", 1000, 0, 2),
        ("global", None, 2000, 0, None),
        ("async", "as", 3000, 4000, None),
    ]
    assert rows(engine.query("SELECT ts, value FROM counter")) == [(4000, 5.0)]


# Layouts and sizes.


def test_keys_around_the_events(engine: Engine, tmp_path: Path) -> None:
    text = (
        b' {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU {[\\" 0"}],'
        b'"x": null, "y": -1.5e3 ,'
        b'"molprof": {"schema": 1, "traceEvents": [1, {"a": "]}"}]},'
        b'"traceEvents" : [ ' + json.dumps(x("a", 1, 2)).encode() + b' ] , "traceName": "a\\u00e9", "n": 12}\n '
    )
    info = load(engine, tmp_path, text)
    assert info.manifest == {"schema": 1, "traceEvents": [1, {"a": "]}"}]}
    assert info.devices == [{"id": 0, "name": 'GPU {[" 0'}]
    assert {key: info.keys[key] for key in ("schemaVersion", "x", "y", "traceName", "n")} == {
        "schemaVersion": 1, "x": None, "y": -1500.0, "traceName": "aé", "n": 12,
    }  # fmt: skip
    assert info.events_by_category == {"cpu_op": 1}


@pytest.mark.parametrize("blocks", [16, 50, 1000, 2 * 1024 * 1024])
@pytest.mark.parametrize("layout", ["minified", "spaced", "indented", "torch", "crlf"])
def test_any_layout_in_any_blocks(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, blocks: int
) -> None:
    monkeypatch.setattr(document, "BLOCK_BYTES", blocks)
    monkeypatch.setattr(unpack, "BLOCK_BYTES", blocks)
    tricky = ['},{"ph"', "]}", '\\"', "{[", '"},\n  {\n    "ph"', "\\\\"]
    events = [
        x(
            f"{tricky[i % 6]}{i}",
            i,
            1,
            args={"list": [{"ph": 1}, {"ph": [2, {}]}], "text": tricky[i % 6], "n": i},
        )
        if i % 7
        else {"name": "[memory]", "ph": "i", "s": "t", "pid": 1, "tid": 2, "ts": i, "args": {"n": i}}
        for i in range(40)
    ]
    trace = {"head": {"a": ["x{"]}, "traceEvents": events, "tail": [{"ph": tricky}]}
    text = {
        "minified": json.dumps(trace, separators=(",", ":")),
        "spaced": json.dumps(trace),
        "indented": json.dumps(trace, indent=4),
        "torch": '{"head": {"a": ["x{"]}, "traceEvents": [\n  '
        + ",\n  ".join(json.dumps(event, indent=4).replace("\n", "\n  ") for event in events)
        + '\n  ],\n  "tail": [{"ph": ' + json.dumps(tricky) + "}]}\n",
        "crlf": json.dumps(trace, indent=1, ensure_ascii=False).replace("\n", "\r\n"),
    }[layout]  # fmt: skip
    info = load(engine, tmp_path, text.encode())
    assert (info.events_by_category, info.lost_events) == ({"cpu_op": 34}, 0)
    assert info.keys == {"head": {"a": ["x{"]}, "tail": [{"ph": tricky}]}
    numbers = engine.query("SELECT EXTRACT_ARG(arg_set_id, 'args.n') AS n FROM slice ORDER BY ts")["n"]
    assert numbers.tolist() == list(range(40))


@pytest.mark.parametrize("trace", [[], {"traceEvents": []}])
def test_a_trace_without_events(engine: Engine, tmp_path: Path, trace: Any) -> None:
    info = load(engine, tmp_path, json.dumps(trace).encode())
    assert (info.events_by_category, info.lost_events, info.complete, info.origin_ns) == ({}, 0, True, 0)
    assert engine.query("SELECT COUNT(*) AS n FROM slice")["n"].tolist() == [0]


def test_gzip_by_content_in_several_members(engine: Engine, tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [x("a", i, 0.5) for i in range(50)]}).encode()
    path = tmp_path / "trace.json"  # no .gz
    path.write_bytes(gzip.compress(text[:1000]) + gzip.compress(text[1000:]) + b"\0" * 20)
    info = load_trace(path, engine)
    assert (info.events_by_category, info.bytes) == ({"cpu_op": 50}, path.stat().st_size)


# Bad input.

WHOLE = json.dumps({"traceEvents": [x(f"n{i}", i, 0.5, args={"s": "{"}) for i in range(100)], "after": 1}).encode()
PLACE_OF_90 = WHOLE.index(b'{"ph": "X", "cat": "cpu_op", "name": "n90"')


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty (0 bytes)"),
        (b"hello", "is not JSON: it begins with b'hello' (byte 0 of the text, after 0 events)"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        (b"PK\x03\x04zip", "is a zip archive, not a trace"),
        (b"{}", "has no 'traceEvents' (byte 2 of the text"),
        (b'{"a": [1, 2]}', "has no 'traceEvents'"),
        (b'{"traceEvents": 5}', "'traceEvents' that is not an array (byte 16"),
        (b'{"traceEvents": null}', "'traceEvents' that is not an array"),
        (b'{"traceEvents": [], "traceEvents": []}', "'traceEvents' twice"),
        (b'{"traceEvents": []} x', "more text after the end of the JSON value (byte 20"),
        (b'{"traceEvents" []}', "no ':' after key 'traceEvents' (byte 15"),
        (b'{"a": 1 "traceEvents": []}', "no ',' or '}' after the value of 'a'"),
        (b'{"traceEvents": [], }', "no key where one should begin"),
        (b'{"traceEvents": [], "a": nope}', "malformed in the value of 'a'"),
        (b'{"traceEvents": [], "molprof": 3}', "the key 'molprof' is int, not an object"),
        (b'{"traceEvents": [', "is truncated inside event 1 (byte 17"),
        (b'{"traceEvents": [1, 2]}', "Expected `object`, got `int`"),
        (b'{"traceEvents": [{"ph": "i", "ts": 1}, {"ph": 7}]}',
         "wrong event 2: Expected `str | null`, got `int` - at `ph` (byte 39 of the text, after 1 events)"),
        (b'{"traceEvents": [{"ph": "i", "ts": 1} {"ph": "i"}]}', "no ',' or ']' after an event (byte 38"),
        (b'{"traceEvents": [{"ph": "i", "ts": 1},]}', "malformed"),
        (b'{"traceEvents": [{"ph": "X", "name": "\xff"}]}', "invalid UTF-8"),
        (b'{"traceEvents": [{"ph": "X", "args": {"a": "\xff"}, "ts": 1}]}', "invalid UTF-8"),
        (b'{"traceEvents": [{"ph": "X", "ts": NaN}]}', "wrong event 1"),
        (WHOLE[: PLACE_OF_90 + 20], f"is truncated inside event 91 (byte {PLACE_OF_90 + 20} of the text,"
         " after 90 events)"),
        (gzip.compress(WHOLE)[:-300], "gzip data is truncated at byte"),
        (gzip.compress(WHOLE)[:-4], "gzip data is truncated at byte"),
        (gzip.compress(WHOLE)[:-6] + b"\0" * 6, "damaged gzip data near byte"),
        (gzip.compress(WHOLE) + b"junk" * 10, "damaged gzip data near byte"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_with_the_place(engine: Engine, tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as failure:
        load_trace(path, engine)
    message = str(failure.value)
    assert reason in message
    assert str(path) in message
    assert "\n" not in message


def test_files_that_cannot_be_read(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is a directory"):
        load_trace(tmp_path, engine)
    with pytest.raises(TraceError, match=r"cannot read .*absent: No such file"):
        load_trace(tmp_path / "absent", engine)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_no_permission(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(WHOLE)
    path.chmod(0)
    with pytest.raises(TraceError, match="Permission denied"):
        load_trace(path, engine)


@pytest.mark.parametrize(
    "content",
    [
        WHOLE[: PLACE_OF_90 + 20],
        WHOLE[:PLACE_OF_90],
        WHOLE[:PLACE_OF_90] + b"nonsense" + WHOLE[PLACE_OF_90:],
        WHOLE[: PLACE_OF_90 - 2] + WHOLE[PLACE_OF_90:],
        WHOLE[:PLACE_OF_90] + b'{"ph": 5}, ' + WHOLE[PLACE_OF_90:],
    ],
    ids=["inside", "between", "malformed", "no comma", "wrong type"],
)
def test_partial_takes_what_is_whole(engine: Engine, tmp_path: Path, content: bytes) -> None:
    info = load(engine, tmp_path, content, partial=True)
    assert (info.events_by_category, info.lost_events, info.complete) == ({"cpu_op": 90}, 0, False)
    assert "byte" in str(info.problem)
    assert engine.query("SELECT name FROM slice ORDER BY ts")["name"].tolist() == [f"n{i}" for i in range(90)]


def test_partial_takes_what_truncated_gzip_holds(engine: Engine, tmp_path: Path) -> None:
    events = [x(f"n{i * 7919 % 10007}", i, 0.5, args={"a": i * i}) for i in range(5000)]
    packed = gzip.compress(json.dumps(events).encode())
    info = load(engine, tmp_path, packed[: len(packed) // 2], partial=True)
    count = info.events_by_category["cpu_op"]
    assert 1000 < count < 4000
    assert "gzip data is truncated" in str(info.problem)
    assert engine.query("SELECT COUNT(*) AS n, MAX(ts) AS last FROM slice")["last"].tolist() == [(count - 1) * 1000]


def test_partial_of_a_whole_file_is_complete(engine: Engine, tmp_path: Path) -> None:
    assert load(engine, tmp_path, WHOLE, partial=True).complete


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(st.data())
def test_damaged_text_is_an_error_or_the_same_as_json(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever is done to the text: what the reader takes is what the standard library's parser takes."""
    text = bytearray(
        json.dumps({"k": {"a": [1]}, "traceEvents": [x(f"n{i}", i, 0.5, args={"s": "{"}) for i in range(4)]}).encode()
    )
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text) - 1))
        action = data.draw(st.sampled_from(["replace", "drop", "insert", "cut", "repeat"]))
        if action == "replace":
            text[place] = data.draw(st.sampled_from(b'{}[],:"\\ 0a.-\xff\n'))
        elif action == "drop":
            del text[place : place + data.draw(st.integers(1, 9))]
        elif action == "insert":
            text[place:place] = data.draw(
                st.sampled_from([b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"1", b"null", b"\x00"])
            )
        elif action == "cut":
            del text[place + 1 :]
        else:
            text[place:place] = text[place : place + 20]
        if not text:
            return
    path = tmp_path_factory.mktemp("damaged") / "trace.json"
    path.write_bytes(text)
    with open_engine() as engine, contextlib.suppress(TraceError):
        info = load_trace(path, engine)
        _check_against_json(bytes(text), info)


def _check_against_json(text: bytes, info: TraceInfo) -> None:
    whole = json.loads(text, parse_float=Decimal)
    events = whole if isinstance(whole, list) else whole["traceEvents"]
    complete = [event for event in events if event.get("ph") == "X"]
    assert info.events_by_category == dict(sorted(Counter(str(event.get("cat")) for event in complete).items()))
    assert info.lost_events == 0
