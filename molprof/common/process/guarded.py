"""Calls in a process of their own, within limits of time and memory, that leave no process behind.

The process is two: the call runs in a child of the one that was started. The parent of the two does nothing that can
hang. It kills all that the call started when that has ended, or when the pipe from this process is closed: also when
this process is killed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from molprof.common.errors import MissingExtraError, MolprofError, UnsupportedError
from molprof.common.memory import available_bytes, let_threads_sleep, oom_kills
from molprof.common.process import (
    FAILED,
    NO_MEMORY,
    NOT_MEASURED,
    OK,
    TIMED_OUT,
    UNSUPPORTED,
    Ending,
    call_line,
    control,
    named,
    started,
)

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h: what loses its parent gets this process as its parent
_GONE_S = 10.0
_POLL_S = 0.1
# Finding new processes reads all of /proc, which takes a core from the call: often only at first, before timed passes.
_LOOK_S, _STARTING_S = 1.0, 3.0
_STACK_S = 3.0
_MESSAGE_CHARACTERS, _STACK_LINES = 500, 200
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+),? in (?P<name>.+)')
# A call that the kernel killed while it had less of the memory that was free when it began did not fill that memory.
_OWN_SHARE = 0.8
# What torch says where a GPU has no memory left (c10/cuda/CUDACachingAllocator.cpp).
_OF_GPU = re.compile(
    r"Tried to allocate (?P<asked>[\d.]+ \w+)\..*total capacity of (?P<all>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is"
    r" free.*this process has (?P<own>[\d.]+ \w+) memory in use",
    re.DOTALL,
)
_BINARY = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MEMORY = re.compile("out of memory|can(no|')t allocate memory|not enough memory|CUBLAS_STATUS_ALLOC_FAILED|bad_alloc")


@dataclass(frozen=True)
class Limits:
    """Limits of a call: seconds, including imports, and resident memory of all its processes."""

    seconds: float
    memory_bytes: int | None = None


def call(target: str, *arguments: Any, limits: Limits, log: Path | None = None) -> Ending:
    """Call `target` (`module:function`) with JSON arguments and result; an exception becomes a state.

    log: file of what it prints.
    """
    began, kills, free = time.monotonic(), oom_kills(), available_bytes()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="molprof-")))
        (folder / "request").write_text(json.dumps([target, arguments]))
        log = log or folder / "output"
        output = stack.enter_context(log.open("wb"))
        theirs, lifeline = (
            stack.enter_context(os.fdopen(end, mode)) for end, mode in zip(os.pipe(), "rw", strict=True)
        )
        # Not bound: when this process dies, the lifeline lets the guard kill all that the call started.
        line = call_line(f"{__name__}:serve", str(folder), str(theirs.fileno()), bound=False)
        with started(line, stdout=output, stderr=subprocess.STDOUT, pass_fds=[theirs.fileno()]) as process:
            theirs.close()
            try:
                ending, peak = _watch(process, limits, folder, began)
            finally:
                lifeline.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_GONE_S)
        ending = ending or _ended(folder, log, process.returncode, oom_kills() > kills, peak, free)
    return replace(ending, seconds=time.monotonic() - began)


def _watch(process: subprocess.Popen[bytes], limits: Limits, folder: Path, began: float) -> tuple[Ending | None, int]:
    """Wait for the end; return the ending if a limit is reached first, and the peak of resident memory."""
    processes: list[psutil.Process] = []
    looked, most, peak = float("-inf"), limits.memory_bytes, 0
    while process.poll() is None:
        now = time.monotonic()
        if now - began > limits.seconds:
            return _late(process.pid, limits.seconds, folder), peak
        if most and (now - looked > _LOOK_S or now - began < _STARTING_S):
            processes, looked = living(process.pid), now
        peak = max(peak, resident := resident_bytes(processes))
        if most and resident > most and (used := proportional_bytes(living(process.pid))) > most:
            return Ending(NO_MEMORY, f"killed at {used / 1e9:.1f} GB resident, the limit is {most / 1e9:.1f} GB"), peak
        time.sleep(min(_POLL_S, max(0.0, began + limits.seconds - now) + 0.001))
    return None, peak


def living(root: int) -> list[psutil.Process]:
    """Return the process `root` and its living descendants."""
    processes = []
    with contextlib.suppress(psutil.Error):
        first = psutil.Process(root)
        for process in (first, *first.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    processes.append(process)
    return processes


def resident_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the resident memory of processes; shared pages count in each of them."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def proportional_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the same with shared pages divided by the processes that share them; slower.

    Where the system does not tell that, as on macOS, shared pages count once for each process.
    """
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            full = process.memory_full_info()
            total += getattr(full, "pss", full.rss)
    return total


def _late(guard: int, seconds: float, folder: Path) -> Ending:
    """Make the call write its stack, and wait until it has."""
    until = time.monotonic() + _STACK_S
    with contextlib.suppress(OSError):
        os.kill(guard, signal.SIGUSR1)
        while not (folder / "stack").stat().st_size and time.monotonic() < until:
            time.sleep(_POLL_S)
        time.sleep(_POLL_S)  # for the rest of it
    stack, where = _stack(folder)
    return Ending(TIMED_OUT, f"killed at the limit of {seconds:g} s{where or '; its stack is unknown'}", stack=stack)


