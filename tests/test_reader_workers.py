"""Blocks read by other processes: the same parts, the same errors, and no process left."""

from __future__ import annotations

import gzip
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from trace_rows import x

from molprof.analysis import parallel
from molprof.analysis.reader import document, unpack, workers
from molprof.analysis.reader.document import Document
from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.part import Part, WrongEventError, part_reader
from molprof.analysis.reader.source import open_source
from molprof.analysis.reader.survey import survey
from molprof.analysis.reader.workers import Workers
from molprof.analysis.reports import ReportOptions
from molprof.errors import TraceError

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="blocks are shared in Linux's memory files")

TRICKY = ('},{"ph"', "]}", '\\"', "{[", '"},\n  {\n    "ph"', "\\\\", "é\u2028")
EVENTS = [
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}},
    *(
        x(f"{TRICKY[i % 7]}{i % 50}", i, 0.5, tid=i % 3, cat=("cpu_op", "python_function", "kernel")[i % 3],
          args={"correlation": i, "text": TRICKY[i % 7], "stream": i % 5})
        for i in range(600)
    ),
    *({"ph": "sf"[i % 2], "id": i, "cat": "ac2g", "pid": 1, "tid": 2, "ts": i} for i in range(100)),
    {"ph": "i", "s": "g", "name": "end", "pid": 1, "tid": 2, "ts": 700},
    {"ph": "C", "name": "memory", "pid": 1, "ts": 4, "args": {"used": 5}},
]  # fmt: skip
TEXT = json.dumps({"head": 1, "traceEvents": EVENTS, "tail": [1]}).encode()
MIDDLE = TEXT.index(b'{"ph": "X"', len(TEXT) // 2)
BRIEF = Wanted(stacks=False, all_args=False)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "BLOCK_BYTES", 4000)
    monkeypatch.setattr(unpack, "BLOCK_BYTES", 4000)
    monkeypatch.setattr(document, "PARALLEL_BYTES", 0)


@pytest.fixture(scope="module")
def pair() -> Iterator[Workers]:
    with Workers(BRIEF, 2) as both:
        yield both


def outcome(path: Path, crew: Workers | None, wanted: Wanted = BRIEF, partial: bool = False) -> Any:
    """All that is found in the file, as values that can be compared; or the error's text."""
    try:
        with open_source(path) as source:
            read = Document(source.name, source.blocks, part_reader(wanted), partial, crew)
            found = survey(read.parts(), source.name)
    except TraceError as error:
        return str(error), error.hint
    values = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in asdict(found).items()}
    values["drafts"] = b"".join(found.texts())
    return values, read.keys, str(read.problem)


@pytest.mark.parametrize(
    "wanted", [BRIEF, Wanted(stacks=True, all_args=False), Wanted()], ids=["brief", "stacks", "all"]
)
def test_what_is_found_is_the_same(tmp_path: Path, wanted: Wanted) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT)
    with Workers(wanted, 2) as crew:
        taken: list[Part | None] = []
        take = crew.take
        crew.take = lambda: taken.append(take()) or taken[-1]  # type: ignore[method-assign,func-returns-value]
        assert outcome(path, crew, wanted) == outcome(path, None, wanted)
    events = sum(part.events for part in taken if part is not None)
    assert events > 0.9 * len(EVENTS)  # nearly all were read elsewhere


DAMAGED = {
    "truncated": TEXT[:MIDDLE],
    "truncated inside": TEXT[: MIDDLE + 30],
    "no comma": TEXT[: MIDDLE - 2] + b" " + TEXT[MIDDLE:],
    "nonsense": TEXT[:MIDDLE] + b"nonsense" + TEXT[MIDDLE:],
    "wrong type": TEXT[:MIDDLE] + b'{"ph": 5}, ' + TEXT[MIDDLE:],
    "wrong ts": TEXT[:MIDDLE] + b'{"ph": "X", "name": "bad", "ts": "soon"}, ' + TEXT[MIDDLE:],
    "wrong dur": TEXT[:MIDDLE] + b'{"ph": "X", "cat": "cpu_op", "name": "bad", "ts": 1, "dur": -1}, ' + TEXT[MIDDLE:],
    "invalid UTF-8": TEXT[:MIDDLE] + b'{"ph": "i", "ts": 1, "args": {"a": "\xff"}}, ' + TEXT[MIDDLE:],
    "two": TEXT[:MIDDLE] + b'{"ph": 5}, ' + TEXT[MIDDLE : MIDDLE + 9000] + b"\xff" + TEXT[MIDDLE + 9000 :],
    "gzip": gzip.compress(TEXT)[:-300],
    "wrong type, then gzip": gzip.compress(TEXT[:MIDDLE] + b'{"ph": 5}, ' + TEXT[MIDDLE:])[:-300],
    "separator in text": TEXT[:MIDDLE] + json.dumps(x('a"}, {"ph": "X' * 900, 1, 1)).encode() + b", " + TEXT[MIDDLE:],
    "other layout": TEXT[:MIDDLE] + b",".join(json.dumps(e, separators=(",", ":")).encode() for e in EVENTS) + b"]}",
    "long event": TEXT[:MIDDLE] + json.dumps(x("a", 1, 1, args={"a": "b" * 2_000_000})).encode() + b"," + TEXT[MIDDLE:],
}  # fmt: skip


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_errors_and_what_is_whole_are_the_same(tmp_path: Path, pair: Workers, content: bytes, partial: bool) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    expected = outcome(path, None, partial=partial)
    assert outcome(path, pair, partial=partial) == expected
    pair.drop()


