"""Queries that a copy of this process answers meanwhile: the trace processor uses a single processor."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from molprof.analysis.engine.columns import Columns
from molprof.common.memory import processors
from molprof.common.process import end_with_parent

Answer = Callable[[str], Columns]
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ahead:
    """Answers from a copy of this process, which shares the trace's memory."""

    def __init__(self, answer: Answer, queries: Sequence[str]) -> None:
        self._open = list(queries)  # without answer yet, in order
        self._answers: dict[str, Columns] = {}
        self._connection, theirs = Pipe()
        parent = os.getpid()
        # An interrupt must not run the parent's handlers in the copy.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with warnings.catch_warnings():
            # Libraries have idle threads. The copy gives them no work: it runs the engine and ends.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = os.fork()
        if not self._process:
            _serve(answer, queries, theirs, parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def take(self, query: str) -> Columns | None:
        """The answer, once it is there, as often as asked; None where the copy was not asked that, or failed."""
        while query in self._open:
            try:
                answered, columns = self._connection.recv()
            except (EOFError, OSError):
                self._open.clear()
                break
            self._open.remove(answered)
            if columns is not None:
                self._answers[answered] = columns
        return self._answers.get(query)

    def knows(self, query: str) -> bool:
        """Whether the copy answers that, or has."""
        return query in self._open or query in self._answers

    def close(self) -> None:
        """Ends the copy."""
        self._connection.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # SIGCHLD may be ignored
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)


def can_copy() -> bool:
    """Whether copying this process is safe and worth it: a copy has one thread, whatever locks others held."""
    return sys.platform == "linux" and threading.active_count() == 1 and processors() > 1


def _serve(answer: Answer, queries: Sequence[str], connection: Connection, parent: int) -> None:
    """Runs the copy, which must neither return nor clean up what is its parent's."""
    try:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        end_with_parent(parent)
        for query in queries:
            try:
                columns: Columns | None = answer(query)
            except Exception:  # the parent asks again and reports the error
                columns = None
            connection.send((query, columns))
    finally:
        os._exit(0)
