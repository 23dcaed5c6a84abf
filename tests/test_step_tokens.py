"""Steps that made several tokens of a sequence: what the trace holds, SQL shows and the sums count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from sql_rows import events_loaded

from molprof.analysis.figures import Report
from molprof.common.errors import TraceError


def document() -> dict[str, Any]:
    """The tiny run, but sequence 0 has both later tokens of step 1, and its row left the batch after it."""
    changed = tiny_trace.document()
    for event in changed["traceEvents"]:
        if event.get("cat") == "molprof.sequence":
            event["args"]["step"] = [[0, 1, 1], [0, 1]][event["args"]["sequence"]]
        if event.get("cat") == "molprof.token" and event["args"]["sequence"] == 0:
            event["args"]["step"] = 1
            event["ts"], event["dur"] = {1: (1000, 50), 2: (1050, 50)}[event["args"]["position"]]
    manifest = changed["molprof"]
    manifest["molecules"][0]["step_tokens"] = [1, 2]
    manifest["molecules"][1]["step_tokens"] = [1, 1]
    manifest["rows_per_step"] = [[2, 2, 1]]
    return changed


def report_of(folder: Path, content: dict[str, Any]) -> Report:
    return tiny_trace.report(folder / "trace.json", content)


def test_sql(tmp_path: Path) -> None:
    with events_loaded(tmp_path, document()["traceEvents"]) as query:
        assert query("tokens", "SELECT sequence, position, step, ts, dur FROM molprof_token") == [
            (0, 0, 0, None, None),
            (0, 1, 1, 0, 50_000),
            (0, 2, 1, 50_000, 50_000),
            (1, 0, 0, None, None),
            (1, 1, 1, 0, 100_000),
        ]
        assert query("steps", "SELECT number, tokens FROM molprof_any_step") == [(1, 3), (2, 0)]


def test_one_token_per_step_where_nothing_else_is_said(tmp_path: Path) -> None:
    with events_loaded(tmp_path, tiny_trace.document()["traceEvents"]) as query:
        assert query("tokens", "SELECT DISTINCT step - position FROM molprof_token") == [(0,)]


def test_sums(tmp_path: Path) -> None:
    report = report_of(tmp_path, document())
    assert [check.id for check in report.checks if not check.holds] == []
    assert report.run is not None
    run = report.run
    assert (run.generated_tokens, run.row_steps, run.idle_row_steps) == (5, 5, 1)
    assert run.window.tokens == 3
    assert run.setup.loop is None


def test_a_step_count_that_is_wrong_breaks_the_sum(tmp_path: Path) -> None:
    content = document()
    content["molprof"]["molecules"][0]["step_tokens"] = [1, 1]
    report = report_of(tmp_path, content)
    broken = {check.id: (check.left, check.right) for check in report.checks if not check.holds}
    assert broken == {"unfinished_rows": (5, 4)}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rows_per_step", [[2, 2]], "rows_per_step and steps_per_batch have different numbers of steps"),
        ("step_tokens", [1, 1, 1, 0], "sequence 0 got tokens in 4 steps, of 3 steps of its batch"),
    ],
)
def test_contradictions(tmp_path: Path, key: str, value: Any, message: str) -> None:
    content = document()
    place = content["molprof"] if key in content["molprof"] else content["molprof"]["molecules"][0]
    place[key] = value
    with pytest.raises(TraceError, match=message):
        report_of(tmp_path, content)