@hypothesis.settings(max_examples=100, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    st.lists(
        st.tuples(
            st.integers(0, len(TEXT) - 1), st.sampled_from([b"", b"{", b"}", b"[", b",", b'"', b"\xff", b"7e999"])
        ),
        min_size=1,
        max_size=3,
    )
)
def test_damage_anywhere_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, pair: Workers, changes: list[tuple[int, bytes]]
) -> None:
    text = bytearray(TEXT)
    for place, piece in changes:
        text[place : place + 1] = piece
    path = tmp_path_factory.mktemp("damaged") / "trace.json"
    path.write_bytes(text)
    assert outcome(path, pair) == outcome(path, None)
    pair.drop()


@pytest.mark.parametrize("killed", [1, 2])
def test_a_killed_process_costs_only_time(tmp_path: Path, killed: int) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT)
    with Workers(BRIEF, 2) as crew:
        take = crew.take

        def deadly() -> Part | None:
            for process in crew._processes[:killed]:
                process.kill()
            return take()

        crew.take = deadly  # type: ignore[method-assign]
        assert outcome(path, crew) == outcome(path, None)
        assert not crew.usable


def test_processes_that_cannot_be_started_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT)

    def full(*arguments: object, **options: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(workers.subprocess, "Popen", full)
    with Workers(BRIEF, 2) as crew:
        assert outcome(path, crew) == outcome(path, None)


def test_processes_that_end_at_once_cost_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT)
    monkeypatch.setattr(workers, "_START", "raise SystemExit(1)")
    with Workers(BRIEF, 2) as crew:
        assert outcome(path, crew) == outcome(path, None)


@pytest.mark.parametrize("reason", [KeyboardInterrupt, MemoryError])
def test_no_process_is_left(reason: type[BaseException]) -> None:
    def chunks() -> Iterator[bytes]:
        for begin in range(0, len(TEXT) // 2, 4000):
            yield TEXT[begin : begin + 4000]
        raise reason

    handles: list[int] = []

    def read() -> None:
        with Workers(BRIEF, 2) as crew:
            for _ in Document("text", chunks(), part_reader(BRIEF), False, crew).parts():
                if crew._processes and not handles:
                    handles.extend(os.pidfd_open(process.pid) for process in crew._processes)

    with pytest.raises(reason):
        read()
    assert len(handles) == 2
    for handle in handles:
        assert select.select([handle], [], [], 0)[0]  # has ended
        os.close(handle)


PARENT = """
import sys
from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.workers import Workers
crew = Workers(Wanted(), 2)
assert crew.give(memoryview(b'{"ph": "X", "ts": 1}'))
assert crew.take().events == 1
print(*(process.pid for process in crew._processes), flush=True)
sys.stdin.read()
"""


def test_processes_end_with_their_parent_and_not_with_an_interrupt() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        handles = [os.pidfd_open(pid) for pid in pids]
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        assert not select.select(handles, [], [], 0)[0]
        parent.kill()
        for handle in handles:
            assert select.select([handle], [], [], 60)[0]
            os.close(handle)


def test_traces_side_by_side_share_the_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []

    def remote(path: Path, options: ReportOptions) -> Any:
        seen.append(options.processes)
        return path

    monkeypatch.setattr(parallel, "_remote", remote)
    for count in (2, 3, 8):
        monkeypatch.setattr(parallel, "processors", lambda count=count: count)
        parallel.load_reports([tmp_path / "a", tmp_path / "b"], ReportOptions())
    assert seen == [1, 1, 1, 1, 4, 4]


def test_a_wrong_event_says_after_which() -> None:
    assert (
        WrongEventError("ts of event 'a'", "'x' is no time").message(7)
        == "ts of event 'a', after event 7: 'x' is no time"
    )
    assert WrongEventError("event 'a' has a negative dur").message(7) == "event 'a' has a negative dur"
    assert WrongEventError("", "nested").message(7) == "after event 7: nested"
