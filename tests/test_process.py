"""Command lines in processes of their own: how they end, and that nothing of them is left."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from strays import mark as mark
from strays import strays

from molprof.common import process
from molprof.common.process import output_of, run_child


def test_a_childs_end_is_told(tmp_path: Path) -> None:
    log = io.BytesIO()
    ending = run_child(["report", "absent.json"], tmp_path, log)
    assert (ending.state, ending.exit_code) == ("failed", 2)
    assert ending.message == "cannot read absent.json: No such file or directory"
    assert log.getvalue().startswith(b"molprof: error: cannot read absent.json")
    ending = run_child(["queries"], tmp_path, log := io.BytesIO())
    assert (ending.state, ending.exit_code, ending.message) == ("ok", 0, None)
    assert b"idle_causes" in log.getvalue()


def test_a_child_that_hangs_is_stopped_at_its_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hang.json")
    ending = run_child(["report", "hang.json"], tmp_path, log := io.BytesIO(), limit_s=8.0)
    assert (ending.state, ending.message) == ("timed out", "stopped at its limit of 8 s")
    assert log.getvalue().endswith(b"molprof: error: interrupted; no file was changed\n")


def test_a_child_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\n"
    monkeypatch.setattr(process, "command_line", lambda arguments: [sys.executable, "-c", f"{deaf}time.sleep(60)"])
    monkeypatch.setattr(process, "GRACE_S", 0.5)
    ending = run_child([], tmp_path, log := io.BytesIO(), limit_s=3.0)
    assert (ending.state, ending.exit_code, log.getvalue()) == ("timed out", -9, b"deaf\n")


def test_a_child_that_left_a_chatterer_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import subprocess; subprocess.Popen(['yes', 'still here']); print('done', flush=True)"
    monkeypatch.setattr(process, "command_line", lambda arguments: [sys.executable, "-c", script])
    ending = run_child([], tmp_path, log := io.BytesIO(), limit_s=60.0)
    assert (ending.state, ending.exit_code) == ("ok", 0)
    assert b"done" in log.getvalue()


def test_what_a_command_printed() -> None:
    done = output_of([sys.executable, "-c", "import sys; print('out'); sys.exit('said')"])
    assert (done.returncode, done.stdout, done.stderr) == (1, "out\n", "said\n")


def test_the_whole_group_of_a_command_ends_at_its_limit(mark: str) -> None:
    script = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    with pytest.raises(subprocess.TimeoutExpired):
        output_of([sys.executable, "-c", script], limit_s=3.0)
    assert strays(mark) == []


def test_a_child_does_not_outlive_whoever_started_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hang.json")
    code = (
        "import subprocess, sys\n"
        "from molprof.common.process import command_line\n"
        "child = subprocess.Popen(command_line(['report', 'hang.json']), start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    other = int(parent.stdout.readline())
    with (tmp_path / "hang.json").open("wb"):  # opens when the child has opened it
        parent.kill()
        parent.wait()
        parent.stdout.close()
        for _ in range(100):
            if not _lives(other):
                break
            threading.Event().wait(0.1)
    assert not _lives(other)


def _lives(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def test_an_interrupt_while_a_process_starts_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)
            assert self.poll() is None

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.run_line([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, io.BytesIO(), None)
    assert [item.returncode for item in started] == [-signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_a_child_killed_by_a_signal_names_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hang.json")
    found: list[int] = []

    def kill() -> None:
        with (tmp_path / "hang.json").open("wb"):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit() and int(entry.name) != os.getpid():
                    try:
                        line = (entry / "cmdline").read_bytes()
                        if b"hang.json" in line and str(os.getpid()).encode() in line.split(b"\0"):
                            found.append(int(entry.name))
                            os.kill(int(entry.name), signal.SIGKILL)
                    except OSError:
                        continue

    killer = threading.Thread(target=kill)
    killer.start()
    ending = run_child(["report", "hang.json"], tmp_path, io.BytesIO())
    killer.join()
    assert len(found) == 1
    assert (ending.state, ending.exit_code) == ("failed", -9)
    assert ending.message == "killed by SIGKILL, as the system does when memory runs out"
