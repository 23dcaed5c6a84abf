"""Time and peak memory of a process, those that it starts included, up to limits on both."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass

from molprof.common.memory import proportional_bytes, resident_bytes
from molprof.common.process import members

_SAMPLE_S = 0.05
# Reading the memory of a large process stops it for a while: it may take this share of the time.
_SAMPLING_SHARE = 0.02
_PROGRESS_S = 10


@dataclass(frozen=True)
class Limits:
    """Most wall time, and most memory with the processes that it starts."""

    wall_s: float
    memory_bytes: float


@dataclass(frozen=True)
class Measured:
    """One process and those that it started; `failure`: why it was ended or what its error was."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    failure: str | None


def measure(title: str, command: list[str], variables: Mapping[str, str], limits: Limits) -> Measured:
    """Run a command to its end, or to a limit.

    Args:
        title: for progress on standard error.
        variables: the environment.
    """
    with tempfile.TemporaryFile() as errors:
        begin = time.monotonic()
        # A session of its own, so that what it starts can be ended with it.
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=variables, start_new_session=True
        )
        try:
            peak_bytes, failure, status, usage = _watched(process.pid, title, begin, limits)
        except BaseException:
            _end(process.pid)
            process.wait()
            raise
        wall_s = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        _end(process.pid)
        if failure is None and process.returncode:
            errors.seek(0)
            lines = errors.read().decode("utf-8", "replace").strip().splitlines() or ["no message"]
            failure = f"failed ({process.returncode}): {lines[-1][:80]}"
    peak_bytes = max(peak_bytes, usage.ru_maxrss * 1024)
    return Measured(wall_s, usage.ru_utime + usage.ru_stime, peak_bytes, failure)


def _watched(pid: int, title: str, begin: float, limits: Limits) -> tuple[int, str | None, int, os.struct_rusage]:
    """Wait for the process and end it at a limit: peak memory, failure, status, resource usage."""
    peak_bytes, failure, told = 0, None, begin
    handle = os.pidfd_open(pid)  # readable when the process has ended, so that no sleep is counted as its time
    try:
        while not (ended := os.wait4(pid, os.WNOHANG))[0]:
            before = time.monotonic()
            now_bytes = _memory_bytes(pid)
            peak_bytes = max(peak_bytes, now_bytes)
            after = time.monotonic()
            if failure is None:
                if after - begin > limits.wall_s:
                    failure = f"stopped after {limits.wall_s:.0f} s"
                elif now_bytes > limits.memory_bytes:
                    taken = f"{limits.memory_bytes / 1e9:.1f} GB after {after - begin:.0f} s"
                    failure = f"out of memory: more than {taken}"
                if failure is not None:
                    _end(pid)
            if after - told > _PROGRESS_S:
                told = after
                print(f"{title}: {after - begin:.0f} s, {now_bytes / 1e9:.2f} GB", file=sys.stderr, flush=True)
            select.select([handle], [], [], max(_SAMPLE_S, (after - before) / _SAMPLING_SHARE))
    finally:
        os.close(handle)
    _, status, usage = ended
    return peak_bytes, failure, status, usage


def _end(pid: int) -> None:
    """End what is left of a session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _memory_bytes(pid: int) -> int:
    """Memory of the process and those that it started, shared pages counted once."""
    family = members(pid)
    return proportional_bytes(family) if len(family) > 1 else resident_bytes(family)
