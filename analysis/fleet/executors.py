"""Workers on other machines as an executor: each reads whole traces, in a process of its own with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from molprof.analysis.reader.remote import is_remote
from molprof.common.errors import MissingExtraError, MolprofError, UsageError
from molprof.common.process.workers import Worker, WorkerError

SCHEME = "dask://"
# For the scheduler to answer; for an answer, on top of the time that the reading of traces before it may take.
_CONNECT_S, _ANSWER_S = 10, 60
# Traces that wait for each worker, as `each_trace` gives them.
_WAITING = 4
T = TypeVar("T")
_own = threading.local()


class Remote(Executor):
    """Workers of a Dask scheduler. A trace whose worker dies goes to another; results are those of `Worker.run`.

    Attributes:
        at_once: the traces that the workers read at the same time.
    """

    def __init__(self, client: Any, limit_s: float) -> None:
        self._client, self._limit_s = client, limit_s
        self._executor = client.get_executor(pure=False)
        self.at_once = max(1, sum(client.nthreads().values()))

    def submit(self, function: Callable[..., T], /, path: Path) -> Future[T]:  # type: ignore[override]
        """Return the future of a call with a path, which the workers see under the same name."""
        job = self._executor.submit(read_alone, function, path if is_remote(path) else path.absolute(), self._limit_s)
        return _WorkerFuture(job, (_WAITING + 1) * self._limit_s + _ANSWER_S)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Disconnect from the scheduler without stopping the workers; pending traces are not read."""
        self._client.close()


class _WorkerFuture(Future[T]):
    """The result of a worker. Waiting for it ends with an error if no worker answers."""

    def __init__(self, job: Any, patience_s: float) -> None:
        super().__init__()
        self._job, self._patience_s = job, patience_s

    def result(self, timeout: float | None = None) -> T:
        try:
            result: T = self._job.result(timeout=timeout or self._patience_s)
        except (MolprofError, WorkerError):
            raise
        except (TimeoutError, FutureTimeoutError) as error:
            self._job.cancel()
            raise WorkerError(f"no worker answered in {self._patience_s:g} s") from error
        except (Exception, CancelledError) as error:
            text = str(error).strip().splitlines()
            raise WorkerError(f"{type(error).__name__}: {text[0] if text else 'no reason given'}") from error
        return result


def read_alone(function: Callable[[Path], T], path: Path, limit_s: float) -> T:
    """Return a function's result for a path, from a process of this worker that is killed after `limit_s`."""
    if not hasattr(_own, "reader"):
        _own.reader = _ReaderProcess()
    worker: Worker = _own.reader.worker
    worker.limit_s = limit_s
    return worker.run(function, path)


class _ReaderProcess:
    """The process that reads for a thread of a worker. It is replaced after a failure, and ends with the thread."""

    def __init__(self) -> None:
        self.worker = Worker()

    def __del__(self) -> None:
        self.worker.kill()
        self.worker.close()


@contextmanager
def connected(address: str, limit_s: float) -> Iterator[Remote]:
    """Yield the workers of the scheduler at `dask://HOST:PORT`. Raises UsageError, MissingExtraError."""
    host = address.removeprefix(SCHEME)
    if host == address or not all(host.rpartition(":")[::2]):
        raise UsageError(f"{address} names no workers", hint=f"--on {SCHEME}HOST:PORT, of a Dask scheduler")
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtraError("distributed", "dask", "--on dask://") from error
    try:
        client = Client(f"tcp://{host}", timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {host}", hint=f"dask scheduler; --on {SCHEME}HOST:PORT"
        ) from error
    remote = Remote(client, limit_s)
    try:
        if not client.nthreads():
            raise UsageError(f"the Dask scheduler at {host} has no workers", hint=f"dask worker tcp://{host}")
        yield remote
    finally:
        remote.shutdown()
