"""Other processes for calls: one that runs them in turn, and several as an executor of `concurrent.futures`."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import LifoQueue
from typing import Any, TypeVar

from molprof.common.errors import MolprofError, missing_extra
from molprof.common.process import Copy, call_line, named, start, why_failed

_POLL_S = 0.1
T = TypeVar("T")


class WorkerError(Exception):
    """A call in another process without a result: an error that is not molprof's, or the process has ended."""


class Worker:
    """A process that runs one call after the other. It starts with the first, and is replaced if it fails.

    Args:
        copied: the first process is a copy of this one, which need not import anything; see `can_copy`.
        limit_s: time for a call, after which the process is killed.
        alone: it is of a session of its own, its errors go where this process's go, and it ends with this process;
            else it ends with the thread that makes the first call.
    """

    def __init__(self, *, copied: bool = False, limit_s: float | None = None, alone: bool = False) -> None:
        self.limit_s, self._alone = limit_s, alone
        self._is_ended = False
        self._process: Copy | subprocess.Popen[bytes] | None = None
        self._connection: Connection
        self._errors: Any = io.BytesIO()
        if copied:
            self._process = Copy(_serve)
            self._connection = self._process.connection

    def run(self, function: Callable[..., T] | str, *arguments: Any) -> T:
        """Return the result of a function, or of `module:function`, in the process.

        Raises the MolprofError that it raises, or WorkerError.
        """
        if self._process is not None and self._connection.poll():  # killed while it had nothing to do
            self.close()
        process = self._process or self._start()
        answer: bytes | None = b""
        with contextlib.suppress(EOFError, OSError):
            self._connection.send_bytes(pickle.dumps((function, arguments)))
            answer = self._connection.recv_bytes() if self._connection.poll(self.limit_s) else None
        if not answer:
            if answer is None:
                process.kill()
            why = self.close()
            raise WorkerError(f"it took over {self.limit_s:g} s" if answer is None else why)
        result, error = pickle.loads(answer)
        if error is not None:
            raise error
        returned: T = result
        return returned

    def kill(self) -> None:
        """Kill the process at once, and start no other."""
        self._is_ended = True
        if process := self._process:
            process.kill()

    def close(self) -> str:
        """Wait for the end of the killed process; return why it ended."""
        process, self._process = self._process, None
        if process is None:
            return ""
        self._connection.close()
        code = process.wait()
        with self._errors as file:
            file.seek(0)
            said = file.read().decode("utf-8", "replace")
        return why_failed(code, said) if code else "its answer was cut off"

    def _start(self) -> subprocess.Popen[bytes]:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._connection, theirs = Pipe()
        with theirs:
            more = ["alone"] if self._alone else []
            self._process = process = start(
                call_line(f"{__name__}:serve", str(theirs.fileno()), *more, bound=not self._alone),
                stdout=subprocess.DEVNULL,
                stderr=None if self._alone else self._errors,
                start_new_session=self._alone,
                pass_fds=[theirs.fileno()],
            )
        if self._is_ended:  # meanwhile
            process.kill()
        return process


class Workers(Executor):
    """Processes that each run one call at a time; without `copied`, at most one per waiting call is started."""

    def __init__(self, count: int, *, copied: bool = False) -> None:
        self._workers = [Worker(copied=copied) for _ in range(count)]
        self._idle: LifoQueue[Worker] = LifoQueue()  # those that have a process come first
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(count)

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:  # type: ignore[override]
        """Return the future of a call; its errors are those of `Worker.run`."""
        return self._threads.submit(self._run, function, *arguments)

    def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        worker = self._idle.get()
        try:
            return worker.run(function, *arguments)
        finally:
            self._idle.put(worker)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: without `wait` at once."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()


def serve() -> None:
    """Run the calls of a `Worker`, in the process that it started."""
    pipe, *alone = sys.argv[1:]
    if alone:
        threading.Thread(target=_end_with_pipe, args=(int(pipe),), daemon=True).start()
    _serve(Connection(int(pipe)))


def _end_with_pipe(pipe: int) -> None:
    """End this process at once when the other one is gone."""
    end = select.poll()
    end.register(pipe, select.POLLHUP)  # Linux tells the end without being asked for, macOS does not
    while not end.poll():
        time.sleep(_POLL_S)  # macOS tells of a request too, as nothing
    os._exit(0)


def _serve(connection: Connection) -> None:
    with contextlib.suppress(EOFError):
        while True:
            connection.send_bytes(answer(connection.recv_bytes()))


def answer(request: bytes) -> bytes:
    """Return, pickled, the result of a pickled call, None; or None, the error that it raised."""
    try:
        function, arguments = pickle.loads(request)
        function = named(function) if isinstance(function, str) else function
        return pickle.dumps((function(*arguments), None))
    except Exception as error:
        raised = error
        if isinstance(error, ModuleNotFoundError):
            raised = missing_extra(error.name or "", "this command") or error
        if not isinstance(raised, MolprofError):
            raised = WorkerError(f"{type(error).__name__}: {error}")
        return pickle.dumps((None, raised))
