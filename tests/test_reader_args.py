"""Places, names and args of events, as SQL shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_rows import SLICES, load, rows, x

from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.part import PartReader
from molprof.analysis.reader.text import may_have_wide_integer, needs_plain
from molprof.analysis.trace_processor import TraceProcessor


def test_ids_and_names(engine: TraceProcessor, tmp_path: Path) -> None:
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


def test_args_keep_keys_types_and_nesting(engine: TraceProcessor, tmp_path: Path) -> None:
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


def test_text_that_the_engine_would_change_reads_alike(engine: TraceProcessor, tmp_path: Path) -> None:
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


def test_other_kinds_of_events_are_kept_or_counted(engine: TraceProcessor, tmp_path: Path) -> None:
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
    assert (info.events_by_category, info.lost_events, info.not_read) == ({}, 0, {"None": 3})
    assert rows(engine.query(SLICES), "name", "category", "ts", "dur", "tid") == [
        ("begin", "span", 0, 8000, 2),
        ("[memory]", "cpu_instant_event", 1000, 0, 2),
        ("global", None, 2000, 0, None),
        ("async", "as", 3000, 4000, None),
    ]
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
    assert info.not_read == {"cpu_op": 1, "cuda_runtime": 1, "gpu_memcpy": 1, "kernel": 6}
    assert info.notes() == [
        f"{tmp_path / 'trace.json'}: not read: 1 event of category cpu_op, 1 event of category cuda_runtime,"
        " 1 event of category gpu_memcpy, 6 events of category kernel"
    ]


def test_an_event_without_category_is_of_none_whatever_came_before() -> None:
    reader = PartReader(Wanted(stacks=False, all_args=False))
    for category in ("python_function", "cpu_op"):
        reader.read(json.dumps([x("a", 1, 1, cat=category)]).encode())  # what is learnt of one category alone
        part = reader.read(b'[{"ph": "X", "name": "b", "pid": 1, "tid": 2, "ts": 1, "dur": 1}]')
        assert part.stacks == 0
        assert [list(reader.kinds)[kind][:3] for kind in part.kind_of.tolist()] == [(None, "X", "b")]
