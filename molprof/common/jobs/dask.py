"""Workers of a Dask scheduler as an executor: each call is made in a process of its own with a time limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from molprof.common.errors import MissingExtraError, MolprofError, UsageError
from molprof.common.jobs import SCHEME, JobExecutor
from molprof.common.process.workers import Worker, WorkerError

# For the scheduler to answer; for an answer, on top of the time that the calls before it may take.
_CONNECT_S, _ANSWER_S = 10, 60
# Calls that wait for each worker, as `each_trace` gives them.
_WAITING = 4
T = TypeVar("T")
_own = threading.local()


class DaskExecutor(JobExecutor):
    """Workers of a Dask scheduler. A call whose worker dies goes to another one."""

    def __init__(self, client: Any, limit_s: float) -> None:
        self._client, self._limit_s = client, limit_s
        self._executor = client.get_executor(pure=False)
        self.at_once = max(1, sum(client.nthreads().values()))

    def submit(self, function: Callable[[Any], T], /, item: Any) -> Future[T]:  # type: ignore[override]
        """Return the future of a call."""
        job = self._executor.submit(call_alone, os.getcwd(), function, item, self._limit_s)
        return _WorkerFuture(job, (_WAITING + 1) * self._limit_s + _ANSWER_S)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the scheduler, and the workers as they are; calls that have not begun are not made."""
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


def call_alone(folder: str, function: Callable[[Any], T], item: Any, limit_s: float) -> T:
    """On a worker: call the function with the item in `folder`, in another process, which is killed after `limit_s`."""
    if not hasattr(_own, "process"):
        _own.process = _CallProcess()
    worker: Worker = _own.process.worker
    worker.limit_s = limit_s
    result: T = worker.run(_in_folder, folder, function, item)
    return result


def _in_folder(folder: str, function: Callable[[Any], T], item: Any) -> T:
    with suppress(OSError):  # it is not here: an item that needs none, such as an address, does without
        os.chdir(folder)
    return function(item)


class _CallProcess:
    """The process of a thread of a worker. A failure replaces it; it ends with the thread."""

    def __init__(self) -> None:
        self.worker = Worker()

    def __del__(self) -> None:
        self.worker.kill()
        self.worker.close()


@contextmanager
def connected(address: str, limit_s: float) -> Iterator[DaskExecutor]:
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
    executor = DaskExecutor(client, limit_s)
    try:
        if not client.nthreads():
            raise UsageError(f"the Dask scheduler at {host} has no workers", hint=f"dask worker tcp://{host}")
        yield executor
    finally:
        executor.shutdown()
