"""`molprof query` and `molprof queries` as real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_trace
from conftest import Cli

from molprof.queries.catalog import catalog


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(tiny_trace.write(tmp_path / "trace.json.gz", tiny_trace.document()))


def test_a_module_over_a_trace(molprof: Cli, trace: str) -> None:
    result = molprof("query", "launches", trace, "--format", "csv")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[:3] == [
        "name,kind,count,time_ns,kernels,mean_delay_ns",
        "cudaLaunchKernel,launch,2,8000,2,20500.0",
        "cuLaunchKernel,launch,1,1000,0,",
    ]


def test_sql_with_parameters_over_two_traces(molprof: Cli, trace: str) -> None:
    sql = "SELECT name, dur FROM slice WHERE name = $name AND dur > $ns"
    result = molprof("query", sql, trace, trace, "-p", "name=mystery", "-p", "ns=0", "--format", "json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [{"trace": trace, "name": "mystery", "dur": 1_000}] * 2


def test_a_file_and_an_output_file(molprof: Cli, trace: str, tmp_path: Path) -> None:
    (tmp_path / "mine.sql").write_text("SELECT COUNT() AS launches FROM molprof_launch;\n")
    result = molprof("query", "mine.sql", trace, "-o", "out.txt")
    assert (result.returncode, result.stdout) == (0, "")
    assert (tmp_path / "out.txt").read_text() == "  1 row\n  launches\n  --------\n         5\n"


def test_an_sql_error_shows_query_place_and_reason(molprof: Cli, trace: str, tmp_path: Path) -> None:
    result = molprof("query", "SELECT name,\n  nope\nFROM molprof_launch", trace, "-o", "out.txt")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "molprof: error: the query failed at line 2 col 3: no such column: nope",
        "     1 | SELECT name,",
        "     2 |   nope",
        "       |   ^",
        "     3 | FROM molprof_launch",
    ]
    assert not (tmp_path / "out.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("launches",), 2, "Missing argument 'TRACES...'"),
        (("launches", "absent.json"), 2, "absent.json"),
        (("launches", "t.json", "-p", "key"), 2, "'key' is not KEY=VALUE"),
        (("launches", "t.json", "-p", "a=1", "-p", "a=2"), 2, "a is given twice"),
        (("launches", "t.json", "-p", "a=1"), 2, "has no $a"),
        (("launches", "t.json", "--format", "parquet"), 2, "--format parquet requires -o OUT"),
        (("lunches", "t.json"), 2, "did you mean launches"),
        (("SELECT $x", "t.json"), 2, "needs a value for $x"),
    ],
)
def test_a_mistake_is_one_clear_message(molprof: Cli, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = molprof("query", *arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_control_characters_of_a_trace_do_not_reach_the_terminal(molprof: Cli, tmp_path: Path) -> None:
    path = tiny_trace.write(
        tmp_path / "bad.json", {"traceEvents": [tiny_trace.slice_("cpu_op", "a\x1b]0;x\x07", 0, 1)]}
    )
    for form in ("table", "csv", "json", "markdown"):
        out = molprof("query", "SELECT name FROM slice", str(path), "--format", form).stdout
        assert all(character.isprintable() or character == "\n" for character in out), form
    error = molprof("query", "SELECT '\x1b[31m' FROM nowhere", str(path)).stderr
    assert all(character.isprintable() or character == "\n" for character in error)


def test_the_list_has_one_line_per_module(molprof: Cli) -> None:
    lines = molprof("queries").stdout.splitlines()
    assert [line.split()[0] for line in lines[: lines.index("")]] == list(catalog())
    assert max(map(len, lines)) <= 120


def test_a_module_shows_columns_units_example_and_sql(molprof: Cli) -> None:
    out = molprof("queries", "molprof_host_sync_summary").stdout
    assert out.startswith("molprof.host_syncs\n==================\n")
    assert "\n  time_ns     DURATION [ns]  Time in the calls, ns.\n" in out
    assert "\nExample: molprof query host_syncs trace.json.gz\n" in out
    assert "CREATE PERFETTO TABLE molprof_host_sync(" in out
    missing = molprof("queries", "host_sync")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "did you mean" in missing.stderr


def test_sql_to_paste_needs_no_package(molprof: Cli, trace: str, tmp_path: Path) -> None:
    sql = molprof("queries", "step_launches", "--sql").stdout
    assert "INCLUDE" not in sql
    (tmp_path / "own.sql").write_text(
        sql.replace("molprof_", "own_") + "SELECT SUM(launches) AS n FROM own_step_launch;"
    )
    result = molprof("query", "own.sql", trace, "--format", "csv")
    assert (result.returncode, result.stdout) == (0, "n\n4\n"), result.stderr


def test_the_results_of_several_statements(molprof: Cli, trace: str, tmp_path: Path) -> None:
    sql = "SELECT 1 AS a; SELECT 2 AS b"
    assert molprof("query", sql, trace).stdout == "  1 row\n  a\n  -\n  1\n\n  1 row\n  b\n  -\n  2\n"
    refused = molprof("query", sql, trace, "--format", "json", "-o", "out.json")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("molprof: error: the query gives 2 results, and this format holds one\n")
    assert not (tmp_path / "out.json").exists()
