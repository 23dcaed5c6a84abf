"""The process behind `molprof mcp` that reads traces: it is started again when it ends, so the server goes on."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from molprof.common import errors
from molprof.common.process import call_line, why_failed

LIMIT_S = 300.0


class Worker:
    """Answers calls one after the other in another process, each within `limit_s`.

    Args:
        target: `module:function`, which calls `serve` in that process.
    """

    def __init__(self, target: str, limit_s: float = LIMIT_S) -> None:
        self._target, self._lock = target, threading.Lock()
        self.limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return what the tool answers.

        Raises the MolprofError that the tool raised; EngineError if the process ended or took too long.
        """
        request = msgspec.json.encode([tool, arguments])
        with self._lock:
            kind, found, hint = msgspec.json.decode(self._ask(request))
        if kind == "":
            answer: dict[str, Any] = found
            return answer
        raise getattr(errors, kind)(found, hint=hint)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(BrokenPipeError), process:  # closes its input, which ends it, and waits
                pass

    def _ask(self, request: bytes) -> bytes:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        process = self._process
        if process is None:
            # Of a session of its own: Ctrl-C ends the server, and with it this process's input. It is not bound to the
            # thread that starts it, which may end before.
            line = call_line(self._target, bound=False)
            process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self.limit_s, end)
        timer.start()
        try:
            process.stdin.write(request + b"\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        except OSError:
            reply = b""
        finally:
            timer.cancel()
        if reply.endswith(b"\n"):
            return reply
        self.close()
        reason = f"it took over {self.limit_s:g} s" if late.is_set() else why_failed(process.returncode, "")
        raise errors.EngineError(f"the process that reads traces was ended: {reason}", hint="ask for less")


def serve(answer: Callable[[str, dict[str, Any]], bytes]) -> None:
    """In the other process: answer calls until the input ends, which ends the process whatever it does.

    answer: returns JSON without a newline, from the name of a tool and its arguments.
    """
    requests: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            requests.put(line)
        os._exit(0)

    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no reply
    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            reply = b'["",' + answer(*msgspec.json.decode(requests.get())) + b",null]"
        except errors.MolprofError as error:
            reply = msgspec.json.encode([type(error).__name__, str(error), error.hint])
        except Exception as error:
            traceback.print_exc()
            reply = msgspec.json.encode(["EngineError", f"this is a bug in molprof: {error!r}", None])
        replies.write(reply + b"\n")
        replies.flush()
