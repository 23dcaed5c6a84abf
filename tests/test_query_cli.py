"""`molprof query` and `molprof queries` as real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_trace
from conftest import Cli


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(tiny_trace.write(tmp_path / "trace.json.gz", tiny_trace.document()))


def test_a_file_and_an_output_file(molprof: Cli, trace: str, tmp_path: Path) -> None:
    (tmp_path / "mine.sql").write_text("SELECT COUNT() AS launches FROM molprof_launch;\n")
    result = molprof("query", "mine.sql", trace, "-o", "out.txt")
    assert (result.returncode, result.stdout) == (0, "")
    assert (tmp_path / "out.txt").read_text() == "  1 row\n  launches\n  --------\n         5\n"


def test_a_parameter_is_given_once(molprof: Cli) -> None:
    result = molprof("query", "launches", "t.json", "-p", "a=1", "-p", "a=2")
    assert (result.returncode, result.stdout) == (2, "")
    assert "a is given twice" in result.stderr


def test_control_characters_of_a_trace_do_not_reach_the_terminal(molprof: Cli, tmp_path: Path) -> None:
    path = tiny_trace.write(
        tmp_path / "bad.json", {"traceEvents": [tiny_trace.slice_("cpu_op", "a\x1b]0;x\x07", 0, 1)]}
    )
    for form in ("table", "csv", "json", "markdown"):
        out = molprof("query", "SELECT name FROM slice", str(path), "--format", form).stdout
        assert all(character.isprintable() or character == "\n" for character in out), form
    error = molprof("query", "SELECT '\x1b[31m' FROM nowhere", str(path)).stderr
    assert all(character.isprintable() or character == "\n" for character in error)


def test_sql_to_paste_needs_no_package(molprof: Cli, trace: str, tmp_path: Path) -> None:
    sql = molprof("queries", "step_launches", "--sql").stdout
    assert "INCLUDE" not in sql
    (tmp_path / "own.sql").write_text(
        sql.replace("molprof_", "own_") + "SELECT SUM(launches) AS n FROM own_step_launch;"
    )
    result = molprof("query", "own.sql", trace, "--format", "csv")
    assert (result.returncode, result.stdout) == (0, "n\n4\n"), result.stderr
