"""Questions of one's own: parameters bound as values, names found, results under each other, and how they are shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_trace

from molprof import api
from molprof.analysis import query
from molprof.analysis.documents.query_result import query_document
from molprof.analysis.frame import Frame
from molprof.analysis.query import Result, Statement, bind, find_statement, literal, statements
from molprof.analysis.render import render
from molprof.analysis.trace_processor import Columns
from molprof.common.errors import MissingExtraError, QueryError, UsageError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("5", "5"),
        ("-5", "(-5)"),
        ("1e6", "1e6"),
        (".5", ".5"),
        ("abc", "'abc'"),
        ("", "''"),
        ("it's", "'it''s'"),
        ("'5'", "'5'"),
        ("'; DROP TABLE x; --", "'''; DROP TABLE x; --'"),
        ("0x10", "'0x10'"),
        ("inf", "'inf'"),
    ],
)
def test_a_value_becomes_a_literal(value: str, expected: str) -> None:
    assert literal("key", value) == expected


def test_only_parameters_are_replaced() -> None:
    sql = """SELECT '$a', "$a", [$a], `$a`, $a, $ab -- $a
    /* $a; */ ; CREATE PERFETTO FUNCTION f(a LONG) RETURNS LONG AS SELECT $a; SELECT f($a)-$a"""
    assert (
        bind(sql, {"a": "-1", "ab": "x"})
        == """SELECT '$a', "$a", [$a], `$a`, (-1), 'x' -- $a
    /* $a; */ ; CREATE PERFETTO FUNCTION f(a LONG) RETURNS LONG AS SELECT $a; SELECT f((-1))-(-1)"""
    )


@pytest.mark.parametrize(
    ("sql", "parameters", "message"),
    [
        ("SELECT $a", {}, r"needs a value for \$a"),
        ("SELECT 1", {"a": "2"}, r"has no \$a to take -p a=2"),
        ("SELECT $a", {"a": str(2**63)}, "integers reach from"),
        ("SELECT \udcff", {}, r"the query is not UTF-8 text: '\\udcff' at character 7"),
        ("SELECT $a", {"a": "\udcff"}, r"the query is not UTF-8 text: '\\udcff' at character 8"),
        ("SELECT $a", {"a": "-" + "9" * 5000}, r"^-p a=-9{79}\.\.\. \(5,001 characters\): integers reach from"),
    ],
)
def test_parameters_that_do_not_fit(sql: str, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bind(sql, parameters)


def test_a_statement_by_module_table_function_file_or_sql(tmp_path: Path) -> None:
    module = find_statement("molprof.phases", {})
    assert module == find_statement("phases", {})
    assert module == Statement("SELECT batch, step, phase, ts, dur\nFROM molprof_phase\nORDER BY ts, id;", ("phases",))
    table = find_statement("molprof_drift_histogram", {})
    assert table == Statement("SELECT\n  drift,\n  blocks\nFROM molprof_drift_histogram", ("drift",))
    function = find_statement("molprof_small_operations", {"below_ns": "7"})
    assert function.sql.endswith("\nFROM molprof_small_operations(7, 1000)")
    file = tmp_path / "mine.sql"
    file.write_text("SELECT name FROM molprof_launch -- molprof_phase\nWHERE dur > $n")
    assert find_statement(str(file), {"n": "3"}) == Statement(
        "SELECT name FROM molprof_launch -- molprof_phase\nWHERE dur > 3", ("launch_queue",)
    )
    assert find_statement("SELECT 'molprof_phase'", {}).modules == ()
    long = f"SELECT 1{' ' * 5000}AS one"
    assert find_statement(long, {}).sql == long


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("launchs", "no module, table or file 'launchs'", "did you mean launches"),
        ("qqqqqq", "no module", "molprof queries lists the modules"),
        ("absent.sql", r"absent\.sql: No such file", "give a .sql file"),
    ],
)
def test_a_question_that_is_none(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as failure:
        find_statement(text, {})
    assert hint in str(failure.value.hint)


@pytest.mark.parametrize("value", ["abc", "'5'", "", "1e", "nan", "5ns"])
def test_a_number_is_asked_for_where_a_function_takes_one(value: str) -> None:
    for text in ("small_operations", "molprof_small_operations"):
        with pytest.raises(UsageError, match=re.escape(f"-p below_ns={value}: not a number")):
            find_statement(text, {"below_ns": value})
    assert "molprof_small_operations(1e5, " in find_statement("small_operations", {"below_ns": "1e5"}).sql


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "bad.sql").write_bytes(b"SELECT \xff")
    with pytest.raises(UsageError, match=r"bad\.sql is not UTF-8 text: byte 7 is 0xff"):
        find_statement(str(tmp_path / "bad.sql"), {})


def trace(folder: Path, name: str, *events: dict[str, Any]) -> Path:
    return tiny_trace.write(folder / name, {"traceEvents": list(events)})


def test_several_traces_under_each_other(tmp_path: Path) -> None:
    one = trace(tmp_path, "one.json", tiny_trace.work("kernel", "a", 0, 5, 1))
    two = trace(tmp_path, "two.json")
    three = trace(tmp_path, "three.json", tiny_trace.slice_("kernel", "b", 0, 7))
    statement = find_statement("SELECT name, stream, dur, 1 AS trace FROM molprof_gpu_work", {})
    found = api.query([one, two, three], statement)
    assert {name: column.tolist() for name, column in found.frame.columns.items()} == {
        "trace": [str(one), str(three)],
        "name": ["a", "b"],
        "stream": [7, None],
        "dur": [5_000, 7_000],
        "trace:1": [1, 1],
    }
    assert found.frame.columns["dur"].dtype == np.int64
    assert list(api.query([one], statement).frame.columns) == ["name", "stream", "dur", "trace"]
    assert [len(column) for column in api.query([two, two], statement).frame.columns.values()] == [0] * 5


def test_stacks_are_read_on_demand_and_args_always(tmp_path: Path) -> None:
    path = trace(
        tmp_path,
        "one.json",
        tiny_trace.slice_("python_function", "main", 0, 5),
        tiny_trace.slice_("cpu_op", "aten::mm", 1, 2, **{"Input Dims": [[2, 3]]}),
    )
    sql = "SELECT name, EXTRACT_ARG(arg_set_id, 'args.Input Dims[0][1]') AS width FROM slice ORDER BY ts"
    statement = find_statement(sql, {})
    results = [api.query([path], statement, stacks=on).frame for on in (False, True)]
    rows = [list(zip(columns["name"].tolist(), columns["width"].tolist(), strict=True)) for columns in results]
    assert rows == [[("aten::mm", 3)], [("main", None), ("aten::mm", 3)]]


def test_an_error_has_the_place_in_the_users_own_text(tmp_path: Path) -> None:
    path = trace(tmp_path, "one.json")
    statement = find_statement("SELECT name,\n  nope\nFROM molprof_launch", {})
    with pytest.raises(QueryError, match="at line 2 col 3: no such column: nope") as failure:
        api.query([path], statement)
    assert str(failure.value.hint).splitlines()[1:3] == ["   2 |   nope", "     |   ^"]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;", ["SELECT 1;"]),
        (";; -- only this\n/* and; this */ ;", []),
        ("SELECT ';' AS a; SELECT 2 -- end; of it", ["SELECT ';' AS a;", " " * 16 + " SELECT 2 -- end; of it"]),
        ("-- first\nSELECT 1;\n\nSELECT 2;\n", ["-- first\nSELECT 1;", "\n         \n\nSELECT 2;"]),
        (
            "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; SELECT 2; END;SELECT 3",
            ["CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; SELECT 2; END;", " " * 65 + "SELECT 3"],
        ),
    ],
)
def test_statements_keep_their_places(sql: str, expected: list[str]) -> None:
    assert statements(sql) == expected


def test_every_statement_shows_its_result(tmp_path: Path) -> None:
    one = trace(tmp_path, "one.json", tiny_trace.work("kernel", "a", 0, 5, 1))
    sql = (
        "INCLUDE PERFETTO MODULE molprof.gpu_work; SELECT name FROM molprof_gpu_work;\n"
        "CREATE PERFETTO VIEW own AS SELECT 2 AS two; SELECT two FROM own; SELECT 3 AS three WHERE FALSE;"
    )
    statement = find_statement(sql, {})
    found = api.query([one], statement)
    values = [{name: column.tolist() for name, column in table.columns.items()} for table in found.frames]
    assert values == [{"name": ["a"]}, {"two": [2]}, {"three": []}]
    assert shown(found, "table") == (
        "  1 row\n  name\n  ----\n  a\n\n  1 row\n  two\n  ---\n    2\n\n  0 rows\n  three\n  -----\n"
    )
    assert shown(found, "markdown") == (
        "- 1 row\n\n| name |\n| --- |\n| a |\n\n- 1 row\n\n| two |\n| ---: |\n| 2 |\n\n- 0 rows\n\n| three |\n| --- |\n"
    )
    for refused in (lambda: shown(found, "csv"), lambda: shown(found, "json"), lambda: found.frame):
        with pytest.raises(UsageError, match="the query gives 3 results, and this format holds one"):
            refused()
    twice = api.query([one, one], statement)
    assert twice.frames[1]["two"].tolist() == [2, 2]
    assert twice.frames[1]["trace"].tolist() == [str(one)] * 2


def test_a_mistake_in_a_later_statement_is_shown_in_the_whole_text(tmp_path: Path) -> None:
    path = trace(tmp_path, "one.json")
    with pytest.raises(QueryError, match="at line 2 col 18: no such column: nope") as failure:
        api.query([path], "SELECT 1;\nSELECT 2; SELECT nope")
    assert failure.value.hint == f"   1 | SELECT 1;\n   2 | SELECT 2; SELECT nope\n     | {' ' * 17}^"


def test_a_query_without_a_result_is_refused(tmp_path: Path) -> None:
    for sql in ("CREATE PERFETTO VIEW own AS SELECT 2 AS two", "-- SELECT 1"):
        with pytest.raises(UsageError, match="the query gives no result"):
            api.query([trace(tmp_path, "one.json")], sql)


def shown(found: Result, form: str) -> str:
    return render(query_document(found), form)


def column(*values: Any) -> np.ndarray:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def result(*tables: Columns) -> Result:
    return Result(tuple(map(Frame, tables)), ())


RESULT = result(
    {
        "name": column("a\x1b[31m", None, "b|\u202e"),
        "count": np.array([1, 20, 300]),
        "ratio": np.array([0.5, 1e-5, 2.0]),
        "blob": column(b"\x00\xff", None, b""),
    },
)


def test_a_table() -> None:
    assert shown(RESULT, "table").splitlines() == [
        "  3 rows",
        "  name       count  ratio  blob",
        "  ---------  -----  -----  ----",
        "  a\\x1b[31m      1    0.5  00ff",
        "                20  1e-05",
        "  b|\\u202e     300      2",
    ]
    long = shown(result({"name": column("x" * 100)}), "table").splitlines()
    assert long[3:] == ["  " + "x" * 59 + "…"]
    columns = {f"column {number}": np.array([10**12]) for number in range(12)}
    assert shown(result(columns), "table").splitlines()[3] == "  1000000000000" * 12


def test_csv_json_and_markdown() -> None:
    assert shown(RESULT, "csv") == ("name,count,ratio,blob\na\\x1b[31m,1,0.5,00ff\n,20,1e-05,\nb|\\u202e,300,2.0,\n")
    text = shown(RESULT, "json")
    assert "\\u001b[31m" in text
    assert "\\u202e" in text
    assert json.loads(text)[0] == {"name": "a\x1b[31m", "count": 1, "ratio": 0.5, "blob": "00ff"}
    assert json.loads(text)[2]["name"] == "b|\u202e"
    assert shown(RESULT, "markdown").splitlines()[3:5] == [
        "| --- | ---: | ---: | --- |",
        "| a\\\\x1b\\[31m | 1 | 0.5 | 00ff |",
    ]
    empty = result({"name": column()})
    assert (shown(empty, "json"), shown(empty, "csv")) == ("[]\n", "name\n")
    assert json.loads(shown(result({"x": np.array([np.inf])}), "json")) == [{"x": "inf"}]


def test_parquet_keeps_types_nulls_and_exact_text(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    mixed = {
        **RESULT.frame.columns,
        "mixed": column(1, "x", None),
        "numbers": column(2**60, None, 3),
        "empty": column(*[None] * 3),
    }
    path = tmp_path / "out.parquet"
    path.write_bytes(query.result_to_parquet(result(mixed)))
    table = pyarrow.parquet.read_table(path)
    assert [str(field.type) for field in table.schema] == [
        "string", "int64", "double", "binary", "string", "int64", "string",
    ]  # fmt: skip
    assert table.to_pydict() == {
        "name": ["a\x1b[31m", None, "b|\u202e"],
        "count": [1, 20, 300],
        "ratio": [0.5, 1e-5, 2.0],
        "blob": [b"\x00\xff", None, b""],
        "mixed": ["1", "x", None],
        "numbers": [2**60, None, 3],
        "empty": [None, None, None],
    }


def test_parquet_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="the format parquet needs the package 'pyarrow'") as failure:
        query.check_parquet()
    assert failure.value.hint == "pip install 'molprof[parquet]'"
