"""Endless traces: progress is reported, and one line ends the read before memory runs out."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from molprof.analysis.reader import load, source
from molprof.analysis.reader.open import open_trace
from molprof.common.errors import TraceError

BEGIN = b'{"traceEvents": ['
EVENT = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%d,"dur":1},'


def test_a_long_stream_tells_how_much_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "pipe", itertools.count(0.0, 4.0)
    os.mkfifo(path)
    text = BEGIN + b"".join(EVENT % number for number in range(20_000)) + b"]}"
    writer = threading.Thread(target=path.write_bytes, args=(text,))
    writer.start()
    caplog.set_level(logging.INFO, "molprof")
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with source.open_source(path) as opened:
        assert b"".join(opened.blocks) == text
    writer.join()
    lines = [line for line in caplog.messages if line.startswith("read ")]
    assert len(lines) > 2
    assert all(
        " from pipe, " in line.replace(str(tmp_path) + "/", "") and line.endswith("/s; Ctrl-C ends it")
        for line in lines
    )


@pytest.mark.parametrize("text", [EVENT % 1, b" ", b'{"ph":"M","name":"thread_name","args":{"name":"a"}},'])
def test_a_stream_that_leaves_no_memory_ends_with_a_line(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever there is much of, also where no event comes."""
    path = tmp_path / "trace.json"
    path.write_bytes(BEGIN + text * (3_000_000 // len(text)))
    monkeypatch.setattr(source, "available_bytes", lambda: 50_000_000)
    monkeypatch.setattr(source, "_LOOKED_BYTES", 2_000_000)
    line = r"(?m)does not fit into memory: the first .* of its text leave 50\.0 MB of memory$"
    with pytest.raises(TraceError, match=line), open_trace(path):
        pass


def test_events_that_do_not_fit_are_refused_before_the_last_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(BEGIN + b"".join(EVENT % number for number in range(10_000)))  # without an end
    monkeypatch.setattr(load, "available_bytes", lambda: 1000)
    monkeypatch.setattr(load, "_LOOKED_EVENTS", 1000)
    with pytest.raises(TraceError, match=r"its first [\d,]+ events need about"), open_trace(path):
        pass


@pytest.mark.usefixtures("anew")
def test_too_little_memory_is_one_line(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom molprof import cli\ndef work(**_): raise MemoryError\n"
        "cli.cli.main = work\nsys.exit(cli.main([]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[0]) == (3, "molprof: error: there is not enough memory")
