"""The processes of a case: which there are, what memory they hold, and their end. From /proc, Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PROC = Path("/proc")
# Carried by every process of a case, also by one that made a session of its own or lost its parent.
COOKIE = "MOLPROF_BENCH_CASE"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GONE_S = 10.0
_POLL_S = 0.01


def members(root: int, cookie: str | None = None) -> set[int]:
    """Living processes of the session that `root` leads, their descendants, and those that carry the cookie.

    Reading cookies takes a file more per process: for the end of a case, not for watching it.
    """
    parents: dict[int, int] = {}
    found = set()
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may hold anything, spaces and parentheses too.
            state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if state in "ZX":
                continue
            parents[pid] = int(parent)
            if int(session) == root or pid == root or (cookie and _carries(entry, cookie)):
                found.add(pid)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found


def resident_bytes(pids: set[int]) -> int:
    """Memory that is resident, shared pages counted once for each process that has them."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages += int((PROC / str(pid) / "statm").read_text().split()[1])
    return pages * _PAGE_BYTES


def proportional_bytes(pids: set[int]) -> int:
    """Memory that is resident, shared pages divided by those who share them; slower to find out."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def end(root: int, cookie: str, spared: int | None = None) -> bool:
    """Kills them all, but for one that is `spared`, and waits until none is left; False where one cannot be killed
    (stuck in the kernel)."""
    until = time.monotonic() + _GONE_S
    while left := members(root, cookie) - {spared}:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def available_bytes() -> int | None:
    """Memory that the machine, or the container that this process is in, has left; None where nothing tells."""
    found = [value for value in (_of_machine(), _of_container()) if value is not None]
    return min(found) if found else None


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory since it started; 0 where it does not tell."""
    with contextlib.suppress(OSError):
        for line in (PROC / "vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _carries(entry: Path, cookie: str) -> bool:
    with contextlib.suppress(OSError):
        return f"{COOKIE}={cookie}".encode() in (entry / "environ").read_bytes().split(b"\0")
    return False


def _of_machine() -> int | None:
    with contextlib.suppress(OSError):
        for line in (PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_container() -> int | None:
    """By version 2 of control groups; what files it has cached can be given back."""
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return limit - used + int(fields.get("inactive_file", 0))
    return None
