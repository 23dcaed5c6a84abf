"""Pieces of a trace's text, decoded by this process, and for a long trace by a fork too; parts in file order."""

from __future__ import annotations

import logging
import mmap
import pickle
import select
import struct
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.part import WRONG_TEXT, Kind, PartReader, TracePart, WrongEventError
from molprof.common.process import Copy

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Parts that may wait for an earlier one.
_MAX_WAITING = 48
# Wrong pieces after which the copy is given up.
_PATIENCE = 8
_log = logging.getLogger(__name__)
# Pieces that it has at once: one that it reads, and others that wait, so that it need not.
_SLOTS = 6
_SLOT_BYTES = 512 * 1024
# Where a text begins in the shared memory, and its length.
_PLACE = struct.Struct("QQ")
# Length of a part there; 0: it follows.
_SIZE = struct.Struct("Q")


class Pieces:
    """Decodes pieces with `read`, and with a second reader if there is one; gives their parts in order.

    None stands for a piece that is not whole events.
    """

    def __init__(self, read: Callable[[bytes], TracePart], second: SecondReader | None = None) -> None:
        self.read = read
        self._second = second
        self._patience = _PATIENCE
        self._parts: deque[Future[TracePart | None]] = deque()  # one per piece

    def have_room(self) -> bool:
        """Return True if another piece may be given before a part is taken."""
        return not self._parts or (self._second is not None and len(self._parts) < _MAX_WAITING)

    def give(self, text: memoryview) -> None:
        """Let the process that has time read some events, with their separator."""
        future = None
        with self._alone_at_its_end():
            future = None if self._second is None else self._second.submit(text)
        if future is None:
            future = Future()
            try:
                future.set_result(self.read(b"".join((b"[", text, b"]"))))
            except (*WRONG_TEXT, WrongEventError):
                future.set_result(None)
        self._parts.append(future)

    def take(self, wait: bool) -> Iterator[TracePart | None]:
        """Yield the parts that are ready; with `wait` at least the next one, if a piece was given."""
        while self._parts:
            if wait and not self._parts[0].done() and self._second is not None:
                with self._alone_at_its_end():
                    self._second.collect(True)
            if not self._parts[0].done():
                return
            wait = False
            yield self._parts.popleft().result()

    def leave_out_stacks(self) -> None:
        """Tell the second reader that Python stacks are not needed any more."""
        if self._second is not None:
            self._second.leave_out_stacks()

    def forget(self) -> None:
        """Drop all given pieces: an earlier one was not whole events."""
        while self._parts:
            for _ in self.take(True):
                pass
        self._patience -= 1
        if self._patience <= 0:
            self.close()

    def close(self) -> None:
        """End the second reader."""
        if self._second is not None:
            self._second.close()
            self._second = None

    @contextmanager
    def _alone_at_its_end(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            _log.warning("the second reading process ended (%s): this one reads on alone", type(error).__name__)
            self.close()


class SecondReader:
    """A forked reader: text and parts use shared memory, longer parts a pipe. EOFError, OSError: it has ended.

    No thread waits for its parts, which would take turns with this one: `collect` makes futures done.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._text = mmap.mmap(-1, _SLOTS * _SLOT_BYTES + 1)  # the last byte: whether stacks are left out
        self._copy = Copy(partial(_serve, wanted, self._text))
        self._connection = self._copy.connection
        self._arrival = select.poll()  # Connection.poll makes one each time
        self._arrival.register(self._connection, select.POLLIN)
        self._free = list(range(_SLOTS))
        self._asked: deque[tuple[int, Future[TracePart | None]]] = deque()
        self._kinds: list[Kind] = []

    def submit(self, text: memoryview) -> Future[TracePart | None] | None:
        """Return the part of events and what separates them, None for wrong text.

        No future where it has enough to do, or the text is too long for it.
        """
        if not self._free:
            self.collect(False)
        if not self._free or len(text) + 2 > _SLOT_BYTES:
            return None
        slot = self._free.pop()
        begin, size = slot * _SLOT_BYTES, len(text) + 2
        self._text.seek(begin)
        for item in (b"[", text, b"]"):
            self._text.write(item)
        self._connection.send_bytes(_PLACE.pack(begin, size))
        self._asked.append((slot, Future()))
        return self._asked[-1][1]

    def collect(self, wait: bool) -> None:
        """Take the parts that are ready; with `wait` one at least."""
        while self._asked and (wait or self._arrival.poll(0)):
            (size,) = _SIZE.unpack_from(answer := self._connection.recv_bytes())
            slot, future = self._asked.popleft()
            begin = slot * _SLOT_BYTES
            part, kinds = pickle.loads(self._text[begin : begin + size] if size else answer[_SIZE.size :])
            self._free.append(slot)
            self._kinds += kinds
            if part is not None:
                part.kinds = self._kinds
            future.set_result(part)
            wait = False

    def leave_out_stacks(self) -> None:
        """Leave out Python stacks from the next part that it begins."""
        self._text[-1] = 1

    def close(self) -> None:
        """End the fork at once; what it has not read must be read again."""
        self._copy.close()
        self._text.close()
        for _, future in self._asked:
            future.set_result(None)


def _serve(wanted: Wanted, text: mmap.mmap, connection: Connection) -> None:
    """Serve the other end until its pipe ends."""
    reader = PartReader(wanted)
    view = memoryview(text)
    sent = 0
    is_left_out = False
    while True:
        begin, size = _PLACE.unpack(connection.recv_bytes())
        if text[-1] and not is_left_out:
            reader.leave_out_stacks()
            is_left_out = True
        try:
            part = reader.read(view[begin : begin + size])
            part.kinds = []
        except (*WRONG_TEXT, WrongEventError):  # the first process finds out what is wrong
            part = None
        # Connection.send looks each type up in two tables.
        kinds = list(islice(reader.kinds, sent, None))
        answer = pickle.dumps((part, kinds), pickle.HIGHEST_PROTOCOL)
        # Where the text was: a pipe holds so little that this process would wait until the other one reads.
        if len(answer) <= _SLOT_BYTES:
            text[begin : begin + len(answer)] = answer
            connection.send_bytes(_SIZE.pack(len(answer)))
        else:
            connection.send_bytes(_SIZE.pack(0) + answer)
        sent = len(reader.kinds)
