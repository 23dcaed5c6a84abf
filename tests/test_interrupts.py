"""Ctrl-C and other signals, whenever they come: one line, exit code 130, and no crash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from trace_rows import x

from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.process import command_line, interrupts_held

pytestmark = pytest.mark.usefixtures("anew")
INTERRUPTED = "molprof: error: interrupted; "
UNCHANGED = f"{INTERRUPTED}no file was changed\n"
# Run `work` as the command. `sent(name)` sends a signal to the process itself.
MAIN = """
import os, pathlib, signal, sys, time
from molprof import cli
from molprof.common.cache import write_entry
from molprof.common.errors import MolprofError
from molprof.common.files import replacing
def sent(name):
    os.kill(os.getpid(), getattr(signal, name))
{}
cli.cli.main = work
cli.main([])
"""


def ended(code: str, cwd: Path | None = None) -> tuple[int, str]:
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=cwd, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("work", "code", "message"),
    [
        # A second one ends the process at once, also one that Python drops because it comes while the handler changes.
        ("def work(**_):\n    try: sent('SIGINT')\n    finally: sent('SIGINT')", -signal.SIGINT, ""),
        (
            "class Dropped:\n"
            "    def __del__(self): raise OSError(f'Signal {signal.SIGTERM:d} ignored due to race condition')\n"
            "def work(**_):\n    try: sent('SIGINT')\n    finally: Dropped()",
            -signal.SIGTERM,
            "",
        ),
        # While an error is printed.
        (
            "class Late(MolprofError):\n    def __str__(self): sent('SIGINT')\ndef work(**_): raise Late('late')",
            130,
            UNCHANGED,
        ),
        # In a destructor, where Python loses exceptions.
        (
            "class Thing:\n    def __del__(self):\n        sent('SIGINT')\n        time.sleep(60)\n"
            "def work(**_):\n    Thing()\n    time.sleep(60)",
            130,
            UNCHANGED,
        ),
        # A terminal that closes, with and without nohup.
        ("signal.signal(signal.SIGHUP, signal.SIG_DFL)\ndef work(**_): sent('SIGHUP')", 130, UNCHANGED),
        ("signal.signal(signal.SIGHUP, signal.SIG_IGN)\ndef work(**_): sent('SIGHUP')", 0, ""),
        # Files that were written before are named, once each; those of the cache are not.
        (
            "def work(**_):\n"
            "    write_entry('reports', 'key', b'not told', 100)\n"
            "    for name in ('done', 'done', 'begun'):\n"
            "        with replacing(pathlib.Path(name)):\n"
            "            if name == 'begun': sent('SIGINT')",
            130,
            f"{INTERRUPTED}written before: done\n",
        ),
    ],
    ids=["twice", "dropped", "late", "destructor", "terminal", "nohup", "files"],
)
def test_a_signal(work: str, code: int, message: str, tmp_path: Path) -> None:
    assert ended(MAIN.format(work), tmp_path) == (code, message)
    assert [path.name for path in tmp_path.iterdir()] == (["done"] if "done" in work else [])


def test_a_signal_while_the_command_line_is_imported() -> None:
    code = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "molprof.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
runpy.run_module("molprof", run_name="__main__")
"""
    assert ended(code) == (-signal.SIGINT, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_held_signal_waits(number: signal.Signals) -> None:
    class Stop(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(number, stop)
    noted: list[int] = []

    def interrupted() -> None:
        with interrupts_held() as held:
            os.kill(os.getpid(), number)
            time.sleep(0.01)
            noted.extend(held)  # not reached where the signal did not wait

    try:
        with pytest.raises(Stop):
            interrupted()
        assert noted == [number]
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)


def test_ctrl_c_ends_a_query_that_has_no_end(engine: TraceProcessor) -> None:
    """The engine grows its memory by a call into Python, which ends it."""
    endless = "WITH RECURSIVE a(n) AS (SELECT 1 UNION SELECT n + 1 FROM a) SELECT MAX(n) FROM a"
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            engine.query(endless)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_report_that_is_interrupted_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [x(f"a{i % 9}", i, 0.5, cat="cpu_op" if i % 2 else "kernel") for i in range(6_000)]
    path.write_text(json.dumps({"traceEvents": events}))
    command = command_line(["report", "--no-cache", str(path)])
    codes: list[int] = []
    delay_s = 0.3
    while 0 not in codes:  # later each time, until it is done before the signal
        process = subprocess.Popen(command, stdout=-3, stderr=-1, text=True, start_new_session=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(delay_s)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
        codes.append(process.returncode)
        # Before its first line, or at its very end, the system or Python answers the signal.
        if process.returncode == -signal.SIGINT and "in main" not in said and "in _run" not in said:
            said = ""
        assert (process.returncode, said.strip()) in ((130, UNCHANGED.strip()), (0, ""), (-signal.SIGINT, ""))
        delay_s *= 1.4
    assert 130 in codes


def test_a_capture_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    command = command_line(["capture", "--model", "llama", "-n", "4", "-o", "out.json.gz"])
    with subprocess.Popen(command, cwd=tmp_path, stderr=-1, text=True) as process:
        assert process.stderr is not None
        assert "loading" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().strip() == UNCHANGED.strip()
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []
