"""A function that runs in a process of its own: bytes in, bytes or a typed error out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import msgspec

from molprof.common import errors
from molprof.common.process import call_line, why_failed

_SIZE_BYTES = 8  # before a reply


def ask(target: str, request: bytes, subject: str, hint: str) -> bytes:
    """Return what `target` (`module:function`, which calls `answer`) makes of `request` in another process.

    subject, hint: what the process is about, and what to do should it fail. Raises the MolprofError that it raised, or
    EngineError if it ended otherwise.
    """
    process = subprocess.run(call_line(target), input=request, capture_output=True, check=False)
    size, reply = int.from_bytes(process.stdout[:_SIZE_BYTES], "big"), process.stdout[_SIZE_BYTES:]
    whole = process.returncode == 0 and len(reply) == size
    if whole and reply[:1] == b"+":
        return reply[1:]
    if whole and reply[:1] == b"-":
        kind, message, own_hint = msgspec.json.decode(reply[1:])
        raise getattr(errors, kind)(message, hint=own_hint)
    if process.returncode == 0:
        reason = f"its answer was cut off after {len(reply)} of {size} bytes"
    else:
        reason = why_failed(process.returncode, process.stderr.decode("utf-8", "replace"))
    raise errors.EngineError(f"the process that read {subject} failed: {reason}", hint=hint)


def answer(make: Callable[[bytes], bytes]) -> None:
    """In the other process: read the request on standard input, write the reply to standard output."""
    request = sys.stdin.buffer.read()
    try:
        reply = b"+" + make(request)
    except errors.MolprofError as error:
        reply = b"-" + msgspec.json.encode([type(error).__name__, str(error), error.hint])
    # Not sys.stdout: with PYTHONUNBUFFERED, Python drops what a write did not take.
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        output.write(len(reply).to_bytes(_SIZE_BYTES, "big") + reply)
