"""Interrupts while the embedded engine runs in the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Holds back interrupts until the engine has returned.

    Python handles a signal when the engine next calls one of our functions. An exception raised there before the
    function begins is lost, and the engine goes on with a result that it never got. So the signal is noted, the
    function refuses, which ends the engine's call, and then the handler runs.
    """

    def __init__(self) -> None:
        self.noted: list[int] = []

    @contextmanager
    def kept(self) -> Generator[None, None, None]:
        """Notes SIGINT and SIGTERM inside the block and calls Python's handlers behind it."""
        if threading.current_thread() is not threading.main_thread():  # which handles no signals
            yield
            return
        handlers: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
        handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
        try:
            for number in handlers:
                signal.signal(number, lambda number, frame: self.noted.append(number))
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            noted, self.noted = self.noted, []
            for number in noted:
                handlers[number](number, None)
