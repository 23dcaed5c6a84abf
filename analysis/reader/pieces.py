"""Pieces of a trace's text, of a long trace read by another process too; their parts in the order of the text."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.part import WRONG_TEXT, Part, PartReader, WrongEventError
from molprof.analysis.reader.second import SecondReader

# Text after which another process is worth its start, which takes a processor 0.2 s.
START_BYTES = 16 * 1024 * 1024
# Parts that may wait for one before them.
_MAX_WAITING = 16
# Pieces that may turn out to be none before the other process is given up.
_PATIENCE = 8
_log = logging.getLogger(__name__)


class Pieces:
    """Reads pieces and gives their parts in order; None for one whose text is to be looked at more closely."""

    def __init__(self, wanted: Wanted, processes: int) -> None:
        self._wanted = wanted
        self._reader = PartReader(wanted)
        self._second: SecondReader | None = None
        self._patience = _PATIENCE if processes > 1 and hasattr(os, "memfd_create") else 0
        self._results: deque[list[Part | None]] = deque()  # of each piece, empty while it is not known

    def read(self, text: bytes) -> Part:
        """Reads a JSON array here and now, as `PartReader.read`."""
        return self._reader.read(text)

    def are_shared(self, done: int) -> bool:
        """Whether the other process reads too; it is started when `done` bytes of text are enough."""
        if not self._patience or done < START_BYTES:
            return False
        try:
            self._second = self._second or SecondReader(self._wanted)
            return self._second.is_ready()
        except (EOFError, OSError) as error:
            self._give_up(error)
            return False

    def have_room(self) -> bool:
        """Whether another piece may be given before a part is taken."""
        return len(self._results) < _MAX_WAITING

    def give(self, text: memoryview) -> None:
        """Has events, and what separates them, read by the process that has time."""
        result: list[Part | None] = []
        self._results.append(result)
        try:
            if self._second is not None and self._second.give(text, result):
                return
        except (EOFError, OSError) as error:
            self._give_up(error)
        if not result:
            try:
                result.append(self._reader.read(b"".join((b"[", text, b"]"))))
            except (*WRONG_TEXT, WrongEventError):
                result.append(None)

    def take(self, wait: bool) -> Iterator[Part | None]:
        """The parts that are there; with `wait` the next one at least, where a piece was given."""
        while self._results:
            if wait and not self._results[0] and self._second is not None:
                try:
                    self._second.collect(True)
                except (EOFError, OSError) as error:
                    self._give_up(error)
            if not self._results[0]:
                return
            wait = False
            yield self._results.popleft()[0]

    def forget(self) -> None:
        """Lets go of what was given: a piece before it was none."""
        while self._results:
            for _ in self.take(True):
                pass
        self._patience = max(0, self._patience - 1)
        if not self._patience:
            self.close()

    def close(self) -> None:
        """Ends the other process."""
        if self._second is not None:
            self._second.close()
            self._second = None

    def _give_up(self, error: Exception) -> None:
        _log.warning("the process that helps to read has ended (%s): this one goes on alone", type(error).__name__)
        self._patience = 0
        self.close()
        for result in self._results:
            if not result:
                result.append(None)  # to be read again


@contextmanager
def open_pieces(wanted: Wanted, processes: int) -> Generator[Pieces, None, None]:
    """Pieces for one trace; the other process ends with the block."""
    pieces = Pieces(wanted, processes)
    try:
        yield pieces
    finally:
        pieces.close()
