"""Ctrl-C while the embedded engine works: one line, exit code 130, and no crash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from trace_rows import x

from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.process import command_line, interrupts_held


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_the_engine_has_returned(number: signal.Signals) -> None:
    class Stop(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(number, stop)
    try:
        noted: list[int] = []

        def interrupted() -> None:
            with interrupts_held() as held:
                os.kill(os.getpid(), number)
                time.sleep(0.01)
                noted.extend(held)  # not reached where the signal did not wait

        with pytest.raises(Stop):
            interrupted()
        assert noted == [number]
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)


def test_the_engines_next_call_into_python_ends_its_own(
    engine: TraceProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []
    transport: Any = engine._transport
    export = transport._export

    def killed(*what: Any) -> Any:  # at the moment at which an exception would be lost
        os.kill(os.getpid(), signal.SIGINT)
        return export(*what)

    def interrupt(*_: object) -> None:
        heard.append(True)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        monkeypatch.setattr(transport, "_export", killed)
        with pytest.raises(KeyboardInterrupt):
            engine.query("SELECT 1")
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard


def test_a_report_that_is_interrupted_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [x(f"a{i % 9}", i, 0.5, cat="cpu_op" if i % 2 else "kernel") for i in range(12_000)]
    path.write_text(json.dumps({"traceEvents": events}))
    command = command_line(["report", "--no-cache", str(path)])
    codes: list[int] = []
    delay_s = 0.3
    while 0 not in codes:  # later each time, until it is done before the signal
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(delay_s)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
        codes.append(process.returncode)
        if process.returncode == 130:
            assert said.strip() == "molprof: error: interrupted; no file was changed"
        # Before its first line, or at its very end, the system answers the signal.
        assert process.returncode in (0, 130, -signal.SIGINT), said
        delay_s += 0.2
    assert 130 in codes


def test_a_second_interrupt_ends_the_process_at_once() -> None:
    code = """
import os, signal, sys
from molprof import cli
def work(**_):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
cli.cli.main = work
cli.main([])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_a_second_interrupt_that_python_drops_ends_the_process_too() -> None:
    """Python drops one that comes while its handler is replaced, and says so to the hook for what cannot be raised."""
    code = """
import os, signal
from molprof import cli
class Dropped:
    def __del__(self):
        raise OSError(f"Signal {signal.SIGTERM:d} ignored due to race condition")
def work(**_):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        Dropped()
cli.cli.main = work
cli.main([])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGTERM, "")


def test_an_interrupt_while_an_error_is_printed() -> None:
    code = """
import os, signal
from molprof import cli
from molprof.common.errors import MolprofError
class Late(MolprofError):
    def __str__(self):
        os.kill(os.getpid(), signal.SIGINT)
        return "not told"
def work(**_):
    raise Late("late")
cli.cli.main = work
cli.main([])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "molprof: error: interrupted; no file was changed\n")


def test_an_interrupt_in_a_destructor_is_not_lost() -> None:
    code = """
import os, signal, time
from molprof import cli
class Thing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
def work(**_):
    Thing()
    time.sleep(60)
cli.cli.main = work
cli.main([])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "molprof: error: interrupted; no file was changed\n")


def test_an_interrupt_tells_what_was_written(tmp_path: Path) -> None:
    code = """
import os, pathlib, signal
from molprof import cli
from molprof.common.cache import write_entry
from molprof.common.files import replacing
def work(**_):
    write_entry("reports", "key", b"not told", 100)
    for name in ("done", "done", "begun"):
        with replacing(pathlib.Path(name)):
            if name == "begun":
                os.kill(os.getpid(), signal.SIGINT)
cli.cli.main = work
cli.main([])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (130, "molprof: error: interrupted; written before: done\n")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["done"]


def test_an_interrupt_while_the_command_line_is_imported() -> None:
    code = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "molprof.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
runpy.run_module("molprof", run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_interrupts_but_for_nohup(ignored: bool) -> None:
    code = f"""
import os, signal, sys
from molprof import cli
signal.signal(signal.SIGHUP, signal.{"SIG_IGN" if ignored else "SIG_DFL"})
cli.cli.main = lambda **_: os.kill(os.getpid(), signal.SIGHUP)
cli.main([])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = "" if ignored else "molprof: error: interrupted; no file was changed\n"
    assert (ended.returncode, ended.stderr) == (0 if ignored else 130, said)
