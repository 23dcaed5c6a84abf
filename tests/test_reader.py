"""The reader loads a file whole and exactly, in whatever form; times, args and texts."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from certificate_data import CORPUS, needs_traces
from trace_rows import ARGS, SLICES, load, losses, rows, x

from molprof.analysis.reader.events import is_mark
from molprof.analysis.reader.load import load_trace
from molprof.analysis.reader.times import nanoseconds
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.common.errors import TraceError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NAMES = [path.name for path in sorted(Path(CORPUS, "traces").glob("*.json.gz"))] if CORPUS else []
BASE = {"pid": 1, "tid": 2}


def ns(us: Any) -> int:
    return int((Decimal(us) * 1000).to_integral_value())


@needs_traces
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "as reports"])
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_real_traces_are_whole_and_exact(name: str, whole: bool, engine: TraceProcessor) -> None:
    """Every slice: name, category, exact start and duration, place, and where its launch is found."""
    path = Path(str(CORPUS), "traces", name)
    info = load_trace(path, engine, stacks=whole, all_args=whole)
    expected = json.loads(Path(str(CORPUS), "expected.json").read_text())[name]
    assert info.events_by_category == expected["trace"]["events_by_category"]
    assert (info.lost_events, info.complete, info.problem, info.not_read) == (0, True, None, {})
    assert info.bytes == path.stat().st_size
    assert info.stacks == (whole or "python_function" not in info.events_by_category)
    left_out = () if whole else ("python_function",)
    with gzip.open(path) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    wanted = Counter(
        (
            event["name"],
            event.get("cat"),
            ns(event["ts"]) - info.origin_ns,
            ns(event.get("dur", 0)),
            event["tid"] if isinstance(event["tid"], int) and event["tid"] > 0 else None,
            (event.get("args") or {}).get("correlation"),
        )
        for event in events
        if event.get("ph") == "X" and (event.get("cat") not in left_out or is_mark(event["name"]))
    )
    seen = engine.query(
        """
        SELECT s.name, IFNULL(s.category, ''), s.ts, s.dur,
            COALESCE(EXTRACT_ARG(s.arg_set_id, 'args.molprof_tid'), t.tid) AS tid,
            EXTRACT_ARG(s.arg_set_id, 'args.correlation') AS correlation
        FROM slice AS s JOIN thread_track AS tt ON tt.id = s.track_id JOIN thread AS t USING (utid)
        WHERE IFNULL(s.category, '') != 'cpu_instant_event'
        """
    )
    shown = Counter(
        (name, category or None, ts, dur, tid if 0 < tid < 2**31 else None, correlation)
        for name, category, ts, dur, tid, correlation in rows(seen)
    )
    assert shown == wanted
    kernels = engine.query("SELECT SUM(dur) AS ns, COUNT(*) AS n FROM slice WHERE category = 'kernel'")
    assert rows(kernels) == [(expected["counts"]["kernel_time_ns"], expected["counts"]["kernels"])]
    if name == "b200_vllm_eager.json.gz" and whole:
        lanes = engine.query(
            """SELECT s.category, COUNT(*) AS n FROM slice AS s JOIN thread_track AS tt ON tt.id = s.track_id
            JOIN thread AS t USING (utid) WHERE t.name GLOB '*(lane [0-9])' GROUP BY s.category ORDER BY s.category"""
        )
        assert rows(lanes) == [("cpu_op", 2), ("kernel", 38), ("python_function", 1), ("user_annotation", 1)]
        assert info.lanes == 42


PLACES: list[tuple[Any, Any]] = [
    (0, 0), (0, 7), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2), ("Spans", "a b"), (-1, 2**40), (1, "two"),
]  # fmt: skip
SLICE = st.tuples(
    st.sampled_from(PLACES), st.integers(0, 30), st.integers(0, 12), st.sampled_from(["kernel", "cpu_op", "é", None]),
    st.one_of(st.none(), st.integers(-5, 2**63 - 1)),
)  # fmt: skip


def packed(text: bytes, form: str) -> bytes:
    half = len(text) // 2
    return {
        "plain": text,
        "marked": b"\xef\xbb\xbf \n" + text,
        "gzip": gzip.compress(text),
        "gzip in parts": gzip.compress(text[:half]) + b"\0" * 300_000 + gzip.compress(text[half:]) + b"\0" * 300_000,
        "zstd in parts": zstd.compress(text[:half]) + b"\x50\x2a\x4d\x18\x02\0\0\0hi" + zstd.compress(text[half:]),
    }[form]


FORMS = ("plain", "marked", "gzip", "gzip in parts", "zstd in parts")


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    st.lists(SLICE, max_size=60),
    st.sampled_from([0, 1712195495519689047]),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n  ", " :\n")]),
    st.sampled_from(FORMS),
    st.booleans(),
)
def test_random_slices_come_out_as_they_went_in(
    tmp_path_factory: pytest.TempPathFactory,
    slices: list[Any],
    origin_ns: int,
    separators: tuple[str, str],
    form: str,
    all_args: bool,
) -> None:
    """In JSON of any layout, packed in any way, fed to the engine as JSON (all args) or in the compact form."""
    events = []
    for number, ((pid, tid), start, length, category, value) in enumerate(slices):
        ts = f"{(origin_ns + start) // 1000}.{(origin_ns + start) % 1000:03d}"
        event = {"ph": "X", "name": f"{pid}/{tid}", "pid": pid, "tid": tid, "ts": number, "dur": f"0.{length:03d}"}
        event |= {"args": {"bytes": value}} if value is not None else {}
        event |= {"cat": category} if category is not None else {}
        text = json.dumps(event, separators=separators)
        events.append(text.replace(json.dumps("ts") + separators[1] + str(number), f'"ts"{separators[1]}{ts}'))
    path = tmp_path_factory.mktemp("random") / "trace.json"
    path.write_bytes(packed(f'{{"traceEvents":[{separators[0].join(events)}]}}'.encode(), form))
    with open_engine() as engine:
        info = load_trace(path, engine, all_args=all_args)
        columns, stats, args = engine.query(SLICES), losses(engine), engine.query(ARGS)
    assert (info.lost_events, stats) == (0, {})
    assert info.events_by_category == dict(sorted(Counter(str(category) for *_, category, _ in slices).items()))
    base = min((start for _, start, *_ in slices), default=0)
    assert info.origin_ns == (origin_ns + base if slices else 0)
    found = (
        (name, category or None, *times) for name, category, *times in rows(columns, "name", "category", "ts", "dur")
    )
    assert Counter(found) == Counter(
        (f"{pid}/{tid}", category, start - base, length) for (pid, tid), start, length, category, _ in slices
    )
    kept = [item for item in slices if item[4] is not None and (all_args or item[3] != "cpu_op")]
    assert Counter(rows(args)) == Counter(
        (f"{pid}/{tid}", "args.bytes", value, "int") for (pid, tid), *_, value in kept
    )
    # Tracks of the file stay apart, and numbers that can be kept are.
    places: dict[tuple[int, int], set[str]] = {}
    for name, pid, tid, home in rows(columns, "name", "pid", "tid", "home_tid"):
        places.setdefault((pid, tid if home is None else home), set()).add(name)
    for (pid, tid), names in places.items():
        (name,) = names
        assert name not in ("0/0", "0/7", "1/1", "1/2", "2/1", "2/2") or f"{pid}/{tid}" == name


def test_ids_and_names(engine: TraceProcessor, tmp_path: Path) -> None:
    meta = [
        {"ph": "M", "name": "process_name", "pid": 5, "tid": 0, "ts": 9, "args": {"name": "python3"}},
        {"ph": "M", "name": "process_labels", "pid": 5, "tid": 0, "args": {"labels": "GPU 5"}},
        {"ph": "M", "name": "thread_name", "pid": 5, "tid": 0, "args": {"name": "stream 0"}},
        {"ph": "M", "name": "thread_name", "pid": 5, "tid": 8, "args": {"name": "stream 8"}},
        {"ph": "M", "name": "thread_name", "pid": 6, "tid": 8, "args": {"name": "other 8"}},
    ]
    places = [(5, 5), (5, 0), (5, 8), (6, 8), ("Spans", "PyTorch Profiler"), (5, 140076543212345), (-7, -7)]
    events = [x("abcdefg"[at], at, 1, pid=pid, tid=tid) for at, (pid, tid) in enumerate(places)]
    load(engine, tmp_path, [*events, {"ph": "X", "name": "h", "ts": 7, "dur": 1}, *meta])
    shown = rows(engine.query(SLICES), "name", "tid", "thread", "pid", "process")
    assert [row for row in shown if row[1] < 2**31] == [
        ("a", 5, None, 5, "python3"), ("c", 8, "stream 8", 5, "python3"), ("d", 8, "other 8", 6, None),
        ("h", 0, None, 0, None),
    ]  # fmt: skip
    assert [(name, thread, process) for name, tid, thread, _, process in shown if tid >= 2**31] == [
        ("b", "stream 0", "python3"), ("e", "PyTorch Profiler", "Spans"), ("f", "140076543212345", "python3"),
        ("g", "-7", "-7"),
    ]  # fmt: skip


def test_args_keep_keys_types_and_nesting(engine: TraceProcessor, tmp_path: Path) -> None:
    args = {
        "External id": 7, "grid": [1, 2, 3], "occupancy %": 12.5, "name": "é中😀", "flag": True, "none": None,
        "empty": [], "nested": {"a": [{"b": [1, "x"]}]}, "Addr": 137877174353920, "big": 2**63 - 1, "huge": 2**64 - 1,
        "quote": 'say "hi"', "braces": '}],{"', "token": "\n", "tail\\": "x\\", "\u0000": "\u0000",
    }  # fmt: skip
    events = [
        x("a", 0, 1, args=args),
        x("C:\\temp\\", 1, 1, cat="a\\b"),
        x("line\nend\ttab", 2, 1),
        x("", 3, 1, cat=""),
    ]
    info = load(engine, tmp_path, events)
    assert (info.lost_events, info.events_by_category) == (0, {"": 1, "a\\b": 1, "cpu_op": 2})
    assert rows(engine.query(ARGS), "key", "value", "type") == [
        ("args.Addr", 137877174353920, "int"),
        ("args.External id", 7, "int"),
        ("args.big", 2**63 - 1, "int"),
        ("args.braces", '}],{"', "string"),
        ("args.flag", 1, "bool"),
        ("args.grid[0]", 1, "int"),
        ("args.grid[1]", 2, "int"),
        ("args.grid[2]", 3, "int"),
        ("args.huge", "18446744073709551615", "string"),
        ("args.name", "é中😀", "string"),
        ("args.nested.a[0].b[0]", 1, "int"),
        ("args.nested.a[0].b[1]", "x", "string"),
        ("args.occupancy %", 12.5, "real"),
        ("args.quote", 'say "hi"', "string"),
        ("args.tail⧵", "x⧵", "string"),
        ("args.token", "␊", "string"),
        ("args.␀", "␀", "string"),
    ]
    # What the engine would change reads alike.
    assert rows(engine.query(SLICES), "name", "category")[1:] == [
        ("C:⧵temp⧵", "a⧵b"), ("line␊end␉tab", "cpu_op"), ("[No name]", None),
    ]  # fmt: skip


@pytest.mark.parametrize("all_args", [True, False])
def test_args_of_reports(engine: TraceProcessor, tmp_path: Path, all_args: bool) -> None:
    """Without all args, those that SQL modules read are kept, of operators none; numbers beyond float64 are text."""
    events = [
        x("k", 1, 1, cat="kernel", args={"correlation": 7, "grid": [1, 2], "stream": 3, "External id": 9}),
        *[x("b", 2, 1, args={"stream": 3}), x("c", 3, 1, cat="python_function", args={"stream": 3})] * 200,
        x("text", 4, 1, cat="c", args={"correlation": "7", "stream": False, "bytes": 1.5, "name": "é"}),
        x("wide", 5, 1, cat="c", args={"correlation": 2**64, "stream": -3}),
        {"ph": "i", "s": "t", "name": "instant", "cat": "c", "ts": 20, "args": {"stream": 3, "correlation": 4}, **BASE},
        {"ph": "i", "s": "p", "name": "of a process", "ts": 36, "args": {"correlation": 4}, **BASE},
    ]
    text = (
        json.dumps(events)[:-1] + ', {"ph":"X","cat":"d","name":"huge","pid":1,"tid":9,"ts":6,"args":{"bytes":1e400}}]'
    )
    load(engine, tmp_path, text.encode(), all_args=all_args)
    found = [row[:3] for row in rows(engine.query(ARGS)) if row[1].startswith("args.") and (row[0] not in "bc")]
    kept = [row for row in found if row[1] not in ("args.grid[0]", "args.grid[1]", "args.External id")]
    assert (kept != found) == all_args
    assert kept == [
        ("k", "args.correlation", 7), ("k", "args.stream", 3),
        ("text", "args.bytes", 1.5), ("text", "args.correlation", "7"), ("text", "args.name", "é"),
        ("text", "args.stream", "false"),
        ("wide", "args.correlation", str(2**64)), ("wide", "args.stream", -3),
        ("huge", "args.bytes", "1e400"),
        ("instant", "args.correlation", 4), ("instant", "args.stream", 3), ("of a process", "args.correlation", 4),
    ]  # fmt: skip


def test_other_kinds_of_events_are_kept_or_counted(engine: TraceProcessor, tmp_path: Path) -> None:
    memory = {"ph": "i", "s": "t", "name": "[memory]", "cat": "cpu_instant_event", "ts": 1, "args": {"Bytes": -512}}
    events = [
        {"ph": "B", "name": "begin", "cat": "span", "ts": 0, **BASE},
        {"ph": "E", "ts": 8, **BASE},
        {**memory, **BASE},
        {"ph": "i", "s": "g", "name": "global", "ts": 2, **BASE},
        {"ph": "b", "id": "0x1", "name": "async", "cat": "as", "ts": 3, **BASE},
        {"ph": "e", "id": "0x1", "name": "async", "cat": "as", "ts": 7, **BASE},
        {"ph": "C", "name": "memory", "ts": 4, "args": {"used": 5}, **BASE},
        {"ph": "O", "name": "object", "ts": 4, **BASE},
        {"name": "no phase", "ts": 4, **BASE},
        {},
    ]
    info = load(engine, tmp_path, events)
    assert (info.events_by_category, info.lost_events, info.not_read) == ({}, 0, {"None": 3})
    assert rows(engine.query(SLICES), "name", "category", "ts", "dur", "tid") == [
        ("begin", "span", 0, 8000, 2), ("[memory]", "cpu_instant_event", 1000, 0, 2), ("global", None, 2000, 0, None),
        ("async", "as", 3000, 4000, None),
    ]  # fmt: skip
    assert rows(engine.query("SELECT ts, value FROM counter")) == [(4000, 5.0)]


@pytest.mark.parametrize("all_args", [True, False])
def test_only_complete_events_are_work_and_calls(engine: TraceProcessor, tmp_path: Path, all_args: bool) -> None:
    events = [x("k", 0, 1, cat="kernel"), x("launch", 1, 1, cat="cuda_runtime")]
    events += [{**x("k", 3, 1, cat="kernel"), "ph": phase, "id": 1} for phase in ("i", "I", "R", "B", "b", "n")]
    events += [{**x("k", 5, 0, cat="kernel"), "ph": phase, "id": 1} for phase in ("E", "e")]
    events += [{**x("launch", 6, 1, cat="cuda_runtime"), "ph": "i"}, {**x("copy", 6, 1, cat="gpu_memcpy"), "ph": "?"}]
    events += [{**x("odd", 6, 1), "ph": "i"}, {**x("note", 6, 1, cat="note"), "ph": "i"}]
    info = load(engine, tmp_path, events, all_args=all_args)
    shown = "SELECT category, COUNT() AS slices, SUM(dur) AS dur FROM slice GROUP BY category ORDER BY category"
    assert rows(engine.query(shown)) == [
        ("cpu_op (incomplete)", 1, 0),
        ("cuda_runtime", 1, 1000),
        ("cuda_runtime (incomplete)", 1, 0),
        ("kernel", 1, 1000),
        ("kernel (incomplete)", 6, 4000),  # begin and end, twice
        ("note", 1, 0),
    ]
    assert info.events_by_category == {"cuda_runtime": 1, "kernel": 1}
    assert info.notes() == [
        f"{tmp_path / 'trace.json'}: not read: 1 event of category cpu_op, 1 event of category cuda_runtime,"
        " 1 event of category gpu_memcpy, 6 events of category kernel"
    ]


@pytest.mark.parametrize("others", [(), (30,), (0, 30), range(0, 60, 5)], ids=["none", "later", "first", "many"])
def test_memory_events_are_counted_and_left_out_with_args(tmp_path: Path, others: Any) -> None:
    """Instants of another name stay, whichever come first."""
    instant = {"ph": "i", "s": "t", "cat": "cpu_instant_event", **BASE, "args": {"Bytes": 8}}
    events = []
    for number in range(6000):
        events += [x("a", number, 1), {**instant, "name": "[memory]", "ts": number}]
        events += [{**instant, "name": "[OutOfMemory]", "ts": number}] * (number in others)
    for all_args, memory in ((True, 6000), (False, 0)):
        with open_engine() as engine:
            info = load(engine, tmp_path, events, all_args=all_args)
            assert (info.memory_events, info.lost_events) == (6000, 0)
            found = dict(rows(engine.query("SELECT name, COUNT() AS n FROM slice GROUP BY name")))
        assert found == {n: c for n, c in (("[OutOfMemory]", len(others)), ("[memory]", memory), ("a", 6000)) if c}


@pytest.mark.parametrize(
    "event",
    [
        x("n" * 40_000, 1, 1),
        x("many", 1, 1, cat="molprof.token", args={f"a{i}": i for i in range(40)}),
        x("long", 1, 1, cat="kernel", args={"name": "n" * 40_000}),
        x("array", 1, 1, cat="kernel", args={"name": [3, {"a": 4}]}),
        {"ph": "B", "name": "begin", "cat": "c", "ts": 1, **BASE},
        {"ph": "b", "id": "0x1", "name": "async", "cat": "c", "ts": 1, **BASE},
        {"ph": "n", "id": "0x1", "name": "async", "cat": "c", "ts": 1, **BASE},
    ],
    ids=["name", "args", "arg", "array", "begin", "asynchronous", "point"],
)
def test_what_the_compact_form_has_no_room_for(tmp_path: Path, engine: TraceProcessor, event: dict[str, Any]) -> None:
    first = x("a", 0, 9, cat="kernel", args={"correlation": 5, "stream": 2})
    info = load(engine, tmp_path, [first, event], all_args=False)
    assert info.lost_events == 0
    assert engine.query("SELECT name FROM slice ORDER BY ts")["name"].tolist() == ["a", event["name"]]
    found = rows(engine.query(ARGS), "name", "key", "value")
    assert found[:2] == [("a", "args.correlation", 5), ("a", "args.stream", 2)]
    expected = {"many": 40, "long": 1, "array": 2}
    assert len([row for row in found if row[1].startswith("args.")]) == 2 + expected.get(event["name"], 0)


def test_more_texts_than_the_compact_form_can_number(tmp_path: Path, engine: TraceProcessor) -> None:
    names = [f"kernel {number % 35_000}" for number in range(36_000)]
    events = [x(name, at, 1, cat=f"c{at % 3}") for at, name in enumerate(names)]
    load(engine, tmp_path, events, all_args=False)
    assert engine.query("SELECT name FROM slice ORDER BY ts")["name"].tolist() == names
    assert engine.query("SELECT category FROM slice ORDER BY ts LIMIT 4")["category"].tolist() == [
        "c0",
        "c1",
        "c2",
        "c0",
    ]


@pytest.mark.parametrize("all_args", [True, False])
def test_arguments_are_kept_at_any_depth(engine: TraceProcessor, tmp_path: Path, all_args: bool) -> None:
    copies = {"cat": "gpu_memcpy", "pid": 0}
    events = [
        *(x(f"outer {i}", i, 9000 - 2 * i) for i in range(1200)),
        x("launch", 1500, 1, cat="cuda_runtime", args={"correlation": 7}),
        {"ph": "i", "s": "t", "name": "note", "cat": "note", **BASE, "ts": 1600, "args": {"bytes": 7}},
        *(x("copy", 5000, 2, tid=7, args={"bytes": 4, "stream": 7}, **copies) for _ in range(2000)),
        *(x("copy", 5000 + i / 1000, 9 - i / 500, tid=8, args={"bytes": 4}, **copies) for i in range(2000)),
        *(x("copy", 5000, 0, tid=9, args={"bytes": 4}, **copies) for _ in range(2000)),
    ]
    info = load(engine, tmp_path, events, all_args=all_args)
    assert (info.lost_events, info.deep_events) == (0, 701)
    sums = "SELECT name, SUM(EXTRACT_ARG(arg_set_id, 'args.bytes')) AS bytes FROM slice WHERE arg_set_id GROUP BY name"
    assert dict(rows(engine.query(f"{sums} HAVING bytes > 0"))) == {"copy": 24_000, "note": 7}
    assert engine.query("SELECT MAX(depth) AS depth FROM slice")["depth"].tolist() == [500]
    sql = """SELECT outer.name FROM slice JOIN slice AS outer ON outer.id = slice.parent_id WHERE slice.name = 'launch'
        AND EXTRACT_ARG(slice.arg_set_id, 'args.correlation') = 7"""
    assert rows(engine.query(sql)) == [("outer 1199",)]


def test_times_are_exact_whatever_their_size(engine: TraceProcessor, tmp_path: Path) -> None:
    text = b"""[
      {"ph":"X","cat":"a","name":"first","pid":1,"tid":2,"ts":1712195495519689.047,"dur":63.813},
      {"ph":"X","cat":"a","name":"second","pid":1,"tid":3,"ts":1712195495519690.1,"dur":0.001},
      {"ph":"X","cat":"a","name":"third","pid":1,"tid":4,"ts":"1712195495519691","dur":1.2345e1},
      {"ph":"X","cat":"a","name":"half even","pid":1,"tid":5,"ts":1712195495519692.0005,"dur":0.0015},
      {"ph":"X","cat":"a","name":"none","pid":1,"tid":6,"ts":1712195495519693.0},
      {"ph":"X","cat":"a","name":"null","pid":1,"tid":6,"ts":1712195495519693.1, "dur": null},
      {"ph":"X","cat":"a","name":"end","pid":1,"tid":5,"ts":1715195495519692.999,"dur":1000000000.001}
    ]"""
    info = load(engine, tmp_path, text)
    assert (info.origin_ns, info.lost_events) == (1712195495519689047, 0)
    assert rows(engine.query(SLICES), "name", "ts", "dur") == [
        ("first", 0, 63813), ("second", 1053, 1), ("third", 1953, 12345), ("half even", 2953, 2), ("none", 3953, 0),
        ("null", 4053, 0), ("end", 3_000_000_000_003_952, 1_000_000_000_001),
    ]  # fmt: skip


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.decimals(-(10**14), 10**15 - 1, places=3), min_size=1))
@hypothesis.example([Decimal("4607182418800017.408"), Decimal("1.7e15"), Decimal("0.0005"), Decimal("-1.5")])
def test_nanoseconds_agree_with_decimal_arithmetic(values: list[Decimal]) -> None:
    texts = [format(value, "f").encode() for value in values]
    assert nanoseconds(texts).tolist() == [ns(value) for value in values]
    wild = [b"1e3", b"1E-3", b'"12.5"', b"0.0015", b"0.0025", b"1.1230"]
    assert nanoseconds([*wild, texts[0]]).tolist()[:-1] == [1_000_000, 1, 12500, 2, 2, 1123]


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"true", b'"x"', b"[1]", b"1e400", b"99999999999999999999", b'"NaN"', b"-1e99999999", b"1e19"],
)
def test_what_is_no_time_is_placed(text: bytes) -> None:
    with pytest.raises(ValueError, match="is not a time in microseconds") as failure:
        nanoseconds([b"1", text])
    assert failure.value.args[1] == 1


@pytest.mark.parametrize(
    ("first", "second", "span_ns"),
    [
        (x("a", 0, 1), x("b", 1.7e15, 1), 17 * 10**17),
        (x("a", -9e15, 1), x("b", 9e15, 1), 18 * 10**18),
        (x("a", 0, 1), x("b", 1, 9e15), 9 * 10**18),
        (x("a", -9e15, 1), x("b", 4e14, 9e15), 94 * 10**17),
        (x("a", 0, 3e12), x("b", 3e12, 3e12), 6 * 10**15),
    ],
)
def test_a_span_that_floats_cannot_hold_is_refused(
    engine: TraceProcessor, tmp_path: Path, first: dict[str, Any], second: dict[str, Any], span_ns: int
) -> None:
    with pytest.raises(TraceError, match=f"times span {span_ns} ns, more than"):
        load(engine, tmp_path, [first, second])
