"""Chromium without a window, driven through its pipe by the DevTools protocol: no driver and no package needed."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_WAIT_S = 120.0
# The child's ends of the two pipes, as --remote-debugging-pipe has them.
_IN, _OUT = 3, 4


class Page:
    """One page of a running browser."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """The expression's value once it is true."""
        end = time.monotonic() + _WAIT_S
        while not (value := self.evaluate(script)):
            assert time.monotonic() < end, (script, self.evaluate("document.body.innerText"))
            self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        return value

    def type(self, text: str) -> None:
        """Puts text where the cursor is, as a paste does."""
        self._call("Input.insertText", text=text)

    def press(self, key: str, code: str, number: int, modifiers: int = 0) -> None:
        """A key with its code and number; modifiers: 2 is Ctrl."""
        for kind in ("rawKeyDown", "keyUp"):
            self._call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=code,
                windowsVirtualKeyCode=number,
                modifiers=modifiers,
            )

    def picture(self) -> str:
        """A PNG of the page, in base64."""
        return str(self._call("Page.captureScreenshot")["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._number:
                assert "error" not in reply, (method, reply)
                result: dict[str, Any] = reply["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], _WAIT_S)
            data = os.read(self._read, 1 << 16) if ready else b""
            assert data, "the browser said nothing"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        reply: dict[str, Any] = json.loads(message)
        return reply


@contextmanager
def page(folder: Path) -> Iterator[Page]:
    """A page of a browser of its own, whose profile lies in `folder`."""
    child_in, ours_out = os.pipe()
    ours_in, child_out = os.pipe()
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,1000",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}",
    ]
    # A shell puts the pipes where the browser looks for them.
    script = f'exec "$@" {_IN}<&{child_in} {_OUT}>&{child_out}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *command],
        pass_fds=(child_in, child_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(child_in)
    os.close(child_out)
    try:
        yield Page(ours_out, ours_in)
    finally:
        os.close(ours_out)
        os.close(ours_in)
        process.terminate()
        process.wait()
