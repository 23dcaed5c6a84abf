"""The engine: columns, SQL packages and errors, the same whichever way it is had."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from trace_rows import losses

from molprof.analysis.trace_processor import TraceProcessor, open_engine, wasm
from molprof.common.errors import EngineError, QueryError

TRACE = json.dumps(
    {
        "traceEvents": [
            {
                "ph": "X",
                "name": "outer",
                "cat": "cpu_op",
                "pid": 1,
                "tid": 2,
                "ts": 1.5,
                "dur": 10,
                "args": {"n": 7},
            },
            {"ph": "X", "name": "inner", "cat": "cpu_op", "pid": 1, "tid": 2, "ts": 2, "dur": 0.001},
            {"ph": "X", "name": "kernel", "cat": "kernel", "pid": 0, "tid": 7, "ts": 4, "dur": 3},
        ]
    }
).encode()


@pytest.fixture(params=["embedded", "memory64", "native"])
def engine(request: pytest.FixtureRequest) -> Iterator[TraceProcessor]:
    """An engine that holds TRACE, each way of getting one."""
    native = request.getfixturevalue("fake_shell") if request.param == "native" else None
    with open_engine(native, memory64=request.param == "memory64") as engine:
        engine.feed(TRACE)
        engine.finish()
        yield engine


@pytest.fixture
def embedded() -> Iterator[TraceProcessor]:
    with open_engine() as engine:
        yield engine


def test_every_engine_gives_the_same_columns(engine: TraceProcessor) -> None:
    columns = engine.query("SELECT name, category, ts, dur, dur / 2.0 AS half, parent_id FROM slice ORDER BY id")
    assert {name: (column.dtype.kind, column.tolist()) for name, column in columns.items()} == {
        "name": ("O", ["outer", "inner", "kernel"]),
        "category": ("O", ["cpu_op", "cpu_op", "kernel"]),
        "ts": ("i", [1500, 2000, 4000]),
        "dur": ("i", [10000, 1, 3000]),
        "half": ("f", [5000.0, 0.5, 1500.0]),
        "parent_id": ("O", [None, 0, None]),
    }
    assert engine.query("SELECT EXTRACT_ARG(arg_set_id, 'args.n') AS n FROM slice WHERE dur = 10000")["n"].tolist() == [
        7
    ]
    assert losses(engine) == {}


@pytest.mark.parametrize("memory64", [False, True])
@pytest.mark.parametrize("first", ["é", "前向", "\u2400", "😀", "a"])
def test_many_texts_beyond_ascii_are_sorted(first: str, memory64: bool) -> None:
    names = [first + chr(ord(first[-1]) + number % 7) + str(number % 50) for number in range(200)]
    events = [{"ph": "X", "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": 1} for ts, name in enumerate(names)]
    with open_engine(memory64=memory64) as engine:
        engine.feed(json.dumps({"traceEvents": events}, ensure_ascii=False).encode())
        engine.finish()
        engine.query("CREATE PERFETTO TABLE sorted_name AS SELECT name FROM slice ORDER BY name")
        assert engine.query("SELECT name FROM sorted_name")["name"].tolist() == sorted(names)


@pytest.mark.parametrize("memory64", [False, True])
def test_a_copy_of_a_start_answers_as_a_start(memory64: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasm, "_starts", Counter())
    monkeypatch.setattr(wasm, "_started", {})
    found = []
    for number in range(wasm._KEPT_START + 2):
        assert len(wasm._started) == (number >= wasm._KEPT_START)
        with open_engine(memory64=memory64) as engine:
            engine.feed(TRACE)
            engine.finish()
            columns = engine.query("INCLUDE PERFETTO MODULE slices.flat_slices; SELECT name, ts FROM slice ORDER BY id")
            found.append({name: column.tolist() for name, column in columns.items()})
    assert found == [{"name": ["outer", "inner", "kernel"], "ts": [1500, 2000, 4000]}] * len(found)


def test_packages_are_included_and_replaced(engine: TraceProcessor) -> None:
    engine.register_package("molprof", {"molprof.seven": "CREATE PERFETTO VIEW molprof_seven AS SELECT 7 AS v;"})
    assert engine.query("INCLUDE PERFETTO MODULE molprof.seven; SELECT v FROM molprof_seven")["v"].tolist() == [7]
    engine.register_package("molprof", {"molprof.eight": "CREATE PERFETTO VIEW molprof_eight AS SELECT 8 AS v;"})
    assert engine.query("INCLUDE PERFETTO MODULE molprof.eight; SELECT v FROM molprof_eight")["v"].tolist() == [8]


def test_a_refused_query_shows_query_line_and_reason(engine: TraceProcessor) -> None:
    with pytest.raises(QueryError) as failure:
        engine.query("SELECT name,\n  nonsense\nFROM slice")
    assert str(failure.value) == "the query failed at line 2 col 3: no such column: nonsense"
    assert failure.value.hint == "   1 | SELECT name,\n   2 |   nonsense\n     |   ^\n   3 | FROM slice"
    assert engine.query("SELECT 1 AS one")["one"].tolist() == [1]


def test_a_module_that_is_not_there_is_named(embedded: TraceProcessor) -> None:
    with pytest.raises(QueryError, match=r"molprof\.missing"):
        embedded.query("INCLUDE PERFETTO MODULE molprof.missing;")


def test_modules_outside_their_package_are_refused(embedded: TraceProcessor) -> None:
    with pytest.raises(EngineError, match="cannot register SQL package 'molprof'"):
        embedded.register_package("molprof", {"elsewhere.module": "SELECT 1;"})


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
def test_column_types(embedded: TraceProcessor, sql: str, kind: str, values: list[object]) -> None:
    column = embedded.query(sql)["c"]
    assert (column.dtype.kind, column.tolist()) == (kind, values)
    assert not any(isinstance(value, np.generic) for value in column if kind == "O")


def test_columns_of_the_same_name_are_all_kept(embedded: TraceProcessor) -> None:
    columns = embedded.query("SELECT 1 AS a, 2 AS a, 3 AS b, 4 AS a")
    assert {name: column.tolist() for name, column in columns.items()} == {
        "a": [1],
        "a:1": [2],
        "b": [3],
        "a:2": [4],
    }


def test_a_result_of_many_batches_is_whole(embedded: TraceProcessor) -> None:
    rows = 200_000
    columns = embedded.query(
        f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {rows - 1})"
        " SELECT i, CASE i % 3 WHEN 0 THEN NULL ELSE 's' || i END AS s FROM n"
    )
    assert np.array_equal(columns["i"], np.arange(rows))
    assert columns["s"][[0, 1, 2, 199_999]].tolist() == [None, "s1", "s2", "s199999"]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_data_may_be_cut_anywhere(embedded: TraceProcessor, size: int) -> None:
    embedded.feed(TRACE[:20])
    for start in range(20, len(TRACE), size):
        embedded.feed(TRACE[start : start + size])
    embedded.finish()
    assert embedded.query("SELECT COUNT(*) AS n FROM slice")["n"].tolist() == [3]


def test_requests_larger_than_the_buffer_go_in_pieces(embedded: TraceProcessor) -> None:
    long_name = "n" * 9_000_000
    embedded.feed(json.dumps([{"ph": "X", "name": long_name, "pid": 1, "tid": 1, "ts": 0, "dur": 1}]).encode())
    embedded.finish()
    assert embedded.query("SELECT LENGTH(name) AS n FROM slice")["n"].tolist() == [9_000_000]
    comment = "-" * 9_000_000
    assert embedded.query(f"--{comment}\nSELECT 1 AS one")["one"].tolist() == [1]


def test_what_is_no_trace_is_refused(embedded: TraceProcessor) -> None:
    with pytest.raises(EngineError, match="refused trace data: Unknown trace type"):
        embedded.feed(b"certainly no trace " * 100)


def test_a_full_memory_is_an_error_that_says_so() -> None:
    with open_engine() as engine:
        engine._transport._store.set_limits(memory_size=48 << 20)  # type: ignore[union-attr]
        engine.feed(b'{"traceEvents":[')
        with pytest.raises(EngineError, match="memory"):
            engine.feed(b" " * 100_000_000)


def test_a_closed_engine_says_so() -> None:
    engine = open_engine()
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.query("SELECT 1")


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
    assert slow.ended == ["answered", "closed"]
    assert not engine.is_relaying
    with pytest.raises(EngineError, match="closed"):
        engine.relay(b"request")
