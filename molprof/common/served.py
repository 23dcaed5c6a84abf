"""A function that runs in a process of its own: bytes in, bytes or a typed error out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

from molprof.common import errors
from molprof.common.process import call_line, why_failed


def ask(target: str, request: bytes, subject: str, hint: str) -> bytes:
    """Return what `target` (`module:function`, which calls `answer`) makes of `request` in another process.

    subject, hint: what the process is about, and what to do should it fail. Raises the MolprofError that it raised, or
    EngineError if it ended otherwise.
    """
    process = subprocess.run(call_line(target), input=request, capture_output=True, check=False)
    reply = process.stdout[1:]
    if process.returncode == 0 and process.stdout[:1] == b"+":
        return reply
    if process.returncode == 0 and process.stdout[:1] == b"-":
        raise error_from(msgspec.json.decode(reply))
    reason = why_failed(process.returncode, process.stderr.decode("utf-8", "replace"))
    raise errors.EngineError(f"the process that read {subject} failed: {reason}", hint=hint)


def answer(make: Callable[[bytes], bytes]) -> None:
    """In the other process: read the request on standard input, write the reply to standard output."""
    request = sys.stdin.buffer.read()
    try:
        reply = b"+" + make(request)
    except errors.MolprofError as error:
        reply = b"-" + msgspec.json.encode(error_fields(error))
    sys.stdout.buffer.write(reply)


def error_fields(error: errors.MolprofError) -> list[str | None]:
    """Return what `error_from` makes the error from again."""
    return [type(error).__name__, str(error), error.hint]


def error_from(fields: Sequence[str | None]) -> errors.MolprofError:
    kind, message, hint = fields
    made: errors.MolprofError = getattr(errors, str(kind))(message, hint=hint)
    return made
