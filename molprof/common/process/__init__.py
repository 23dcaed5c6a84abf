"""Other processes: the one way to start or fork one, to end it with this one, and to kill it.

`workers.py` has processes that run calls; `guarded.py` calls a function with limits of time and memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from molprof.common import GARBAGE
from molprof.common.memory import processors

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# How a case of a benchmark or sweep, or a task of a job, ended.
OK, FAILED, TIMED_OUT, NO_MEMORY, UNSUPPORTED = ("ok", "failed", "timed out", "out of memory", "unsupported")
NOT_MEASURED = "not measured"  # other programs took what it needed
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# `-m` and `-c` look into the working directory first, where a checkout has a folder `molprof` that is only a part of
# the package. The other process is handed this one's path, and imports what this one would.
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from molprof.common.process import called; called()"
)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Time to clean up after SIGTERM; Slurm's own default is 30 s until it kills.
GRACE_S = 10.0
_DRAIN_S = 5.0
_TAIL_BYTES = 8192
_ERROR = "molprof: error: "


def call_line(target: str, *arguments: str, bound: bool = True) -> list[str]:
    """Return the command that calls `target` (`module:function`) with `arguments` in sys.argv[1:].

    If `bound`, the other process is killed when the thread that starts it ends, however suddenly; on Linux only.
    """
    parent = str(os.getpid()) if bound else ""
    return [sys.executable, "-c", _BOOTSTRAP, json.dumps(sys.path), parent, target, *arguments]


def command_line(arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs `molprof` with these arguments."""
    return call_line("molprof.cli:main", *arguments)


def called() -> None:
    """Make the call of `call_line` in the other process."""
    parent, target = sys.argv.pop(1), sys.argv.pop(1)
    if parent:
        end_with_parent(int(parent))
    gc.set_threshold(GARBAGE)
    named(target)()


def named(target: str) -> Any:
    """Return the function `target` (`module:function`)."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when `parent`, which started it, ends; on Linux only."""
    if control(_PR_SET_PDEATHSIG, signal.SIGKILL) and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def control(option: int, value: int) -> bool:
    """Set an option of this process by prctl(2); return False if there is none, as on macOS."""
    library = ctypes.CDLL(None)
    return hasattr(library, "prctl") and library.prctl(option, value) == 0


def signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Send a signal to the process and all its descendants."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def start(line: Sequence[str], **how: Any) -> subprocess.Popen[Any]:
    """Start a command line with nothing to read, by default in a group of its own; `how` is for `Popen`.

    Every process that runs a program is started here; `Copy` makes those that go on with this one's memory.
    """
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "start_new_session": True, **how}
    return subprocess.Popen(line, **options)


