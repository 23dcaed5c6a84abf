"""A copy of this process (a fork), which works beside it on the memory that both have."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from molprof.common.memory import processors
from molprof.common.process import end_with_parent

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def can_copy() -> bool:
    """Whether copying this process is safe and worth it: a copy has one thread, whatever locks others held.

    Not on macOS, whose own libraries may crash in a copy.
    """
    return sys.platform == "linux" and threading.active_count() == 1 and processors() > 1


class Copy:
    """A copy that runs `work` with its end of a pipe, and ends. `connection` is the other end."""

    def __init__(self, work: Callable[[Connection], None]) -> None:
        from multiprocessing import Pipe  # on use: it takes 10 ms

        self.connection, theirs = Pipe()
        parent = os.getpid()
        # An interrupt must not run the parent's handlers in the copy.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with warnings.catch_warnings():
            # Libraries have idle threads, to which the copy gives no work.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if not self._pid:
            _run(work, theirs, parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def kill(self) -> None:
        """Ends the copy, whatever it does; who waits for it gets an EOFError."""
        with contextlib.suppress(ProcessLookupError):  # SIGCHLD may be ignored
            os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the copy, and waits until it is gone."""
        self.connection.close()
        self.kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _run(work: Callable[[Connection], None], connection: Connection, parent: int) -> None:
    """Runs the copy, which must neither return nor clean up what is its parent's."""
    try:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        end_with_parent(parent)
        work(connection)
    finally:
        os._exit(0)
