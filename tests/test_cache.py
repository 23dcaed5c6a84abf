"""Reports in the cache: equal to new ones, never of another file, option or damaged entry, and bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tiny_trace

from molprof import Reading, api
from molprof.analysis import trace as traces
from molprof.analysis.reader import open as opening
from molprof.common import cache, process
from molprof.common.errors import EngineError, TraceError
from molprof.common.process import Copied

CACHED = Reading(cached=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; its folder of reports."""
    monkeypatch.setenv("MOLPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_SETTLED_NS", -1)
    return tmp_path / "cache" / "reports"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())


@pytest.fixture
def read_anew(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The traces that were read because the cache did not have them."""
    seen: list[str] = []
    original = opening.open_trace

    def recorded(path: Path, *arguments: Any, **how: Any) -> Any:
        seen.append(Path(path).name)
        return original(path, *arguments, **how)

    monkeypatch.setattr(opening, "open_trace", recorded)
    return seen


def test_a_kept_report_equals_a_new_one(folder: Path, trace: Path, read_anew: list[str]) -> None:
    new = api.report(trace)
    assert [api.report(trace, CACHED), api.report(trace, CACHED)] == [new, new]
    assert read_anew == ["trace.json", "trace.json"]
    assert len(list(folder.iterdir())) == 1
    assert list((folder.parent / "files").iterdir())


def test_the_content_counts_not_the_name(folder: Path, trace: Path, read_anew: list[str]) -> None:
    api.report(trace, CACHED)
    moved = trace.rename(trace.with_name("moved.json"))
    assert api.report(moved, CACHED).trace.path == str(moved)
    assert read_anew == ["trace.json"]


def test_a_changed_file_is_read_anew_even_with_its_old_times(folder: Path, trace: Path, read_anew: list[str]) -> None:
    before = api.report(trace, CACHED)
    status = trace.stat()
    trace.write_bytes(trace.read_bytes().replace(b"molprof.forward", b"molprof.xorward"))
    os.utime(trace, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert api.report(trace, CACHED) != before
    assert len(read_anew) == 2


def test_a_file_still_being_written_is_hashed_each_time(
    folder: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_SETTLED_NS", 10**18)
    api.report(trace, CACHED)
    assert len(list(folder.iterdir())) == 1
    assert not (folder.parent / "files").exists()


@pytest.mark.parametrize("options", [Reading(stacks=True, cached=True), Reading(partial=True, cached=True)])
def test_other_options_are_another_report(folder: Path, trace: Path, read_anew: list[str], options: Reading) -> None:
    api.report(trace, CACHED)
    api.report(trace, options)
    assert len(read_anew) == 2


def test_other_code_is_another_report(
    folder: Path, trace: Path, read_anew: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.report(trace, CACHED)
    monkeypatch.setattr(cache, "code_digest", lambda: "changed")
    api.report(trace, CACHED)
    assert len(read_anew) == 2


@pytest.mark.parametrize("position", [0, 40, -1])
def test_a_damaged_entry_is_never_used(folder: Path, trace: Path, read_anew: list[str], position: int) -> None:
    new = api.report(trace, CACHED)
    (entry,) = folder.iterdir()
    content = bytearray(entry.read_bytes())
    content[position] ^= 1
    entry.write_bytes(content)
    assert api.report(trace, CACHED) == new
    assert len(read_anew) == 2


def test_the_size_is_bounded_and_the_last_used_stay(folder: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api.report(trace, CACHED)
    (entry,) = folder.iterdir()
    old = folder / "old"
    old.write_bytes(b"x" * 1000)
    os.utime(old, (1, 1))
    monkeypatch.setattr(traces, "MAX_BYTES", 2 * entry.stat().st_size + 500)
    api.report(trace, stacks=True, cached=True)
    assert not old.exists()
    assert len(list(folder.iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_no_error(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MOLPROF_CACHE", str(tmp_path / "file"))
    assert api.report(trace, CACHED) == api.report(trace)


@pytest.mark.parametrize("kind", ["link", "shared"])
def test_a_folder_that_others_may_have_made_is_not_used(
    folder: Path, trace: Path, tmp_path: Path, read_anew: list[str], kind: str
) -> None:
    """Not even where it holds what the cache wrote: nothing in it is read, changed or removed."""
    new = api.report(trace, CACHED)
    for name in ("reports", "files"):
        if kind == "link":
            (folder.parent / name).symlink_to((folder.parent / name).rename(tmp_path / name))
        else:
            (folder.parent / name).chmod(0o777)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert api.report(trace, CACHED) == new
    assert len(read_anew) == 2
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_entry_that_is_a_link_is_replaced_not_followed(folder: Path, trace: Path, tmp_path: Path) -> None:
    new = api.report(trace, CACHED)
    (entry,) = folder.iterdir()
    mine = entry.rename(tmp_path / "mine")
    entry.symlink_to(mine)
    mine.write_bytes(b"damaged")
    assert api.report(trace, CACHED) == new
    assert (mine.read_bytes(), entry.is_symlink()) == (b"damaged", False)


def test_errors_are_not_kept(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"traceEvents": [')
    for _ in range(2):
        with pytest.raises(TraceError, match="truncated"):
            api.report(bad, CACHED)
    assert not folder.exists()


@pytest.fixture(params=[False, True])
def two_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them new, or a copy of this one, which is allowed though the test runner has threads."""
    monkeypatch.setattr(traces, "processors", lambda: 2)
    monkeypatch.setattr(process, "can_copy", lambda: request.param)


@pytest.mark.usefixtures("two_processes")
def test_parallel_reports_equal_single_ones(trace: Path) -> None:
    other = tiny_trace.write(
        trace.with_name("other.json"), {"traceEvents": [tiny_trace.work("kernel", "fmha", 5, 2, 1)]}
    )
    paths = [trace, other, trace]
    assert api.reports(paths) == [api.report(path) for path in paths]


@pytest.mark.usefixtures("two_processes")
def test_an_error_in_a_process_is_the_same_error(trace: Path) -> None:
    bad = trace.with_name("bad.json")
    bad.write_text('{"traceEvents": [')
    with pytest.raises(TraceError, match=r"bad\.json is truncated inside event 1") as failure:
        api.reports([trace, bad])
    assert failure.value.hint == "read the intact part with --partial"


def test_a_copy_tells_what_failed_in_it_and_that_it_is_gone() -> None:
    def make(request: bytes) -> bytes:
        if request == b"killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return request.upper() if request == b"text" else bytes({}[request])

    with closing(Copied(make, "try again")) as process:
        assert process.ask(b"text", "it") == b"TEXT"
        with pytest.raises(EngineError, match="failed: KeyError: b'wrong'"):
            process.ask(b"wrong", "it")
        assert process.ask(b"text", "it") == b"TEXT"
        with pytest.raises(EngineError, match="the process that read it was killed") as failure:
            process.ask(b"killed", "it")
    assert failure.value.hint == "try again"


def test_reports_are_decoded_by_several_threads_at_once(tmp_path: Path, trace: Path) -> None:
    """In a process of its own: what msgspec knows of a class is made once, and a race for it ends the process."""
    (tmp_path / "report").write_bytes(msgspec.json.encode(api.report(trace)))
    script = (
        "import sys, threading\n"
        "sys.setswitchinterval(1e-6)\n"
        "from molprof.analysis.figures.model import decode_report\n"
        "text, together, found = open(sys.argv[1], 'rb').read(), threading.Barrier(4), []\n"
        "def decode():\n"
        "    together.wait()\n"
        "    found.append(decode_report(text))\n"
        "threads = [threading.Thread(target=decode) for _ in range(4)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "assert len(found) == 4 and found[0] == found[3]\n"
    )
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{script}", tmp_path / "report"]
    assert subprocess.run(command, check=False).returncode == 0


def test_a_report_in_the_cache_imports_nothing_that_reads(folder: Path, trace: Path) -> None:
    command = "import sys\nfrom molprof.cli import cli\ncli(sys.argv[1:], standalone_mode=False)\nprint(*sys.modules)"
    arguments = [sys.executable, "-c", command, "report", str(trace), "--format", "json"]
    first, again = (subprocess.run(arguments, capture_output=True, text=True, check=True).stdout for _ in range(2))
    heavy = {"numpy", "molprof.analysis.reader.load", "molprof.analysis.findings"}
    assert first.rpartition("}")[0] == again.rpartition("}")[0]
    assert heavy <= {*first.split()}
    assert not heavy & {*again.split()}
