"""Queries that a copy of the process answers: the same answers, whatever becomes of the copy."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic import Spec, captured
from trace_rows import load, x

from molprof.analysis.engine import Engine, session
from molprof.analysis.engine.ahead import Ahead, can_copy
from molprof.analysis.reports import load as report_load
from molprof.analysis.reports.load import ReportOptions, load_report
from molprof.common.errors import QueryError
from molprof.queries import included

CORPUS = os.environ.get("MOLPROF_CORPUS")
NAMES = "SELECT name FROM slice ORDER BY ts"
COUNT = "SELECT COUNT(*) AS n FROM slice"
WRONG = "SELECT missing FROM slice"


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Ahead]]:
    """Those that were made; they are allowed, though the test runner has threads."""
    made: list[Ahead] = []
    begin = Ahead.__init__

    def begun(self: Ahead, *arguments: Any) -> None:
        begin(self, *arguments)
        made.append(self)

    monkeypatch.setattr(session, "can_copy", lambda: True)
    monkeypatch.setattr(Ahead, "__init__", begun)
    yield made
    for copy in made:
        with pytest.raises(ProcessLookupError):
            os.kill(copy._process, 0)


@pytest.fixture
def loaded(engine: Engine, tmp_path: Path) -> Iterator[Engine]:
    load(engine, tmp_path, [x("a", 0, 1), x("é", 1, 1), x("b", 2, 1)])
    yield engine
    engine.close()


def test_answers_are_those_of_the_copy(loaded: Engine) -> None:
    loaded.ask_ahead([NAMES, COUNT])
    loaded.query("CREATE PERFETTO TABLE changed AS SELECT 1 AS one")
    transport, loaded._transport = loaded._transport, None  # whoever asks this process now is refused
    assert loaded.query(COUNT)["n"].tolist() == [3]  # not the first that was asked
    assert loaded.query(NAMES)["name"].tolist() == ["a", "é", "b"]
    loaded._transport = transport


def test_what_the_copy_cannot_answer_is_asked_here(loaded: Engine) -> None:
    loaded.ask_ahead([WRONG, COUNT])
    with pytest.raises(QueryError, match="no such column: missing"):
        loaded.query(WRONG)
    assert loaded.query(COUNT)["n"].tolist() == [3]


def test_a_copy_that_was_killed_is_done_without(loaded: Engine, copies: list[Ahead]) -> None:
    loaded.ask_ahead([COUNT] * 2)
    os.kill(copies[0]._process, signal.SIGKILL)
    assert loaded.query(COUNT)["n"].tolist() == [3]


def test_closing_ends_a_copy_that_works(loaded: Engine) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT MAX(i) FROM n"
    loaded.ask_ahead([endless])
    begin = time.monotonic()
    loaded.close()
    assert time.monotonic() - begin < 30  # and the fixture sees that it is gone


def test_no_copy_beside_threads_or_of_a_process_elsewhere(loaded: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert not can_copy()
    finally:
        stop.set()
        thread.join()
    monkeypatch.setattr(loaded._transport, "is_embedded", False)
    loaded.ask_ahead([COUNT])
    assert loaded._ahead is None
    assert loaded.query(COUNT)["n"].tolist() == [3]


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces")
@pytest.mark.parametrize("name", ["h100_qwen1.5_0.5b", "mi300x_vllm_decode_graph", "torch_compile_triton"])
def test_a_report_is_the_same_and_takes_all_answers(
    name: str, copies: list[Ahead], monkeypatch: pytest.MonkeyPatch
) -> None:
    same_and_taken(Path(str(CORPUS), "traces", f"{name}.json.gz"), copies, monkeypatch)


def test_so_is_that_of_a_captured_run(tmp_path: Path, copies: list[Ahead], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(captured(Spec())))
    same_and_taken(path, copies, monkeypatch)


def same_and_taken(path: Path, copies: list[Ahead], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = load_report(path, ReportOptions(processes=1))
    assert not copies
    monkeypatch.setattr(report_load, "LEAST_EVENTS", 0)
    taken: list[str] = []
    take = Ahead.take

    def counted(self: Ahead, query: str) -> Any:
        answer = take(self, query)
        if answer is not None:
            taken.append(query)
        return answer

    monkeypatch.setattr(Ahead, "take", counted)
    here: list[str] = []
    query = Engine.query
    monkeypatch.setattr(Engine, "query", lambda self, sql, shown=None: (here.append(sql), query(self, sql, shown))[1])
    asked: list[str] = []
    ask = Engine.ask_ahead
    monkeypatch.setattr(Engine, "ask_ahead", lambda self, queries: (asked.extend(queries), ask(self, queries))[1])
    assert load_report(path, ReportOptions(processes=2)) == alone
    assert "INCLUDE PERFETTO MODULE molprof.idle_causes" in "".join(taken)
    # What needs the times of devices is asked in the copy alone: else both processes compute them.
    assert [query for query in here if "devices" in included(query) and query not in asked] == []
    assert set(taken) == set(asked) & set(here)
    assert len(copies) == 1
