"""A function that runs in a process of its own: bytes in, bytes or a typed error out, once or many times."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, TYPE_CHECKING

import msgspec

from molprof.common import errors
from molprof.common.copied import Copy
from molprof.common.process import call_line, why_failed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_SIZE_BYTES = 8  # before a message
_GOOD, _BAD = b"+", b"-"


class Served:
    """A process that answers requests with `target` (`module:function`, which calls `answer`), one at a time.

    It starts with the first request, ends with the thread that made it, and is replaced if it fails.

    Args:
        hint: what to do should the process fail.
        limit_s: time for a request, after which the process has failed.
        alone: it is of a session of its own, outlives the thread, and its errors go where this process's go. `target`
            has to end with its input.
    """

    def __init__(self, target: str, hint: str, limit_s: float | None = None, alone: bool = False) -> None:
        self._target, self._hint, self.limit_s, self._alone = target, hint, limit_s, alone
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: bytes, subject: str) -> bytes:
        """Return the reply to `request`, which is about `subject`.

        Raises the MolprofError that `target` raised, or EngineError if the process ended instead.
        """
        if self._process is not None and self._process.poll() is not None:  # killed while it had nothing to do
            self._process.communicate()
            self._process = None
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        reply, size = b"", 0
        with self._limited(process) as late, contextlib.suppress(BrokenPipeError):
            _write(process.stdin, request)
            reply, size = _read(process.stdout)
        if not reply or len(reply) < size:
            self._process = None
            reason = self._reason(process, f"its answer was cut off after {len(reply)} of {size} bytes")
            if late.is_set():
                reason = f"it took over {self.limit_s:g} s"
            raise errors.EngineError(f"the process that read {subject} failed: {reason}", self._hint)
        return _result(reply)

    def kill(self) -> None:
        """End the process, whatever it does; with no request under way, it had nothing to do."""
        if process := self._process:
            process.kill()

    def close(self) -> None:
        """Wait for the end of the process, which `kill` brought about."""
        if process := self._process:
            process.communicate()
        self._errors.close()

    def _started(self) -> subprocess.Popen[bytes]:
        self._errors.truncate(0)
        line, errors = call_line(self._target, bound=not self._alone), None if self._alone else self._errors
        pipe = subprocess.PIPE
        return subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=self._alone)

    @contextlib.contextmanager
    def _limited(self, process: subprocess.Popen[bytes]) -> Iterator[threading.Event]:
        """Kills the process if the block takes longer than the limit; the event tells."""
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = None if self.limit_s is None else threading.Timer(self.limit_s, end)
        if timer is not None:
            timer.start()
        try:
            yield late
        finally:
            if timer is not None:
                timer.cancel()

    def _reason(self, process: subprocess.Popen[bytes], cut: str) -> str:
        """Why it failed; `cut` says it of one that ended well."""
        process.communicate()
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace")
        return cut if process.returncode == 0 else why_failed(process.returncode, text)


class Copied:
    """A copy of this process that answers requests with `make`, as `Served` does. It need not import anything again."""

    def __init__(self, make: Callable[[bytes], bytes], hint: str) -> None:
        self._hint = hint
        self._copy = Copy(partial(_answer_copied, make))

    def ask(self, request: bytes, subject: str) -> bytes:
        try:
            self._copy.connection.send_bytes(request)
            reply = self._copy.connection.recv_bytes()
        except (EOFError, OSError):
            raise errors.EngineError(f"the process that read {subject} was killed", self._hint) from None
        return _result(reply)

    def kill(self) -> None:
        self._copy.kill()

    def close(self) -> None:
        self._copy.close()


def _answer_copied(make: Callable[[bytes], bytes], connection: Connection) -> None:
    while request := connection.recv_bytes():
        try:
            reply = _reply(make, request)
        except Exception as error:
            reply = _bad(errors.EngineError(f"the process beside this one failed: {type(error).__name__}: {error}"))
        connection.send_bytes(reply)


def answer(make: Callable[[bytes], bytes]) -> None:
    """In the other process: answer each request on standard input on standard output."""
    with private_output() as output:
        while request := _read(sys.stdin.buffer)[0]:
            _write(output, _reply(make, request))


@contextlib.contextmanager
def private_output() -> Iterator[IO[bytes]]:
    """Standard output for replies alone: what libraries print goes to standard error."""
    sys.stdout.flush()
    # Not sys.stdout: with PYTHONUNBUFFERED, Python drops what a write did not take.
    with open(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        yield output


def _reply(make: Callable[[bytes], bytes], request: bytes) -> bytes:
    try:
        return _GOOD + make(request)
    except errors.MolprofError as error:
        return _bad(error)
    except ModuleNotFoundError as error:
        if (missing := errors.missing_extra(error.name or "", "this command")) is None:
            raise
        return _bad(missing)


def _bad(error: errors.MolprofError) -> bytes:
    kind = errors.UsageError if isinstance(error, errors.MissingExtraError) else type(error)
    return _BAD + msgspec.json.encode([kind.__name__, str(error), error.hint])


def _result(reply: bytes) -> bytes:
    if reply[:1] == _GOOD:
        return reply[1:]
    kind, message, hint = msgspec.json.decode(reply[1:])
    raise getattr(errors, kind)(message, hint=hint)


def _write(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(_SIZE_BYTES, "big"))
    stream.write(data)
    stream.flush()


def _read(stream: IO[bytes]) -> tuple[bytes, int]:
    """The next message and its whole size; less of it, or nothing, where the stream ends."""
    size = int.from_bytes(stream.read(_SIZE_BYTES), "big")
    return stream.read(size), size
