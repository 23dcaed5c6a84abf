"""A second process, which reads pieces of a trace's text while this one reads others."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import sys
from collections import deque
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.part import WRONG_TEXT, Kind, Part, PartReader, WrongEventError
from molprof.common.process import call_line, end

# Pieces that it has at once: one that it reads, and others that wait, so that it need not.
_SLOTS = 3
_SLOT_BYTES = 512 * 1024


class SecondReader:
    """The other process. Text goes to it through shared memory, parts come back through a pipe.

    Methods raise EOFError or OSError where it has ended.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._connection, theirs = Pipe()
        memory = os.memfd_create("molprof")
        try:
            os.ftruncate(memory, _SLOTS * _SLOT_BYTES)
            self._text = mmap.mmap(memory, _SLOTS * _SLOT_BYTES)
            arguments = [json.dumps(item) for item in (asdict(wanted), memory, theirs.fileno())]
            # In a session of its own, so that Ctrl-C reaches this process alone; the end of the pipe ends it.
            self._process = subprocess.Popen(
                call_line(f"{__name__}:serve", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(memory, theirs.fileno()),
                start_new_session=True,
            )
        finally:
            os.close(memory)
            theirs.close()
        self._free = list(range(_SLOTS))
        self._asked: deque[tuple[int, list[Part | None]]] = deque()
        self._kinds: list[Kind] = []
        self._ready = False

    def is_ready(self) -> bool:
        """Whether it has started; until then nothing may be given."""
        if not self._ready and self._connection.poll():
            self._connection.recv()
            self._ready = True
        return self._ready

    def give(self, text: memoryview, result: list[Part | None]) -> bool:
        """Hands over events and what separates them; `collect` puts the part into `result`, None for wrong text.

        False where it has enough to do, or the text is too long for it.
        """
        if not self._free:
            self.collect(False)
        if not self._free or len(text) + 2 > _SLOT_BYTES:
            return False
        slot = self._free.pop()
        begin, size = slot * _SLOT_BYTES, len(text) + 2
        self._text[begin : begin + 1] = b"["
        self._text[begin + 1 : begin + size - 1] = text
        self._text[begin + size - 1 : begin + size] = b"]"
        self._asked.append((slot, result))
        self._connection.send((begin, size))
        return True

    def collect(self, wait: bool) -> None:
        """Takes the parts that are there; with `wait` one at least."""
        while self._asked and (wait or self._connection.poll()):
            part, kinds = self._connection.recv()
            slot, result = self._asked.popleft()
            self._free.append(slot)
            self._kinds += kinds
            if part is not None:
                part.kinds = self._kinds
            result.append(part)
            wait = False

    def close(self) -> None:
        """Ends it, whatever it does."""
        end(self._process)
        self._connection.close()
        self._text.close()


def serve() -> None:
    """The other end, until its pipe ends."""
    wanted, memory, handle = (json.loads(item) for item in sys.argv[1:])
    reader = PartReader(Wanted(**wanted))
    sent = 0
    with (
        contextlib.suppress(EOFError, ConnectionError),
        Connection(handle) as connection,
        mmap.mmap(memory, 0) as text,
    ):
        connection.send(None)
        while True:
            begin, size = connection.recv()
            try:
                part = reader.read(text[begin : begin + size])
                part.kinds = []
            except (*WRONG_TEXT, WrongEventError):  # the first process finds out what is wrong
                part = None
            connection.send((part, reader.kinds[sent:]))
            sent = len(reader.kinds)