@contextlib.contextmanager
def started(line: Sequence[str], grace_s: float = 0.0, **how: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a command line in a process group that is killed when the block ends, however it ends.

    If the process has not ended by then, it gets SIGTERM and `grace_s` seconds before. `how` is for `Popen`. Raises
    OSError if it cannot start.
    """

    def end() -> None:
        if grace_s and process.poll() is None:
            signal_group(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        signal_group(process, signal.SIGKILL)
        process.wait()

    with contextlib.ExitStack() as ending:
        with interrupts_held():  # one that came between the start and its return would leave the process behind
            process = start(line, **how)
            ending.enter_context(process)
            ending.callback(end)
        yield process


@dataclass(frozen=True)
class Ending:
    """The end of a command line or a call in another process: state, result, error."""

    state: str  # `ok`, `failed`, `timed out`, `out of memory`, `not measured`, or `unsupported`: it cannot run here
    message: str | None = None  # why it is not ok; None if it is
    exit_code: int = 0  # of the process; below 0 the signal that killed it
    seconds: float = 0.0  # a call only, as all that follows
    value: Any = None  # what the call returned; None if it is not ok
    stack: list[str] | None = None  # where it failed, crashed or hung, as Python prints it
    hint: str | None = None  # of the error that it raised
    missing: str | None = None  # the module that is not installed, if that is why


def run_line(
    line: Sequence[str], cwd: str | Path, log: BinaryIO, limit_s: float | None = None, grace_s: float = GRACE_S
) -> Ending:
    """Run a command line in `cwd`, copying its output and errors to `log` as they come.

    At the limit, and when an exception interrupts this call, the process gets SIGTERM, and SIGKILL after `grace_s`
    seconds. What it started and left is killed in any case.
    """
    tail, done, timed_out = bytearray(), threading.Event(), False
    with contextlib.ExitStack() as ending:
        ending.callback(done.set)
        how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with started(line, grace_s, cwd=cwd, **how) as process:
            pipe = os.dup(process.stdout.fileno())  # type: ignore[union-attr]
            # A grandchild with a session of its own may hold the pipe open for ever; the thread is left behind then.
            copy = threading.Thread(target=_copy, args=(pipe, log, tail, done), daemon=True)
            copy.start()
            ending.callback(copy.join, _DRAIN_S)
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                timed_out = True
    code = process.returncode
    if timed_out:
        return Ending(TIMED_OUT, f"stopped at its limit of {limit_s:g} s", code)
    return Ending(OK) if code == 0 else Ending(FAILED, why_failed(code, tail.decode("utf-8", "replace")), code)


def output_of(line: Sequence[str], limit_s: float | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end, and return its output; `how` is for `Popen`.

    Its whole group is killed at the limit, which raises TimeoutExpired, and when an exception interrupts this call; so
    is what it left at its end. Raises OSError if it cannot start.
    """
    with started(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how) as process:
        output, said = process.communicate(timeout=limit_s)
    return subprocess.CompletedProcess(line, process.returncode, output, said)


def _copy(pipe: int, log: BinaryIO, tail: bytearray, done: threading.Event) -> None:
    while (block := os.read(pipe, 1 << 16)) and not done.is_set():
        with contextlib.suppress(OSError):  # a full disk: the process must not wait for its output to be taken
            log.write(block)
            log.flush()
        tail += block
        del tail[:-_TAIL_BYTES]
    os.close(pipe)


def why_failed(code: int, output: str) -> str:
    """Return the last error that molprof printed, else the signal, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    if errors:
        return errors[-1]
    if code < 0:
        hint = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    return lines[-1] if lines else f"ended with code {code}"


@contextlib.contextmanager
def interrupts_held() -> Iterator[list[int]]:
    """Hold back interrupting signals during the block; the list has those so far. Their handlers run after it."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # which handles no signals
        yield noted
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _INTERRUPTS}
    handlers = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: noted.append(number))
        yield noted
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        held = tuple(noted)
        noted.clear()
        for number in held:
            handlers[number](number, sys._getframe())


def can_copy() -> bool:
    """Return True if forking this process is safe and useful: a fork has one thread, whatever locks others held.

    Not on macOS, whose own libraries may crash in a copy.
    """
    return sys.platform == "linux" and threading.active_count() == 1 and processors() > 1


class Copy:
    """A fork of this process, which works in parallel on the shared memory.

    It runs `work` with its end of a pipe, and ends. `connection` is the other end.
    """

    def __init__(self, work: Callable[[Connection], None]) -> None:
        from multiprocessing import Pipe  # on use: it takes 10 ms

        self.connection, theirs = Pipe()
        parent = os.getpid()
        # An interrupt must not run the parent's handlers in the copy.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        with warnings.catch_warnings():
            # Libraries have idle threads, to which the copy gives no work.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if not self._pid:
            try:  # it must neither return nor clean up what is its parent's
                for number in _INTERRUPTS:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
                end_with_parent(parent)
                work(theirs)
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def kill(self) -> None:
        """Kill the fork at once; whoever waits for it gets an EOFError."""
        with contextlib.suppress(ProcessLookupError):  # SIGCHLD may be ignored
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end of the fork; return its exit code, below 0 the signal that killed it."""
        with contextlib.suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return 0

    def close(self) -> None:
        """Kill the fork, and wait until it is gone."""
        self.connection.close()
        self.kill()
        self.wait()
