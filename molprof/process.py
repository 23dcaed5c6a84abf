"""A command line of molprof as a process of its own."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence

# `-m` and `-c` by themselves look into the working directory first, where a checkout has a folder `molprof` that is
# only a part of the package: the other process imports what this one would.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from molprof.process import end_with_parent; end_with_parent(int(sys.argv.pop(1))); "
    "from molprof.cli import main; main()"
)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def command_line(arguments: Sequence[str]) -> list[str]:
    """What this process has to start for `molprof ARGUMENTS`; its end, however sudden, is the other's end too."""
    return [sys.executable, "-c", _START, json.dumps(sys.path), str(os.getpid()), *arguments]


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
