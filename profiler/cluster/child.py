"""A command line of molprof in a process of its own, which is gone with all its children when the call returns."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from molprof.common.process import command_line

# Time to clean up after SIGTERM; Slurm's own default is 30 s until it kills.
GRACE_S = 10.0
_POLL_S = 0.2
_TAIL_BYTES = 8192
# More than the pipe of a process that has ended can hold: what comes after it is of another that lives on.
_MOST_LEFT_BYTES = 1 << 20
_ERROR = "molprof: error: "


@dataclass(frozen=True)
class Ending:
    """How a command line ended.

    Attributes:
        exit_code: of the process, below 0 the signal that killed it.
        message: its error, or its last line; None where it went well.
        timed_out: it was stopped at its time limit.
    """

    exit_code: int
    message: str | None
    timed_out: bool = False

    @property
    def state(self) -> str:
        """`ok`, `failed` or `timed out`."""
        return "timed out" if self.timed_out else "ok" if self.exit_code == 0 else "failed"


def run_child(
    arguments: Sequence[str], cwd: str | os.PathLike[str], log: BinaryIO, limit_s: float | None = None
) -> Ending:
    """Runs `molprof ARGUMENTS` in `cwd`, its output and errors to `log` as they come.

    Whatever interrupts this call ends the process too: it is asked first, and killed after `GRACE_S` seconds.

    Args:
        limit_s: seconds until it is stopped; None: no limit.
    """
    process = subprocess.Popen(
        command_line(arguments),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    tail = bytearray()
    try:
        finished = _copy(process, log, tail, None if limit_s is None else time.monotonic() + limit_s)
        if not finished:
            _end(process, log, tail)
            return Ending(process.returncode, f"stopped at its limit of {limit_s:g} s", timed_out=True)
    except BaseException:
        _end(process, log, tail)
        raise
    finally:
        _signal(process, signal.SIGKILL)  # what it started and left
        if process.stdout is not None:
            process.stdout.close()
    code = process.wait()
    return Ending(code, None if code == 0 else _message(code, bytes(tail)))


def _copy(process: subprocess.Popen[bytes], log: BinaryIO, tail: bytearray, until: float | None) -> bool:
    """Copies output until the process has ended; False where the time is up before."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    left = _MOST_LEFT_BYTES
    while until is None or time.monotonic() < until:
        ended = process.poll() is not None
        if select.select([descriptor], [], [], 0 if ended else _POLL_S)[0] and (block := os.read(descriptor, 1 << 16)):
            log.write(block)
            log.flush()
            tail += block
            del tail[:-_TAIL_BYTES]
            left -= len(block) if ended else 0
            if left <= 0:
                return True
        elif ended:  # nothing more: a grandchild may hold the pipe open for ever
            return True
        else:  # silent, or it has closed its output, which can be read at once and for ever
            time.sleep(_POLL_S / 10)
    return False


def _end(process: subprocess.Popen[bytes], log: BinaryIO, tail: bytearray) -> None:
    _signal(process, signal.SIGTERM)
    if not _copy(process, log, tail, time.monotonic() + GRACE_S):
        _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _message(code: int, tail: bytes) -> str:
    """The error that molprof printed last, else the last line, else the signal."""
    lines = [line.strip() for line in tail.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    if errors:
        return errors[-1]
    if code < 0:
        return f"killed by {signal.Signals(-code).name}" + (
            ", as the system does where memory runs out" if code == -signal.SIGKILL else ""
        )
    return lines[-1] if lines else f"ended with code {code}"
