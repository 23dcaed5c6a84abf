"""Available memory and processors, and threads' use of them. From /proc and control groups, on Linux."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

# Threads of OpenMP spin while they wait for each other at the end of every operator. Where another program takes a
# core, the others spin until the last one gets its turn, so that a busy machine costs many times its share. The OpenMP
# libraries of GCC and of LLVM and Intel read these once, when they are loaded.
_SLEEPING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
_CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def processors() -> int:
    """Return the number of processors that this process may use; in a container fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that this process may still take: the machine's, or its control group's if that is less.

    Cached files count as available. None if the system does not tell, as on other systems than Linux.
    """
    limits = list(_of_groups(root))
    with contextlib.suppress(OSError, KeyError, ValueError):
        limits.append(numbers(root / "proc/meminfo")["MemAvailable"] * 1024)
    return max(0, min(limits)) if limits else None


def _of_groups(root: Path) -> Iterator[int]:
    """Yield the free memory of control groups of both versions.

    Source: docs.kernel.org/admin-guide/cgroup-v2.html, cgroup-v1/memory.
    """
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "file")
            elif "memory" in controllers.split(","):
                top = root / "sys/fs/cgroup/memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache")
            else:
                continue
            group = top / path.strip("/")
            for folder in (group, *group.parents):  # a limit of a group holds for all within it
                with contextlib.suppress(OSError, KeyError, ValueError):
                    limit, used = (int((folder / item).read_text()) for item in names[:2])
                    yield limit - used + numbers(folder / "memory.stat")[names[2]]
                if folder == top:
                    break


def return_freed() -> None:
    """Return freed memory to the system, which glibc keeps if a later block is in use; elsewhere do nothing."""
    import ctypes  # on use: start-up needs none

    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def numbers(file: Path) -> dict[str, int]:
    """Return the numbers in a file with lines `name number` or `name: number kB`."""
    rows = (line.replace(":", " ").split() for line in file.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def oom_kills() -> int:
    """Return the number of processes that the kernel killed for lack of memory since it started; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError):
        return numbers(Path("/proc/vmstat")).get("oom_kill", 0)
    return 0


def let_threads_sleep() -> None:
    """Make waiting threads sleep; call it before torch is imported. User settings are kept."""
    for name, value in _SLEEPING.items():
        os.environ.setdefault(name, value)


def default_threads(usual: int) -> int:
    """Return the threads of a run on a CPU: torch's own number, but one core stays free for other programs.

    Args:
        usual: what torch would take, which stays where the user set it by a variable of the environment.
    """
    if any(os.environ.get(name) for name in _CHOSEN):
        return usual
    return max(1, min(usual, processors() - 1))
