"""Queries that this process and a copy of it share: the same answers, whatever becomes of the copy."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from synthetic import Spec, captured
from trace_rows import load, x

from molprof import api
from molprof.analysis import findings
from molprof.analysis import trace as report_load
from molprof.analysis.figures import build
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.shared import answered
from molprof.analysis.trace_processor.wasm import WasmTransport
from molprof.common import process
from molprof.common.errors import QueryError
from molprof.common.process import Copy, can_copy
from molprof.queries import included, modules

CORPUS = os.environ.get("MOLPROF_CORPUS")
NAMES = "SELECT name FROM slice ORDER BY ts"
COUNT = "SELECT COUNT(*) AS n FROM slice"
WRONG = "SELECT missing FROM slice"


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Copy]]:
    """Those that were made; they are allowed, though the test runner has threads."""
    made: list[Copy] = []
    begin = Copy.__init__

    def begun(self: Copy, *arguments: Any) -> None:
        made.append(self)
        begin(self, *arguments)

    monkeypatch.setattr(process, "can_copy", lambda: True)
    monkeypatch.setattr(Copy, "__init__", begun)
    yield made
    for copy in made:
        with pytest.raises(ProcessLookupError):
            os.kill(copy._pid, 0)


@pytest.fixture
def loaded(engine: TraceProcessor, tmp_path: Path) -> Iterator[TraceProcessor]:
    load(engine, tmp_path, [x("a", 0, 1), x("é", 1, 1), x("b", 2, 1)])
    yield engine
    engine.close()


@pytest.mark.parametrize("built_on", ["this C library", "an old one"])
def test_each_process_answers_what_it_gets_to_first(
    built_on: str, loaded: TraceProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    if built_on == "an old one":  # as Pythons are that run on every Linux
        monkeypatch.delattr(os, "memfd_create", raising=False)
    both = multiprocessing.get_context("fork").Barrier(2)
    here: list[str] = []

    def answer(query: str) -> Any:
        here.append(query)
        both.wait(60)  # neither is done before the other has begun
        return loaded.query(query)

    with ExitStack() as ending:
        found = answered(answer, [NAMES, COUNT], ending)
    assert here == [NAMES]
    assert found[COUNT]["n"].tolist() == [3]
    assert found[NAMES]["name"].tolist() == ["a", "é", "b"]


def test_wrong_queries_fail_where_they_are_asked(loaded: TraceProcessor) -> None:
    loaded.share([WRONG, COUNT], NAMES)
    with pytest.raises(QueryError, match="no such column: missing"):
        loaded.query(WRONG)
    assert loaded.query(COUNT)["n"].tolist() == [3]


@pytest.mark.parametrize("early", [True, False])
def test_a_copy_that_was_killed_is_done_without(loaded: TraceProcessor, copies: list[Copy], early: bool) -> None:
    """Before this process sees that the copy took a query, and after."""
    begun, here = multiprocessing.get_context("fork").Event(), os.getpid()

    def answer(query: str) -> Any:
        if os.getpid() != here:
            begun.set()
            if early:
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
        assert begun.wait(60)
        if early and query == NAMES:
            copies[0].close()
        return loaded.query(query)

    with ExitStack() as ending:
        found = answered(answer, [NAMES, COUNT], ending)
    assert NAMES in found
    assert not early or COUNT in found  # it was free again


def test_an_interrupt_ends_the_copy(loaded: TraceProcessor) -> None:
    here = os.getpid()

    def answer(query: str) -> Any:
        if os.getpid() == here:
            raise KeyboardInterrupt
        time.sleep(600)

    # And the fixture sees that the copy is gone.
    with pytest.raises(KeyboardInterrupt), ExitStack() as ending:
        answered(answer, [NAMES, COUNT], ending)


def test_no_copy_beside_threads_or_of_a_process_elsewhere(
    loaded: TraceProcessor, copies: list[Copy], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert not can_copy()
    finally:
        stop.set()
        thread.join()
    monkeypatch.setattr(loaded._transport, "is_embedded", False)
    loaded.share([COUNT], NAMES)
    assert not copies
    assert loaded.query(COUNT)["n"].tolist() == [3]


@pytest.mark.parametrize("has_run", [False, True])
def test_shared_queries_include_what_they_use(has_run: bool) -> None:
    """Which process answered what before is a matter of chance."""
    made = {
        name: module.removeprefix("molprof.")
        for module, sql in modules().items()
        for name in re.findall(r"CREATE PERFETTO (?:TABLE|VIEW|FUNCTION|MACRO) (\w+)", sql)
    }
    for query in (*build.queries(has_run), *findings.queries(has_run)):
        used = {made[name] for name in re.findall(r"\b_?molprof_\w+", query.sql)}
        assert used <= included(query.text), query.text


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces")
@pytest.mark.parametrize("name", ["h100_qwen1.5_0.5b", "mi300x_vllm_decode_graph", "torch_compile_triton"])
def test_a_report_is_the_same_and_takes_all_answers(
    name: str, copies: list[Copy], monkeypatch: pytest.MonkeyPatch
) -> None:
    same_and_taken(Path(str(CORPUS), "traces", f"{name}.json.gz"), copies, monkeypatch)


def test_so_is_that_of_a_captured_run(tmp_path: Path, copies: list[Copy], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(captured(Spec())))
    same_and_taken(path, copies, monkeypatch)


def same_and_taken(path: Path, copies: list[Copy], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = api.report(path, processes=1)
    assert not copies
    monkeypatch.setattr(report_load, "LEAST_EVENTS", 0)
    here: list[str] = []
    exchange = WasmTransport.exchange
    monkeypatch.setattr(
        WasmTransport, "exchange", lambda self, request: (here.append(request), exchange(self, request))[1]
    )
    asked: list[str] = []
    share = TraceProcessor.share
    monkeypatch.setattr(
        TraceProcessor,
        "share",
        lambda self, queries, first: (asked.extend(queries), share(self, queries, first), here.clear()),
    )
    assert api.report(path, processes=2) == alone
    assert "INCLUDE PERFETTO MODULE molprof.idle_causes" in "".join(asked)
    # What every report asks is shared; some queries depend on what the others found.
    assert len(here) < len(asked) / 2
    assert len(copies) == 2  # beside what many need, and beside the rest
