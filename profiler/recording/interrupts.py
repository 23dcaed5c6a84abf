"""Interrupts during molprof's work for a program: held back until it is done, and without molprof's frames."""

from __future__ import annotations

import _thread
import contextlib
import inspect
import os
import signal
import threading
import types
from collections.abc import Iterator
from typing import Any

from molprof import common
from molprof.common import files

_OWN = (
    *(os.path.dirname(os.path.abspath(name)) + os.sep for name in (os.path.dirname(__file__), common.__file__)),
    "<frozen runpy>",
)
# Blocks that make, place or remove a file: an interrupt inside would leave one, or tell wrongly that there is none.
_WHOLE = {inspect.unwrap(block).__code__ for block in (files.replacing, files.scratch_file)}


class _Came(int):
    """A signal that was held back, by its number.

    Reading `deliver` has the program's handler called as soon as the program itself runs: Python looks for signals
    where functions are called and loops go round, which what returns at once does not.
    """

    deliver = property(_thread.interrupt_main)


class Interrupts:
    """A block that holds back SIGINT, if the program has a handler for it and this thread may get signals."""

    def __init__(self) -> None:
        self.came: _Came | None = None
        self._handler: Any = None
        self._raises = False

    def __enter__(self) -> None:
        self.came = None
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._handler = handler
            signal.signal(signal.SIGINT, self._hear)

    def __exit__(self, *problem: object) -> None:
        if self._handler is not None:
            handler, self._handler = self._handler, None
            signal.signal(signal.SIGINT, handler)

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """End the block by a KeyboardInterrupt at an interrupt inside it.

        A handler of the program's own is called in its place.
        """
        self._raises = self._handler is signal.default_int_handler
        try:
            yield
        finally:
            self._raises = False

    def _hear(self, number: int, frame: types.FrameType | None) -> None:
        self.came = _Came(number)
        if self._raises and not _is_in(frame, _WHOLE):
            self._raises = False  # what is left is to be removed, whatever comes
            raise KeyboardInterrupt


def _is_in(frame: types.FrameType | None, codes: set[types.CodeType]) -> bool:
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def trim(problem: BaseException) -> None:
    """Remove molprof's frames from the traceback of an exception, and of its causes."""
    seen: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [problem]
    while waiting:
        item = waiting.pop()
        if item is not None and id(item) not in seen:
            seen[id(item)] = item
            item.__traceback__ = _without_own(item.__traceback__)
            waiting += [item.__cause__, item.__context__, *getattr(item, "exceptions", ())]


def _without_own(frames: types.TracebackType | None) -> types.TracebackType | None:
    """Return the frames of a traceback that are the program's.

    Left out are molprof's, what these called of `contextlib`, and what starts a module.
    """
    kept: list[types.TracebackType] = []
    left = False
    while frames is not None:
        name = frames.tb_frame.f_code.co_filename
        left = name.startswith(_OWN) or (left and name == contextlib.__file__)
        if not left:
            kept.append(frames)
        frames = frames.tb_next
    for frame, after in zip(kept, [*kept[1:], None], strict=True):
        frame.tb_next = after
    return kept[0] if kept else None
