"""Ctrl-C in `molprof run` while molprof itself works: one line, no file, and the exit code of Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("anew")
# Sends a signal to itself before the program begins; when it begins to record; when it opens the first file for it.
START = """
import os, signal, sys
if any("recording.script" in item for item in sys.orig_argv):
    os.kill(os.getpid(), signal.SIGINT)
"""
BEGIN = """
import os, signal, sys
import molprof
class Finder:
    def find_spec(self, name, *_):
        if name == "molprof.profiler.recording.clock":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
try:
    with molprof.step():
        print("never")
except KeyboardInterrupt:
    print("mine")
    raise
"""
WRITE = """
import os, signal, sys
import torch
def heard(event, arguments):
    if event == "open" and ".molprof-part" in str(arguments[0]):
        os.kill(os.getpid(), signal.NUMBER)
sys.addaudithook(heard)
torch.ones(2).add_(1)
print("mine")
"""


def ran(folder: Path, program: str, *arguments: str, path: str = "") -> tuple[int, str, str]:
    (folder / "program.py").write_text(program)
    line = [sys.executable, "-m", "molprof", "run", *arguments, "-o", "run.json", "program.py"]
    environment = {**os.environ, "PYTHONPATH": f"{path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=folder, timeout=300, env=environment)
    return done.returncode, done.stdout, done.stderr


def test_before_the_program_begins(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(START)
    code, out, said = ran(tmp_path, "print('never')", path=str(tmp_path))
    assert (code, out, said) == (-signal.SIGINT, "", "molprof: interrupted before the program began\n")


def test_when_the_recording_begins(tmp_path: Path) -> None:
    code, out, said = ran(tmp_path, BEGIN)
    line = "molprof: interrupted when the recording began: nothing is recorded\n"
    assert (code, out, said) == (-signal.SIGINT, "mine\n", line)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_when_the_trace_is_written(name: str, tmp_path: Path) -> None:
    code, out, said = ran(tmp_path, WRITE.replace("NUMBER", name), "--full")
    line = "molprof: interrupted while the trace was written: none is written\n"
    assert (code, out, said) == (-signal.Signals[name], "mine\n", line)
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["program.py"]
