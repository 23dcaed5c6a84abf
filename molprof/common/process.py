"""Processes that this one starts: command lines of molprof, how many are worth it, and their end with this one."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence

# `-m` and `-c` by themselves look into the working directory first, where a checkout has a folder `molprof` that is
# only a part of the package: the other process imports what this one would.
_CALL = (
    "import json, sys; from importlib import import_module; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "module, name = sys.argv.pop(1).split(':'); getattr(import_module(module), name)()"
)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def call_line(function: Callable[[], None], *arguments: str) -> list[str]:
    """What this process has to start for a call of a module's function, which finds the arguments in sys.argv[1:]."""
    return [sys.executable, "-c", _CALL, json.dumps(sys.path), f"{function.__module__}:{function.__name__}", *arguments]


def command_line(arguments: Sequence[str]) -> list[str]:
    """What this process has to start for `molprof ARGUMENTS`; its end, however sudden, is the other's end too."""
    return call_line(run_command, str(os.getpid()), *arguments)


def run_command() -> None:
    """The other end."""
    end_with_parent(int(sys.argv.pop(1)))
    from molprof.cli import main

    main()


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when the one that started it is gone; on Linux only.

    Args:
        parent: its process id, for it may be gone already.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