def _ended(folder: Path, log: Path, code: int, oom: bool, peak: int, free: int | None) -> Ending:
    """Return the ending of a call that met no limit. peak: of resident memory; free: memory free at its start."""
    with contextlib.suppress(OSError, ValueError):
        if code == 0:
            return Ending(**json.loads((folder / "answer").read_bytes()))
    if oom and code == -signal.SIGKILL:
        with contextlib.suppress(OSError, ValueError):
            peak = max(peak, int((folder / "peak").read_text()))
        return killed_by_kernel(peak, free, code)
    (stack, where), said = _stack(folder), _lines(log)
    last = f": {said[-1]}" if said else ""
    message = f"ended by {signal.Signals(-code).name}{where}" if code < 0 else f"ended with code {code}{last}"
    state = NO_MEMORY if any(map(_MEMORY.search, said[-3:])) else FAILED
    return Ending(state, message, code, stack=stack or said or None)


def killed_by_kernel(peak: int, free: int | None, code: int = -signal.SIGKILL) -> Ending:
    """Return the ending of a call that the kernel killed for lack of memory, which it or other programs took.

    peak: the most memory that was resident in it, bytes; 0: not known. free: what was free when it began.
    """
    if free is None or not peak:
        return Ending(NO_MEMORY, "killed by the kernel, which had no memory left", code)
    used = f"at {peak / 1e9:.1f} GB resident, of {free / 1e9:.1f} GB that were free when it began"
    if peak < _OWN_SHARE * free:
        return Ending(NOT_MEASURED, f"killed by the kernel {used}: other programs took the rest", code)
    return Ending(NO_MEMORY, f"killed by the kernel, which had no memory left, {used}", code)


def _stack(folder: Path) -> tuple[list[str] | None, str]:
    """Return the stack that `faulthandler` wrote, and its innermost function, as `, in name (file.py:12)`."""
    lines = _lines(folder / "stack")
    frame = next(filter(None, map(_FRAME.search, lines)), None)
    where = f", in {frame['name']} ({Path(frame['file']).name}:{frame['line']})" if frame else ""
    return lines or None, where


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[-_STACK_LINES:]
    except OSError:
        return []


def serve() -> None:
    """Make the call and write its answer, in the process that `call` started."""
    folder = Path(sys.argv[1])
    _guard(int(sys.argv[2]), folder / "peak")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    stack = (folder / "stack").open("w")  # open as long as the process lives
    faulthandler.enable(stack, all_threads=False)  # the main thread, which gets the signals of a process
    faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
    with contextlib.suppress(OSError):
        # Without memory, the kernel should kill this process, not the one that started it.
        Path("/proc/self/oom_score_adj").write_text("1000")
    let_threads_sleep()
    target, arguments = json.loads((folder / "request").read_text())
    (folder / "answer").write_text(json.dumps(_answer(target, arguments)))


def _answer(target: str, arguments: list[Any]) -> dict[str, Any]:
    """Return the fields of the `Ending` of a call in this process."""
    try:
        return {"state": OK, "value": named(target)(*arguments)}
    except (UnsupportedError, MissingExtraError) as problem:
        return {"state": UNSUPPORTED, "message": _short(str(problem)), "hint": problem.hint}
    except BaseException as problem:
        expected = isinstance(problem, (MolprofError, ModuleNotFoundError))
        message = str(problem) if expected else f"{type(problem).__name__}: {problem}".removesuffix(": ")
        state = NO_MEMORY if out_of_memory(problem) else FAILED
        if state == NO_MEMORY and (others := _taken_by_others(message)):
            state, message = NOT_MEASURED, f"{others}: {message}"
        return {
            "state": state,
            "message": _short(message),
            "hint": getattr(problem, "hint", None),
            "missing": problem.name if isinstance(problem, ModuleNotFoundError) else None,
            "stack": "".join(traceback.format_exception(problem)).splitlines()[-_STACK_LINES:],
        }


def _taken_by_others(message: str) -> str:
    """Return how much GPU memory other programs held, if that made an allocation fail.

    Empty elsewhere.
    """
    match = _OF_GPU.search(message)
    if match is None:
        return ""
    sizes = {name: text.split() for name, text in match.groupdict().items()}
    count = {name: float(number) * _BINARY.get(unit, 0) for name, (number, unit) in sizes.items()}
    others = count["all"] - count["free"] - count["own"]
    if others <= 0 or count["own"] + count["asked"] > count["all"]:
        return ""
    return f"other programs held {others / 1e9:.1f} of the GPU's {count['all'] / 1e9:.1f} GB"


def _short(message: str) -> str:
    """Return an error on one line. Compilers print it in the first paragraph, then a whole command."""
    said = " ".join(message.strip().split("\n\n")[0].split())
    return said if len(said) <= _MESSAGE_CHARACTERS else f"{said[:_MESSAGE_CHARACTERS]}..."


def out_of_memory(problem: BaseException | None) -> bool:
    """Return True if an exception, or a cause of it, is a failed allocation: on a GPU, of torch or of Python."""
    while problem is not None:
        named = isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError"
        if named or (isinstance(problem, RuntimeError) and _MEMORY.search(str(problem))):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def _guard(lifeline: int, peak: Path) -> None:
    """Fork, and return in the child. The parent ends as the child ends, after it has killed what the child left.

    peak: gets the most memory that was resident in the child, bytes.
    """
    control(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if not child:
        os.close(lifeline)
        return

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline, 1)  # until it is closed
        os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGUSR1, lambda number, frame: os.kill(child, number))
    threading.Thread(target=watch, daemon=True).start()
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        peak.write_text(str(usage.ru_maxrss * 1024))  # in KiB on Linux
    until = time.monotonic() + _GONE_S
    while (left := living(os.getpid())[1:]) and time.monotonic() < until:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.01)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)  # its own handlers would go on
        os.kill(os.getpid(), -code)
    os._exit(code)
