"""Traces in any layout, cut into any blocks, packed in any way."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from trace_rows import load, x

from molprof.analysis.reader import document, source
from molprof.analysis.reader.load import load_trace
from molprof.analysis.reader.open import open_trace
from molprof.analysis.trace_processor import TraceProcessor


def test_keys_around_the_events(engine: TraceProcessor, tmp_path: Path) -> None:
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
    engine: TraceProcessor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, blocks: int
) -> None:
    monkeypatch.setattr(document, "DECODE_BYTES", blocks)
    monkeypatch.setattr(source, "BLOCK_BYTES", blocks)
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
def test_a_trace_without_events(engine: TraceProcessor, tmp_path: Path, trace: Any) -> None:
    info = load(engine, tmp_path, json.dumps(trace).encode())
    assert (info.events_by_category, info.lost_events, info.complete, info.origin_ns) == ({}, 0, True, 0)
    assert engine.query("SELECT COUNT(*) AS n FROM slice")["n"].tolist() == [0]


def test_gzip_by_content_in_several_members(engine: TraceProcessor, tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [x("a", i, 0.5) for i in range(50)]}).encode()
    path = tmp_path / "trace.json"  # no .gz
    path.write_bytes(gzip.compress(text[:1000]) + gzip.compress(text[1000:]) + b"\0" * 20)
    info = load_trace(path, engine)
    assert (info.events_by_category, info.bytes) == ({"cpu_op": 50}, path.stat().st_size)


@pytest.mark.parametrize("others", [(), (30,), (0, 30), range(0, 60, 5)], ids=["none", "later", "first", "many"])
def test_memory_events_are_counted_and_left_out_with_args(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: Iterable[int]
) -> None:
    """Instants of another name stay, whichever come first, in the blocks that are decoded quickly and in the others."""
    monkeypatch.setattr(document, "DECODE_BYTES", 1000)
    monkeypatch.setattr(source, "BLOCK_BYTES", 1000)
    instant = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "pid": 1, "tid": 2, "args": {"Bytes": 8}}
    events = []
    for number in range(60):
        events += [x("a", number, 1), {**instant, "name": "[memory]", "ts": number}]
        if number in others:
            events.append({**instant, "name": "[OutOfMemory]", "ts": number})
    path = tmp_path / "memory.json"
    path.write_text(json.dumps({"traceEvents": events}))
    for all_args, memory in ((True, 60), (False, 0)):
        with open_trace(path, all_args=all_args) as (engine, info):
            assert (info.memory_events, info.lost_events) == (60, 0)
            found = engine.query("SELECT name, COUNT() AS n FROM slice GROUP BY name ORDER BY name")
        counts = dict(zip(found["name"].tolist(), found["n"].tolist(), strict=True))
        assert counts == {
            name: count
            for name, count in (("[OutOfMemory]", len(list(others))), ("[memory]", memory), ("a", 60))
            if count
        }
