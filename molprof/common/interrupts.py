"""Interrupts that are handled a little later."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Holds back interrupts to the end of a block that an exception would leave half done."""

    def __init__(self) -> None:
        self.noted: list[int] = []  # in the block so far

    @contextmanager
    def kept(self) -> Generator[None, None, None]:
        """Notes signals that interrupt inside the block and calls Python's handlers behind it."""
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
