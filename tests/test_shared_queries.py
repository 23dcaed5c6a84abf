"""Queries that this process and a copy of it share: the same answers, whatever becomes of the copy."""

from __future__ import annotations

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
from certificate_data import CORPUS, needs_traces
from trace_rows import load, x

from molprof import api
from molprof.analysis import findings
from molprof.analysis import trace as report_load
from molprof.analysis.figures import build
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.shared import answered
from molprof.common import process
from molprof.common.errors import QueryError
from molprof.common.process import can_copy
from molprof.queries import included, modules

NAMES = "SELECT name FROM slice ORDER BY ts"
COUNT = "SELECT COUNT(*) AS n FROM slice"
WRONG = "SELECT missing FROM slice"


def children() -> set[int]:
    return {int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They are allowed, though the test runner has threads; all are gone in the end."""
    monkeypatch.setattr(process, "can_copy", lambda: True)
    before = children()
    yield
    assert children() <= before


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
def test_a_copy_that_was_killed_is_done_without(loaded: TraceProcessor, early: bool) -> None:
    """Before this process sees that the copy took a query, and after."""
    begun, here, before = multiprocessing.get_context("fork").Event(), os.getpid(), children()

    def answer(query: str) -> Any:
        if os.getpid() != here:
            begun.set()
            if early:
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
        assert begun.wait(60)
        if early and query == NAMES:
            (copy,) = children() - before
            os.kill(copy, signal.SIGKILL)
        return loaded.query(query)

    with ExitStack() as ending:
        found = answered(answer, [NAMES, COUNT], ending)
    assert NAMES in found


def test_an_interrupt_ends_the_copy(loaded: TraceProcessor) -> None:
    here = os.getpid()

    def answer(query: str) -> Any:
        if os.getpid() == here:
            raise KeyboardInterrupt
        time.sleep(600)

    # And the fixture sees that the copy is gone.
    with pytest.raises(KeyboardInterrupt), ExitStack() as ending:
        answered(answer, [NAMES, COUNT], ending)


def test_no_copy_beside_threads() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert not can_copy()
    finally:
        stop.set()
        thread.join()


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


@needs_traces
def test_a_report_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """And most of what it asks is shared."""
    path = Path(str(CORPUS), "traces/mi300x_vllm_decode_graph.json.gz")
    alone = api.report(path, processes=1)
    monkeypatch.setattr(report_load, "LEAST_EVENTS", 0)
    asked: list[str] = []
    share = TraceProcessor.share
    monkeypatch.setattr(
        TraceProcessor, "share", lambda self, queries, first: (asked.extend(queries), share(self, queries, first))
    )
    assert api.report(path, processes=2) == alone
    assert "INCLUDE PERFETTO MODULE molprof.idle_causes" in "".join(asked)
    assert len(asked) > 20
