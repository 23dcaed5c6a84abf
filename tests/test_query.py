"""Users' queries: parameters are bound as values, names found, results stacked and shown right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_trace

from molprof import api
from molprof.analysis import query
from molprof.analysis.documents.query_result import query_document
from molprof.analysis.frame import Frame
from molprof.analysis.query import QueryResult, Statement, bind, check_reads, find_statement, literal, statements
from molprof.analysis.render import render
from molprof.analysis.trace_processor import Columns
from molprof.common.errors import MissingExtraError, QueryError, UsageError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("5", "5"), ("-5", "(-5)"), ("1e6", "1e6"), (".5", ".5"), ("abc", "'abc'"), ("", "''"), ("it's", "'it''s'"),
        ("'5'", "'5'"), ("0x10", "'0x10'"), ("inf", "'inf'"), ("'; DROP TABLE x; --", "'''; DROP TABLE x; --'"),
    ],
)  # fmt: skip
def test_a_value_becomes_a_literal(value: str, expected: str) -> None:
    assert literal("key", value) == expected


def test_only_parameters_are_replaced() -> None:
    sql = """SELECT '$a', "$a", [$a], `$a`, {}, {} -- $a
    /* $a; */ ; CREATE PERFETTO FUNCTION f(a LONG) RETURNS LONG AS SELECT $a; SELECT f({})-{}"""
    bound = bind(sql.format("$a", "$ab", "$a", "$a"), {"a": "-1", "ab": "x"})
    assert bound == sql.format("(-1)", "'x'", "(-1)", "(-1)")


@pytest.mark.parametrize(
    ("sql", "parameters", "message"),
    [
        ("SELECT $a", {}, r"needs a value for \$a"),
        ("SELECT 1", {"a": "2"}, r"has no \$a to take -p a=2"),
        ("SELECT $a", {"a": str(2**63)}, "integers reach from"),
        ("SELECT $a", {"a": "-" + "9" * 5000}, r"^-p a=-9{79}\.\.\. \(5,001 characters\): integers reach from"),
        ("SELECT \udcff", {}, r"the query is not UTF-8 text: '\\udcff' at character 7"),
        ("SELECT $a", {"a": "\udcff"}, r"the query is not UTF-8 text: '\\udcff' at character 8"),
    ],
)
def test_parameters_that_do_not_fit(sql: str, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bind(sql, parameters)


def test_a_statement_by_module_table_function_file_or_sql(tmp_path: Path) -> None:
    phases = Statement("SELECT batch, step, phase, ts, dur\nFROM molprof_phase\nORDER BY ts, id;", ("phases",))
    assert find_statement("molprof.phases", {}) == find_statement("phases", {}) == phases
    table = find_statement("molprof_drift_histogram", {})
    assert table == Statement("SELECT\n  drift,\n  blocks\nFROM molprof_drift_histogram", ("drift",))
    function = find_statement("molprof_small_operations", {"below_ns": "7"})
    assert function.sql.endswith("\nFROM molprof_small_operations(7, 1000)")
    (tmp_path / "mine.sql").write_text("SELECT name FROM molprof_launch -- molprof_phase\nWHERE dur > $n")
    mine = Statement("SELECT name FROM molprof_launch -- molprof_phase\nWHERE dur > 3", ("launch_queue",))
    assert find_statement(str(tmp_path / "mine.sql"), {"n": "3"}) == mine
    assert find_statement("SELECT 'molprof_phase'", {}).modules == ()
    long = f"SELECT 1{' ' * 5000}AS one"
    assert find_statement(long, {}).sql == long


def trace(folder: Path, name: str, *events: dict[str, Any]) -> Path:
    return tiny_trace.write(folder / name, {"traceEvents": list(events)})


def test_several_traces_under_each_other(tmp_path: Path) -> None:
    one = trace(tmp_path, "one.json", tiny_trace.work("kernel", "a", 0, 5, 1))
    two = trace(tmp_path, "two.json")
    three = trace(tmp_path, "three.json", tiny_trace.slice_("kernel", "b", 0, 7))
    statement = find_statement("SELECT name, stream, dur, 1 AS trace FROM molprof_gpu_work", {})
    found = api.query([one, two, three], statement).frame
    assert (list(found.columns), found["dur"].dtype) == (["trace", "name", "stream", "dur", "trace:1"], np.int64)
    assert found.rows() == [(str(one), "a", 7, 5_000, 1), (str(three), "b", None, 7_000, 1)]
    assert list(api.query([one], statement).frame.columns) == ["name", "stream", "dur", "trace"]
    assert [len(column) for column in api.query([two, two], statement).frame.columns.values()] == [0] * 5


def test_stacks_are_read_on_demand_and_args_always(tmp_path: Path) -> None:
    operator = tiny_trace.slice_("cpu_op", "aten::mm", 1, 2, **{"Input Dims": [[2, 3]]})
    path = trace(tmp_path, "one.json", tiny_trace.slice_("python_function", "main", 0, 5), operator)
    sql = "SELECT name, EXTRACT_ARG(arg_set_id, 'args.Input Dims[0][1]') AS width FROM slice ORDER BY ts"
    rows = [api.query([path], sql, stacks=on).frame.rows() for on in (False, True)]
    assert rows == [[("aten::mm", 3)], [("main", None), ("aten::mm", 3)]]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1;", ["SELECT 1;"]),
        (";; -- only this\n/* and; this */ ;", []),
        ("SELECT ';' AS a; SELECT 2 -- end; of it", ["SELECT ';' AS a;", " " * 16 + " SELECT 2 -- end; of it"]),
        ("-- first\nSELECT 1;\n\nSELECT 2;\n", ["-- first\nSELECT 1;", "\n         \n\nSELECT 2;"]),
        ("CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; SELECT 2; END;SELECT 3",
         ["CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; SELECT 2; END;", " " * 65 + "SELECT 3"]),
    ],
)  # fmt: skip
def test_statements_keep_their_places(sql: str, expected: list[str]) -> None:
    assert statements(sql) == expected


def test_every_statement_shows_its_result_and_mistakes_their_place(tmp_path: Path) -> None:
    one = trace(tmp_path, "one.json", tiny_trace.work("kernel", "a", 0, 5, 1))
    sql = (
        "INCLUDE PERFETTO MODULE molprof.gpu_work; SELECT name FROM molprof_gpu_work;\n"
        "CREATE PERFETTO VIEW own AS SELECT 2 AS two; SELECT two FROM own; SELECT 3 AS three WHERE FALSE;"
    )
    found = api.query([one], sql)
    assert [(list(table.columns), table.rows()) for table in found.frames] == [
        (["name"], [("a",)]), (["two"], [(2,)]), (["three"], []),
    ]  # fmt: skip
    assert shown(found, "markdown") == (
        "- 1 row\n\n| name |\n| --- |\n| a |\n\n- 1 row\n\n| two |\n| ---: |\n| 2 |\n\n- 0 rows\n\n| three |\n| --- |\n"
    )
    with pytest.raises(UsageError, match="the query gives 3 results, and this format holds one"):
        shown(found, "json")
    assert api.query([one, one], sql).frames[1].rows() == [(str(one), 2)] * 2
    with pytest.raises(QueryError, match="at line 2 col 18: no such column: nope") as failure:
        api.query([one], "SELECT 1;\nSELECT 2; SELECT nope")
    assert failure.value.hint == f"   1 | SELECT 1;\n   2 | SELECT 2; SELECT nope\n     | {' ' * 17}^"


@pytest.mark.parametrize(
    "sql",
    ["DROP TABLE a", "SELECT 1; PRAGMA a", "WITH a AS (SELECT 1) DELETE FROM b", "", "/* SELECT */ ATTACH 'a' AS b"],
)
def test_what_does_not_only_read_is_refused(sql: str) -> None:
    check_reads("INCLUDE PERFETTO MODULE molprof.launches; WITH a AS (SELECT 'DELETE; DROP') SELECT * FROM a;")
    with pytest.raises(UsageError, match="only SELECT"):
        check_reads(sql)


def shown(found: QueryResult, form: str) -> str:
    return render(query_document(found), form)


def column(*values: Any) -> np.ndarray:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def result(columns: Columns) -> QueryResult:
    return QueryResult((Frame(columns),), ())


RESULT = {
    "name": column("a\x1b[31m", None, "b|\u202e"),
    "count": np.array([1, 20, 300]),
    "ratio": np.array([0.5, 1e-5, 2.0]),
    "blob": column(b"\x00\xff", None, b""),
}


def test_formats() -> None:
    assert shown(result(RESULT), "table").splitlines() == [
        "  3 rows",
        "  name       count  ratio  blob",
        "  ---------  -----  -----  ----",
        "  a\\x1b[31m      1    0.5  00ff",
        "                20  1e-05",
        "  b|\\u202e     300      2",
    ]
    assert shown(result({"name": column("x" * 100)}), "table").splitlines()[3] == "  " + "x" * 59 + "…"
    wide = {f"column {number}": np.array([10**12]) for number in range(12)}
    assert shown(result(wide), "table").splitlines()[3] == "  1000000000000" * 12
    csv = "name,count,ratio,blob\na\\x1b[31m,1,0.5,00ff\n,20,1e-05,\nb|\\u202e,300,2.0,\n"
    assert shown(result(RESULT), "csv") == csv
    text = shown(result({**RESULT, "x": np.array([np.inf, 0, 0])}), "json")
    assert "\\u001b[31m" in text
    assert "\\u202e" in text
    assert json.loads(text)[0] == {"name": "a\x1b[31m", "count": 1, "ratio": 0.5, "blob": "00ff", "x": "inf"}
    assert shown(result(RESULT), "markdown").splitlines()[3:5] == [
        "| --- | ---: | ---: | --- |", "| a\\\\x1b\\[31m | 1 | 0.5 | 00ff |",
    ]  # fmt: skip
    empty = result({"name": column()})
    assert (shown(empty, "json"), shown(empty, "csv")) == ("[]\n", "name\n")


def test_parquet_keeps_types_nulls_and_exact_text(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    odd = {"mixed": column(1, "x", None), "numbers": column(2**60, None, 3), "empty": column(*[None] * 3)}
    path = tmp_path / "out.parquet"
    path.write_bytes(query.result_to_parquet(result({**RESULT, **odd})))
    table = parquet.read_table(path)
    types = ["string", "int64", "double", "binary", "string", "int64", "string"]
    assert [str(field.type) for field in table.schema] == types
    assert table.to_pydict() == {
        "name": ["a\x1b[31m", None, "b|\u202e"], "count": [1, 20, 300], "ratio": [0.5, 1e-5, 2.0],
        "blob": [b"\x00\xff", None, b""], "mixed": ["1", "x", None], "numbers": [2**60, None, 3], "empty": [None] * 3,
    }  # fmt: skip


def test_parquet_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="the format parquet needs the package 'pyarrow'") as failure:
        query.check_parquet()
    assert failure.value.hint == "pip install 'pyarrow>=17'"
