"""The cache returns the same as a new read, never of another file, option or damaged entry, in bounded space."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tiny_trace

from molprof import api
from molprof.analysis.reader.open import kept_key
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.common.cache import read_entry, write_entry
from molprof.common.errors import EngineError, TraceError

ROOT = Path(__file__).parent.parent


class Kept:
    """Reports or traces in a cache of their own."""

    def __init__(self, kind: str, tmp_path: Path) -> None:
        self.kind = kind
        self.folder = tmp_path / "cache" / kind
        self.trace = tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())

    def read(self, path: Path | None = None, query: str = "SELECT id, ts, dur, name FROM slice", **how: Any) -> Any:
        if self.kind == "reports":
            return api.report(path or self.trace, **how)
        result = api.query([path or self.trace], query, **how)
        return [column.tolist() for column in result.frame.columns.values()]

    def entries(self) -> dict[str, int]:
        """The entries; the number of one that is written anew is another one."""
        return {path.name: path.lstat().st_ino for path in self.folder.iterdir()} if self.folder.exists() else {}


@pytest.fixture(params=["reports", "traces"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setenv("MOLPROF_CACHE", str(tmp_path / "cache"))
    return Kept(request.param, tmp_path)


def test_what_is_kept_equals_what_is_new_and_the_content_counts_not_the_name(kept: Kept) -> None:
    new = kept.read()
    assert kept.read(cached=True) == new
    entries = kept.entries()
    assert len(entries) == 1
    assert kept.read(cached=True) == new
    moved = kept.trace.rename(kept.trace.with_name("moved.json"))
    again = kept.read(moved, cached=True)
    assert again.trace.path == str(moved) if kept.kind == "reports" else again == new
    assert kept.entries() == entries


def test_another_file_or_option_is_another_entry(kept: Kept) -> None:
    before = kept.read(cached=True)
    for count, options in enumerate(({"stacks": True}, {"partial": True}), start=2):
        kept.read(cached=True, **options)
        assert len(kept.entries()) == count
    status = kept.trace.stat()
    kept.trace.write_bytes(kept.trace.read_bytes().replace(b"molprof.forward", b"molprof.xorward"))
    os.utime(kept.trace, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert kept.read(cached=True) != before
    assert len(kept.entries()) == 4


@pytest.mark.parametrize("position", [40, None], ids=str)
def test_a_damaged_entry_is_made_anew(kept: Kept, position: int | None) -> None:
    new = kept.read(cached=True)
    (entry,) = kept.folder.iterdir()
    content = bytearray(entry.read_bytes())
    if position is None:
        content.clear()
    else:
        content[position] ^= 1
    entry.write_bytes(content)
    before = kept.entries()
    assert kept.read(cached=True) == new
    assert kept.entries() != before


@pytest.mark.parametrize("how", ["link", "shared"])
def test_a_folder_that_others_may_have_made_is_not_used(kept: Kept, tmp_path: Path, how: str) -> None:
    """Not even where it holds what the cache wrote: nothing in it is read, changed or removed."""
    new = kept.read(cached=True)
    (tmp_path / "cache/files").mkdir(mode=0o700, exist_ok=True)
    for folder in list((tmp_path / "cache").iterdir()):
        if how == "link":
            folder.symlink_to(folder.rename(tmp_path / folder.name))
        else:
            folder.chmod(0o777)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert kept.read(cached=True) == new
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_entry_that_is_a_link_is_replaced_not_followed(kept: Kept, tmp_path: Path) -> None:
    new = kept.read(cached=True)
    (entry,) = kept.folder.iterdir()
    mine = entry.rename(tmp_path / "mine")
    entry.symlink_to(mine)
    mine.write_bytes(b"damaged")
    assert kept.read(cached=True) == new
    assert (mine.read_bytes(), entry.is_symlink()) == (b"damaged", False)


def test_errors_are_not_kept_and_a_cache_that_cannot_be_written_is_none(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"traceEvents": [')
    for _ in range(2):
        with pytest.raises(TraceError, match="truncated"):
            kept.read(bad, cached=True)
    assert kept.entries() == {}
    monkeypatch.setenv("MOLPROF_CACHE", str(bad))
    assert kept.read(cached=True) == kept.read()


def test_the_least_recently_used_go_and_what_is_too_large_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOLPROF_CACHE", str(tmp_path))
    for place, key in enumerate("abc"):
        write_entry("some", key, bytes(100), 1000)
        os.utime(tmp_path / "some" / key, (place, place))
    assert read_entry("some", "a") == bytes(100)  # used now
    write_entry("some", "d", bytes(100), 500)  # with 32 bytes of a hash each
    assert sorted(path.name for path in (tmp_path / "some").iterdir()) == ["a", "c", "d"]
    write_entry("some", "e", bytes(501), 500)
    assert read_entry("some", "e") is None


def test_what_a_query_makes_is_gone_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLPROF_CACHE", str(tmp_path / "cache"))
    kept = Kept("traces", tmp_path)
    for number in (1, 2):
        assert kept.read(query=f"CREATE TABLE mine AS SELECT {number} AS one; SELECT one FROM mine", cached=True) == [
            [number]
        ]
    assert kept.read(query="launches", cached=True) == kept.read(query="launches")


def test_a_file_that_lies_still_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLPROF_CACHE", str(tmp_path / "cache"))
    changing = Path(shutil.copy(ROOT / "traces/cpu-qwen.json.gz", tmp_path))
    assert kept_key(changing, None) == kept_key(ROOT / "traces/cpu-qwen.json.gz", None) is not None
    assert len(list((tmp_path / "cache/files").iterdir())) == 1


def test_a_native_trace_processor_and_a_stream_have_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = ROOT / "traces/cpu-qwen.json.gz"
    assert kept_key(trace, "/bin/shell") is None
    assert kept_key("-", None) is None
    monkeypatch.setenv("MOLPROF_TRACE_PROCESSOR", "/bin/shell")
    assert kept_key(trace, None) is None


@pytest.mark.parametrize("megabytes", [48, 80], ids=["plain", "compressed"])
def test_a_state_grows_the_memory_and_takes_more_packages(engine: TraceProcessor, megabytes: int) -> None:
    engine.feed(b'{"traceEvents": []}')
    engine.finish()
    engine.query(f"CREATE TABLE large AS SELECT randomblob(1000) AS one, zeroblob({megabytes} << 20) AS text")
    one = engine.query("SELECT HEX(one) AS one FROM large")["one"].tolist()
    held = engine.state()
    assert held is not None
    with open_engine(state=memoryview(held)) as other:
        assert other.query("SELECT LENGTH(text) AS length FROM large")["length"].tolist() == [megabytes << 20]
        assert other.query("SELECT HEX(one) AS one FROM large")["one"].tolist() == one
        other.register_package("mine", {"mine.one": "CREATE PERFETTO TABLE one AS SELECT 1 AS one"})
        assert other.query("INCLUDE PERFETTO MODULE mine.one; SELECT one FROM one")["one"].tolist() == [1]
        with pytest.raises(EngineError, match="packages"):
            other.state()


def test_several_reports_equal_single_ones_and_an_error_is_the_same(tmp_path: Path) -> None:
    trace = tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())
    other = tiny_trace.write(tmp_path / "b.json", {"traceEvents": [tiny_trace.work("kernel", "fmha", 5, 2, 1)]})
    paths = [trace, other, trace]
    assert api.reports(paths) == [api.report(path) for path in paths]
    other.write_text('{"traceEvents": [')
    with pytest.raises(TraceError, match=r"b\.json is truncated inside event 1") as failure:
        api.reports(paths)
    assert failure.value.hint == "read the intact part with --partial"


def test_reports_are_decoded_by_several_threads_at_once(tmp_path: Path) -> None:
    """In a process of its own: what msgspec knows of a class is made once, and a race for it ends the process."""
    trace = tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())
    (tmp_path / "report").write_bytes(msgspec.json.encode(api.report(trace)))
    script = (
        "import sys, threading\n"
        "sys.setswitchinterval(1e-6)\n"
        "from molprof.analysis.figures.model import decode_report\n"
        "text, together, found = open('report', 'rb').read(), threading.Barrier(4), []\n"
        "def decode():\n"
        "    together.wait()\n"
        "    found.append(decode_report(text))\n"
        "threads = [threading.Thread(target=decode) for _ in range(4)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "assert len(found) == 4 and found[0] == found[3]\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, cwd=tmp_path).returncode == 0


def test_a_report_in_the_cache_imports_nothing_that_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLPROF_CACHE", str(tmp_path / "cache"))
    trace = tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())
    command = "import sys\nfrom molprof.cli import cli\ncli(sys.argv[1:], standalone_mode=False)\nprint(*sys.modules)"
    arguments = [sys.executable, "-c", command, "report", str(trace), "--format", "json"]
    first, again = (subprocess.run(arguments, capture_output=True, text=True, check=True).stdout for _ in range(2))
    heavy = {"numpy", "molprof.analysis.reader.load", "molprof.analysis.findings"}
    assert first.rpartition("}")[0] == again.rpartition("}")[0]
    assert heavy <= {*first.split()}
    assert not heavy & {*again.split()}
