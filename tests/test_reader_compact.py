"""The compact form of a trace: for the engine the same as its JSON, where a report looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_reader import corpus, corpus_names
from trace_rows import SLICES, load, losses, rows, x

from molprof.analysis.reader import feeding
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine

BASE = {"pid": 1, "tid": 2}
ARGS = """
    SELECT s.ts, s.name, a.key, a.flat_key, a.int_value, a.string_value, a.real_value
    FROM slice AS s JOIN args AS a USING (arg_set_id) ORDER BY s.ts, s.name, s.id, a.key
"""
NAMES = (
    "SELECT tid, pid, t.name AS thread, p.name AS process FROM thread AS t JOIN process AS p USING (upid) ORDER BY 2, 1"
)
EVENTS: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python\n3"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main é"}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
    x("outer", 10, 10),
    x("inner", 10, 10, args={"correlation": -3, "bytes": 2**63, "name": 'a"b\\c'}),
    x("zero", 10, 0, args={"correlation": 2**64, "stream": True, "device": None, "other": 1}),
    x("after", 20, 0.001, args={"correlation": 1.5, "stream": 1, "bytes": 1.0}),
    x("text", 30, 1, args={"correlation": "7", "stream": False, "bytes": "1e400", "device": "cuda:0"}),
    x("nested", 40, 1, args={"stream": {"a": {"b": "c\\u0001"}, "e": {}}, "device": 3}),
    x("null", 50, 1, args=None),
    x("", 60, 1),
    {"ph": "X", "ts": 61, "dur": 1, "cat": "cpu_op", **BASE},
    {"ph": "X", "name": "no category", "ts": 62, "dur": 1, **BASE},
    x("é\\\u0001\u2028" + "長" * 300, 63, 1, cat="ü"),
    x("text ids", 70, 1, pid="Spans", tid="PyTorch Profiler (0)"),
    x("zeros", 71, 1, pid=0, tid=0),
    x("stream", 72, 1, pid=0, tid=7),
    x("crosses", 15, 10, args={"correlation": 9}),
    x("crosses too", 18, 30),
    {"ph": "i", "s": "t", "name": "thread", "cat": "c", "ts": 20, "args": {"stream": 3, "correlation": 4}, **BASE},
    {"ph": "i", "name": "no scope", "ts": 20, **BASE},
    {"ph": "R", "name": "mark", "ts": 20, "dur": 5, **BASE},
    {"ph": "i", "s": "g", "name": "global", "ts": 35, **BASE},
    {"ph": "i", "s": "p", "name": "process", "ts": 36, "args": {"correlation": 4}, **BASE},
    {"ph": "s", "id": 5, "name": "flow", "ts": 15, **BASE},
]


def contents(path: Path, **options: Any) -> list[list[tuple[Any, ...]]]:
    with open_engine() as engine:
        info = load_trace(path, engine, all_args=False, **options)
        assert info.lost_events == 0
        assert losses(engine) == {}
        found = [rows(engine.query(sql)) for sql in (SLICES, ARGS, NAMES)]
    # A category that is not there is an empty one in the compact form.
    found[0] = [(name, category or None, *rest) for name, category, *rest in found[0]]
    return found


def test_the_engine_holds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: TraceProcessor) -> None:
    path = tmp_path / "trace.json"
    load(engine, tmp_path, EVENTS)
    fed: list[bytes] = []
    feed = TraceProcessor.feed
    monkeypatch.setattr(TraceProcessor, "feed", lambda self, chunk: fed.append(chunk) or feed(self, chunk))
    found = contents(path)
    assert not b"".join(fed).startswith(b"{")
    fed.clear()
    monkeypatch.setattr(feeding, "fits", lambda *arguments: False)
    expected = contents(path)
    assert b"".join(fed).startswith(b'{"traceEvents":')
    assert found == expected
    assert len(found[0]) == len([event for event in EVENTS if event["ph"] in "XiR"])


@pytest.mark.parametrize("name", corpus_names())
def test_real_traces_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = corpus() / "traces" / name
    found = contents(path)
    monkeypatch.setattr(feeding, "fits", lambda *arguments: False)
    assert found == contents(path)


def test_more_texts_than_the_format_can_number(
    tmp_path: Path, engine: TraceProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "_COMPACT_EVENTS", 100)
    monkeypatch.setattr(feeding, "_MAX_TEXTS", 300)
    names = [f"kernel {number % 700}" for number in range(1500)]
    load(engine, tmp_path, [x(name, at, 1, cat=f"c{at % 3}") for at, name in enumerate(names)], all_args=False)
    assert engine.query("SELECT name FROM slice ORDER BY ts")["name"].tolist() == names
    assert engine.query("SELECT category FROM slice ORDER BY ts")["category"].tolist() == ["c0", "c1", "c2"] * 500


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
def test_what_does_not_fit_goes_as_json(tmp_path: Path, engine: TraceProcessor, event: dict[str, Any]) -> None:
    info = load(
        engine, tmp_path, [x("a", 0, 9, cat="kernel", args={"correlation": 5, "stream": 2}), event], all_args=False
    )
    assert info.lost_events == 0
    assert engine.query("SELECT name FROM slice ORDER BY ts")["name"].tolist() == ["a", event["name"]]
    assert rows(engine.query(ARGS), "name", "key", "int_value")[:2] == [
        ("a", "args.correlation", 5),
        ("a", "args.stream", 2),
    ]
    if event.get("cat") == "molprof.token":
        assert len(rows(engine.query(ARGS))) == 42
    if event["name"] == "array":  # whose elements share a flat key
        assert rows(engine.query(ARGS), "key", "flat_key")[2:] == [
            ("args.name[0]", "args.name"),
            ("args.name[1].a", "args.name.a"),
        ]
