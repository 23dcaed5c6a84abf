"""Other processes: the one way to start one, to bind its life to this one's, and to end it with all it started."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

from molprof.common import GARBAGE
from molprof.common.interrupts import Interrupts

# `-m` and `-c` look into the working directory first, where a checkout has a folder `molprof` that is only a part of
# the package. The other process is handed this one's path, and imports what this one would.
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from molprof.common.process import called; called()"
)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Carried by every process of a benchmark's case, also by one that made a session of its own or lost its parent.
COOKIE = "MOLPROF_BENCH_CASE"
# Time to clean up after SIGTERM; Slurm's own default is 30 s until it kills.
GRACE_S = 10.0
_GONE_S = 10.0
_DRAIN_S = 5.0
_POLL_S = 0.01
_TAIL_BYTES = 8192
_ERROR = "molprof: error: "
_PROC = Path("/proc")


def call_line(target: str, *arguments: str, bound: bool = True) -> list[str]:
    """Return the command that calls `target` (`module:function`), which finds `arguments` in sys.argv[1:].

    If `bound`, the other process is killed when the thread that starts it ends, however suddenly; on Linux only.
    """
    parent = str(os.getpid()) if bound else ""
    return [sys.executable, "-c", _BOOTSTRAP, json.dumps(sys.path), parent, target, *arguments]


def command_line(arguments: Sequence[str]) -> list[str]:
    return call_line("molprof.cli:main", *arguments)


def called() -> None:
    """Do in the other process what `call_line` asks for."""
    parent, target = sys.argv.pop(1), sys.argv.pop(1)
    if parent:
        end_with_parent(int(parent))
    gc.set_threshold(GARBAGE)
    module, _, name = target.partition(":")
    getattr(import_module(module), name)()


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when `parent`, which started it, is gone; on Linux only."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "prctl"):
        return
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end(process: subprocess.Popen[bytes], cookie: str = "") -> bool:
    """Kill the group of a process that leads one, and what `members` finds by the cookie; False if that cannot be."""
    _signal(process, signal.SIGKILL)
    clean = not cookie or end_members(process.pid, cookie)
    process.wait()
    return clean


def end_members(root: int, cookie: str, spared: int | None = None) -> bool:
    """Kill all that `members` finds, except `spared`, and wait for them; False if one is stuck in the kernel."""
    until = time.monotonic() + _GONE_S
    while left := members(root, cookie) - {spared}:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def members(root: int, cookie: str = "") -> set[int]:
    """Return the living processes of the session that `root` leads, their descendants, and those with the cookie.

    From /proc, so on Linux only; elsewhere none are found. To look for cookies takes a file more per process: do it at
    the end of a case, not to watch one.
    """
    parents: dict[int, int] = {}
    found, mark = set(), f"{COOKIE}={cookie}".encode()
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may hold anything, spaces and parentheses too.
            state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if state in "ZX":
                continue
            parents[pid] = int(parent)
            if root in (pid, int(session)) or (cookie and mark in (entry / "environ").read_bytes().split(b"\0")):
                found.add(pid)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found


@dataclass(frozen=True)
class Ending:
    """How a command line ended."""

    exit_code: int  # of the process; below 0 the signal that killed it
    message: str | None  # why it failed; None if it did not
    timed_out: bool = False  # it was stopped at its time limit

    @property
    def state(self) -> str:
        return "timed out" if self.timed_out else "ok" if self.exit_code == 0 else "failed"


def run_child(
    arguments: Sequence[str], cwd: str | os.PathLike[str], log: BinaryIO, limit_s: float | None = None
) -> Ending:
    """Run `molprof ARGUMENTS` as `run_line` runs a command line."""
    return run_line(command_line(arguments), cwd, log, limit_s)


def run_line(line: Sequence[str], cwd: str | os.PathLike[str], log: BinaryIO, limit_s: float | None) -> Ending:
    """Run a command line in `cwd`, with its output and errors copied to `log` as they come.

    At the limit, and when an exception interrupts this call, the process gets SIGTERM, and SIGKILL after `GRACE_S`
    seconds. What it started and left is killed in any case.
    """
    tail, done = bytearray(), threading.Event()
    timed_out = False
    with contextlib.ExitStack() as ending:
        with Interrupts().kept():  # one that came between the start and its return would leave the process behind
            process = subprocess.Popen(
                line,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            # A grandchild with a session of its own may hold the pipe open for ever; the thread is left behind then.
            copy = threading.Thread(target=_copy, args=(process, log, tail, done), daemon=True)
            copy.start()
            ending.callback(_stop, process, copy, done)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
    code = process.returncode
    if timed_out:
        return Ending(code, f"stopped at its limit of {limit_s:g} s", timed_out=True)
    return Ending(code, None if code == 0 else why_failed(code, tail.decode("utf-8", "replace")))


def _stop(process: subprocess.Popen[bytes], copy: threading.Thread, done: threading.Event) -> None:
    """End a process that may have ended, as `run_line` says, and what copies its output."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    end(process)
    copy.join(_DRAIN_S)
    done.set()


def _copy(process: subprocess.Popen[bytes], log: BinaryIO, tail: bytearray, done: threading.Event) -> None:
    assert process.stdout is not None
    with process.stdout as pipe:
        while (block := os.read(pipe.fileno(), 1 << 16)) and not done.is_set():
            with contextlib.suppress(OSError):  # a full disk: the process must not wait for its output to be taken
                log.write(block)
                log.flush()
            tail += block
            del tail[:-_TAIL_BYTES]


def why_failed(code: int, output: str) -> str:
    """Return the last error that molprof printed, else the signal, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    if errors:
        return errors[-1]
    if code < 0:
        hint = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    return lines[-1] if lines else f"ended with code {code}"


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
