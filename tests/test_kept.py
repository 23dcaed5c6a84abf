"""Traces and results in the cache: equal to new ones, and never of another file, option or damaged entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_trace

from molprof import api
from molprof.analysis.reader import load as reader
from molprof.analysis.reader import open as opening
from molprof.analysis.trace_processor import TraceProcessor, open_engine, state
from molprof.common.errors import EngineError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; its folder of traces. The compiled engine stays where it is."""
    monkeypatch.setenv("MOLPROF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "traces"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())


@pytest.fixture
def read_anew(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The traces that were read because the cache did not have them."""
    seen: list[str] = []
    original = reader.load_trace

    def recorded(path: Path, *arguments: Any, **options: Any) -> Any:
        seen.append(Path(path).name)
        return original(path, *arguments, **options)

    monkeypatch.setattr(reader, "load_trace", recorded)
    return seen


def _rows(trace: Path, query: str = "SELECT id, ts, dur, name FROM slice", **options: Any) -> list[list[Any]]:
    result = api.query([trace], query, **options)
    return [column.tolist() for column in result.frame.columns.values()]


def test_a_kept_trace_answers_as_a_new_one(folder: Path, trace: Path, read_anew: list[str]) -> None:
    new = _rows(trace)
    made = _rows(trace, "launches")
    assert _rows(trace, cached=True) == new == _rows(trace, cached=True)
    assert _rows(trace, "launches", cached=True) == made
    # What a query makes is gone with its process.
    assert _rows(trace, "CREATE TABLE mine AS SELECT 1 AS one; SELECT one FROM mine", cached=True) == [[1]]
    assert _rows(trace, "CREATE TABLE mine AS SELECT 2 AS one; SELECT one FROM mine", cached=True) == [[2]]
    assert len(read_anew) == 3
    assert _rows(trace.rename(trace.with_name("moved.json")), cached=True) == new
    assert len(read_anew) == 3


def test_another_file_or_option_is_another_trace(folder: Path, trace: Path, read_anew: list[str]) -> None:
    before = _rows(trace, cached=True)
    assert _rows(trace, cached=True, stacks=True)
    trace.write_bytes(trace.read_bytes().replace(b"molprof.forward", b"molprof.xorward"))
    assert _rows(trace, cached=True) != before
    assert len(read_anew) == 3


@pytest.mark.parametrize("position", [0, 40, -1, None], ids=str)
def test_a_damaged_entry_is_never_used(folder: Path, trace: Path, read_anew: list[str], position: int | None) -> None:
    new = _rows(trace, cached=True)
    (entry,) = folder.iterdir()
    content = bytearray(entry.read_bytes())
    if position is None:
        content.clear()
    else:
        content[position] ^= 1
    entry.write_bytes(content)
    assert _rows(trace, cached=True) == new
    assert len(read_anew) == 2


def test_what_is_too_large_is_not_kept(
    folder: Path, trace: Path, read_anew: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MAX_BYTES", 1000)
    assert _rows(trace, cached=True) == _rows(trace, cached=True)
    assert len(read_anew) == 2
    assert not folder.exists()


def test_a_native_trace_processor_keeps_nothing(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert opening.kept_key(trace, None) is not None
    assert opening.kept_key(trace, "/bin/shell") is None
    assert opening.kept_key("-", None) is None
    monkeypatch.setenv("MOLPROF_TRACE_PROCESSOR", "/bin/shell")
    assert opening.kept_key(trace, None) is None


@pytest.mark.parametrize("plain_bytes", [0, state._PLAIN_BYTES], ids=["compressed", "plain"])
def test_a_state_grows_the_memory_and_takes_more_packages(
    engine: TraceProcessor, monkeypatch: pytest.MonkeyPatch, plain_bytes: int
) -> None:
    monkeypatch.setattr(state, "_PLAIN_BYTES", plain_bytes)
    engine.feed(b'{"traceEvents": []}')
    engine.finish()
    engine.query("CREATE TABLE large AS SELECT zeroblob(48 << 20) AS text")
    held = engine.state()
    assert held is not None
    with open_engine(state=memoryview(held)) as other:
        assert other.query("SELECT LENGTH(text) AS length FROM large")["length"].tolist() == [48 << 20]
        other.register_package("mine", {"mine.one": "CREATE PERFETTO TABLE one AS SELECT 1 AS one"})
        assert other.query("INCLUDE PERFETTO MODULE mine.one; SELECT one FROM one")["one"].tolist() == [1]
        with pytest.raises(EngineError, match="packages"):
            other.state()
