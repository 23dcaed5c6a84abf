"""Chromium without a window, driven through its pipe by the DevTools protocol: no driver and no package needed."""

from __future__ import annotations

import base64
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
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
    "--js-flags=--liftoff-only",  # what is run for seconds is not worth optimizing
)  # fmt: skip


class Page:
    """One page of a running browser.

    Attributes:
        requests: every address that it and its workers asked for since `open`, and how that ended: `sent`, or the
            reason for which the browser refused it.
        console: what was written to its console, as (level, text), errors of the browser among it.
        dialogs: what scripts said in boxes that a user must close, as `alert` does.
    """

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._urls: dict[str, str] = {}
        self.requests: dict[str, str] = {}
        self.console: list[tuple[str, str]] = []
        self.dialogs: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        # Workers are targets of their own, whose requests are told to whoever is attached to them. They wait for that.
        self.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Shows the page at `url`, loaded to its end; forgets what an earlier one asked for and wrote."""
        self.call("Page.navigate", url="about:blank")  # ends what the earlier one was about to ask for
        self.wait("location.href === 'about:blank' && document.readyState === 'complete'")
        self.requests.clear()
        self.console.clear()
        self.dialogs.clear()
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def reload(self) -> None:
        """Shows the page anew. The old one answers for a moment more, so a mark tells the two apart."""
        self.evaluate("window.isOld = true")
        self.call("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """The expression's value once it is true."""
        end = time.monotonic() + _WAIT_S
        while not (value := self.evaluate(script)):
            assert time.monotonic() < end, (script, self.evaluate("document.body.innerText"), self.console)
            time.sleep(0.05)
        return value

    def size(self, width: int, height: int) -> None:
        """Shows the page so large, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def click(self, selector: str, place: int = 0) -> None:
        """Presses the mouse on the element of this place among those that a CSS selector finds."""
        x, y = self.evaluate(
            f"(() => {{ const item = document.querySelectorAll({json.dumps(selector)})[{place}]; item.scrollIntoView();"
            " const box = item.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Puts text where the cursor is, as a paste does."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: str, number: int, modifiers: int = 0, text: str = "") -> None:
        """A key with its code and number, and the text that it types; modifiers: 2 is Ctrl."""
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=code,
                windowsVirtualKeyCode=number,
                modifiers=modifiers,
                **({"text": text} if text else {}),
            )

    def picture(self) -> bytes:
        """A PNG of what is shown."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol."""
        self._number += 1
        number = self._number
        self._send(number, method, parameters, self._session)
        while True:
            reply = self._next()
            if reply.get("id") == number:
                assert "error" not in reply, (method, reply)
                result: dict[str, Any] = reply["result"]
                return result
            self._note(reply)

    def _send(self, number: int, method: str, parameters: dict[str, Any], session: str | None) -> None:
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")

    def _note(self, event: dict[str, Any]) -> None:
        """Keeps what an event tells of requests and of the console."""
        kind, found = event.get("method"), event.get("params", {})
        if kind == "Target.attachedToTarget":
            for method in ("Network.enable", "Runtime.enable", "Log.enable", "Runtime.runIfWaitingForDebugger"):
                self._number += 1  # whose answer nobody waits for
                self._send(self._number, method, {}, found["sessionId"])
        elif kind == "Network.requestWillBeSent":
            url = self._urls[found["requestId"]] = found["request"]["url"]
            self.requests.setdefault(url, "sent")
        elif kind == "Page.javascriptDialogOpening":
            self.dialogs.append(found["message"])
            self._number += 1
            self._send(self._number, "Page.handleJavaScriptDialog", {"accept": True}, self._session)
        elif kind == "Network.webSocketCreated":
            self.requests[found["url"]] = "sent"
        elif kind == "Network.loadingFailed" and found["requestId"] in self._urls:
            self.requests[self._urls[found["requestId"]]] = found.get("blockedReason") or found["errorText"]
        elif kind == "Runtime.consoleAPICalled":
            text = " ".join(str(item.get("value", item.get("description"))) for item in found["args"])
            self.console.append((found["type"], text))
        elif kind == "Runtime.exceptionThrown":
            self.console.append(("error", json.dumps(found["exceptionDetails"])))
        elif kind == "Log.entryAdded":
            self.console.append((found["entry"]["level"], found["entry"]["text"]))

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
    command = [str(CHROMIUM), *_FLAGS, "--window-size=1400,1000", f"--user-data-dir={folder}"]
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
