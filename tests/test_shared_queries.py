"""Queries that this process and a copy of it share: the same answers, whatever becomes of the copy."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from synthetic import Spec, captured
from trace_rows import load, x

from molprof.analysis.engine import Engine, session
from molprof.analysis.engine.shared import Shared
from molprof.analysis.engine.wasm import WasmTransport
from molprof.analysis.reports import load as report_load
from molprof.analysis.reports.load import ReportOptions, load_report
from molprof.common.copied import can_copy
from molprof.common.errors import QueryError

CORPUS = os.environ.get("MOLPROF_CORPUS")
NAMES = "SELECT name FROM slice ORDER BY ts"
COUNT = "SELECT COUNT(*) AS n FROM slice"
WRONG = "SELECT missing FROM slice"


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Shared]]:
    """What was shared with a copy; copies are allowed, though the test runner has threads."""
    made: list[Shared] = []
    begin = Shared.__init__

    def begun(self: Shared, *arguments: Any) -> None:
        made.append(self)
        begin(self, *arguments)

    monkeypatch.setattr(session, "can_copy", lambda: True)
    monkeypatch.setattr(Shared, "__init__", begun)
    yield made
    for shared in made:
        with pytest.raises(ProcessLookupError):
            os.kill(shared._copy._pid, 0)


@pytest.fixture
def loaded(engine: Engine, tmp_path: Path) -> Iterator[Engine]:
    load(engine, tmp_path, [x("a", 0, 1), x("é", 1, 1), x("b", 2, 1)])
    yield engine
    engine.close()


def test_each_process_answers_what_it_gets_to_first(loaded: Engine) -> None:
    begun = multiprocessing.get_context("fork").Event()
    here: list[str] = []

    def answer(query: str) -> Any:
        here.append(query)
        if query == COUNT:
            begun.set()
        assert begun.wait(60)  # the first is answered when the copy has begun with the last
        return loaded.query(query)

    with closing(Shared(answer, [NAMES, COUNT])) as shared:
        assert here == [NAMES]
        assert shared.take(COUNT)["n"].tolist() == [3]
        assert shared.take(NAMES)["name"].tolist() == ["a", "é", "b"]
        assert shared.take(WRONG) is None  # which neither was asked


def test_wrong_queries_fail_where_they_are_asked(loaded: Engine) -> None:
    loaded.share([WRONG, COUNT])
    with pytest.raises(QueryError, match="no such column: missing"):
        loaded.query(WRONG)
    assert loaded.query(COUNT)["n"].tolist() == [3]


@pytest.mark.parametrize("early", [True, False])
def test_a_copy_that_was_killed_is_done_without(loaded: Engine, copies: list[Shared], early: bool) -> None:
    """Before this process sees that the copy took a query, and after."""
    begun, here = multiprocessing.get_context("fork").Event(), os.getpid()

    def answer(query: str) -> Any:
        if os.getpid() != here:
            begun.set()
            time.sleep(600)
        assert begun.wait(60)
        if early and query == NAMES:
            copies[0]._copy.close()
        return loaded.query(query)

    shared = Shared(answer, [NAMES, COUNT])
    if not early:
        os.kill(copies[0]._copy._pid, signal.SIGKILL)
    loaded._shared = shared
    assert (shared.take(COUNT) is not None) == early
    assert loaded.query(COUNT)["n"].tolist() == [3]


def test_closing_ends_a_copy_that_works(loaded: Engine) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT MAX(i) FROM n"
    here = os.getpid()
    loaded._shared = Shared(lambda query: loaded.query(COUNT if os.getpid() == here else query), [COUNT, endless])
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
    loaded.share([COUNT])
    assert loaded._shared is None
    assert loaded.query(COUNT)["n"].tolist() == [3]


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces")
@pytest.mark.parametrize("name", ["h100_qwen1.5_0.5b", "mi300x_vllm_decode_graph", "torch_compile_triton"])
def test_a_report_is_the_same_and_takes_all_answers(
    name: str, copies: list[Shared], monkeypatch: pytest.MonkeyPatch
) -> None:
    same_and_taken(Path(str(CORPUS), "traces", f"{name}.json.gz"), copies, monkeypatch)


def test_so_is_that_of_a_captured_run(tmp_path: Path, copies: list[Shared], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(captured(Spec())))
    same_and_taken(path, copies, monkeypatch)


def same_and_taken(path: Path, copies: list[Shared], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = load_report(path, ReportOptions(processes=1))
    assert not copies
    monkeypatch.setattr(report_load, "LEAST_EVENTS", 0)
    here: list[str] = []
    exchange = WasmTransport.exchange
    monkeypatch.setattr(
        WasmTransport, "exchange", lambda self, request: (here.append(request), exchange(self, request))[1]
    )
    asked: list[str] = []
    share = Engine.share
    monkeypatch.setattr(
        Engine, "share", lambda self, queries: (asked.extend(queries), share(self, queries), here.clear())
    )
    assert load_report(path, ReportOptions(processes=2)) == alone
    assert "INCLUDE PERFETTO MODULE molprof.idle_causes" in "".join(asked)
    # What every report asks is shared; some queries depend on what the others found.
    assert len(here) < len(asked) / 2
    assert len(copies) == 1
