"""Run one case in a process and session of its own, within limits of time and memory, and leave no process behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molprof.common.bench_records import FAILED, HUNG, NO_MEMORY, STATUSES
from molprof.common.memory import oom_kills, proportional_bytes, resident_bytes
from molprof.common.process import COOKIE, call_line, end, members

WORKER = "molprof.profiler.bench.worker:main"
_POLL_S = 0.1
# Finding new processes reads all of /proc, which takes a core from the case: often only at first, before timed passes.
_LOOK_S, _STARTING_S = 1.0, 3.0
_STACK_S = 3.0
_STACK_LINES = 200
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+)(?:,)? in (?P<name>.+)')


@dataclass(frozen=True)
class Limits:
    """Limits of a case: seconds, including loading and compiling, and resident memory of all its processes."""

    seconds: float
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a case ended."""

    status: str  # one of `STATUSES`
    message: str | None  # why it is not ok; None if it is
    stack: tuple[str, ...] | None  # where it failed, crashed or hung, as Python prints it
    answer: dict[str, Any]  # the worker's, without status, message and stack; empty without an answer
    wall_s: float
    left: bool = False  # a process of it could not be killed


def run_isolated(request: Mapping[str, Any], limits: Limits, worker: str = WORKER) -> Ended:
    """Call `worker` (`module:function`) with a request and wait for its end; an exception ends its processes too."""
    cookie = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="molprof-bench-") as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        (place / "request").write_text(json.dumps(request))
        streams = {"stdin": ("request", "rb"), "stdout": ("answer", "wb"), "stderr": ("errors", "wb")}
        files: dict[str, Any] = {
            stream: stack.enter_context(open(place / name, mode)) for stream, (name, mode) in streams.items()
        }
        lifeline, held = os.pipe()
        stack.callback(os.close, held)
        kills = oom_kills()
        began = time.monotonic()
        try:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                # Not bound: when this process dies, the lifeline lets it kill all that it started.
                call_line(worker, "--lifeline", str(lifeline), "--stacks", str(place / "stacks"), bound=False),
                pass_fds=[lifeline],
                start_new_session=True,
                env={**os.environ, COOKIE: cookie},
                **files,
            )
        finally:
            os.close(lifeline)
        try:
            killed = _watch(process, limits, place / "stacks", began)
        finally:
            clean = end(process, cookie)
        wall_s = time.monotonic() - began
        if killed is None and process.returncode == -signal.SIGKILL and oom_kills() > kills:
            killed = NO_MEMORY, "killed by the kernel, which had no memory left"
        return _ended(place, process.returncode, killed, wall_s, not clean)


def _watch(process: subprocess.Popen[bytes], limits: Limits, stacks: Path, began: float) -> tuple[str, str] | None:
    """Wait for the end; return status and message if a limit is reached first."""
    found: set[int] = set()
    looked = float("-inf")
    while process.poll() is None:
        now = time.monotonic()
        if now - began > limits.seconds:
            _dump(process.pid, stacks)
            return HUNG, f"killed at the limit of {limits.seconds:g} s"
        if limits.memory_bytes is not None:
            if now - looked > _LOOK_S or now - began < _STARTING_S:
                found, looked = members(process.pid), now
            if resident_bytes(found) > limits.memory_bytes:
                found = members(process.pid)
                used = proportional_bytes(found)
                if used > limits.memory_bytes:
                    text = f"killed at {used / 1e9:.1f} GB resident, the limit is {limits.memory_bytes / 1e9:.1f} GB"
                    return NO_MEMORY, text
        time.sleep(min(_POLL_S, max(0.0, began + limits.seconds - now) + 0.001))
    return None


def _dump(pid: int, stacks: Path) -> None:
    """Make the worker write its stacks, and wait until it has."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR1)
        until, size = time.monotonic() + _STACK_S, -1
        while time.monotonic() < until:
            time.sleep(_POLL_S)
            now = stacks.stat().st_size
            if now and now == size:
                break
            size = now


def _ended(place: Path, code: int, killed: tuple[str, str] | None, wall_s: float, left: bool) -> Ended:
    stack = _lines(place / "stacks")[:_STACK_LINES]
    if killed is not None:
        status, message = killed
        if status == HUNG:
            where = innermost(stack)
            message += f", in {where}" if where else "; its stack is unknown"
        return Ended(status, message, tuple(stack) if stack and status == HUNG else None, {}, wall_s, left)
    answer = _answer(place / "answer")
    if code == 0 and answer is not None:
        given = answer.pop("stack", None)
        status, message = answer.pop("status"), answer.pop("message", None)
        return Ended(status, message, None if given is None else tuple(given), answer, wall_s, left)
    said = _lines(place / "errors")
    if code < 0:
        where = innermost(stack)
        message = f"ended by {signal.Signals(-code).name}" + (f", in {where}" if where else "")
    else:
        message = f"ended with code {code} and no answer" + (f": {said[-1]}" if said else "")
    if any("bad_alloc" in line for line in said[-3:]):
        return Ended(NO_MEMORY, message, tuple(stack) or None, {}, wall_s, left)
    return Ended(FAILED, message, tuple(stack) or tuple(said[-_STACK_LINES:]) or None, {}, wall_s, left)


def innermost(stack: list[str]) -> str | None:
    """Return the main thread's function from what `faulthandler` wrote, as `name (file.py:12)`."""
    # The thread that Python started with comes last, unless it is the one that got the signal.
    blocks: list[list[str]] = []
    for line in stack:
        if line.startswith(("Thread ", "Current thread ")):
            blocks.append([line])
        elif blocks:
            blocks[-1].append(line)
    for block in [*(item for item in blocks if item[0].startswith("Current")), *reversed(blocks)]:
        for line in block[1:]:
            if match := _FRAME.search(line):
                return f"{match['name']} ({Path(match['file']).name}:{match['line']})"
    return None


def _answer(path: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads(path.read_bytes())
    except ValueError:
        return None
    return raw if isinstance(raw, dict) and raw.get("status") in STATUSES else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
