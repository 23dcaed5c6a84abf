"""Pieces of a trace's text, of a long trace read by a second process too; their parts in the order of the text."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator

from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.part import WRONG_TEXT, Part, PartReader, WrongEventError
from molprof.analysis.reader.second import SecondReader

# Text from which a second process is worth its start of 0.2 s.
START_BYTES = 16 * 1024 * 1024
# Parts that may wait for an earlier one.
_MAX_WAITING = 16
# Wrong pieces after which the second process is given up.
_PATIENCE = 8
_log = logging.getLogger(__name__)


class Pieces:
    """Reads pieces and gives their parts in order; None for a piece that is not whole events."""

    def __init__(self, wanted: Wanted, processes: int) -> None:
        self._wanted = wanted
        self._reader = PartReader(wanted)
        self._second: SecondReader | None = None
        self._patience = _PATIENCE if processes > 1 and hasattr(os, "memfd_create") else 0
        self._results: deque[list[Part | None]] = deque()  # one per piece, empty while it is read

    def read(self, text: bytes) -> Part:
        """The part of a JSON array, read in this process."""
        return self._reader.read(text)

    def are_shared(self, done: int) -> bool:
        """Whether the second process reads too. It starts when `done` bytes of text make it worth it."""
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
        """The parts that are ready; with `wait` at least the next one, if a piece was given."""
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
        """Drops all pieces that were given: one before them was not whole events."""
        while self._results:
            for _ in self.take(True):
                pass
        self._patience = max(0, self._patience - 1)
        if not self._patience:
            self.close()

    def close(self) -> None:
        """Ends the second process."""
        if self._second is not None:
            self._second.close()
            self._second = None

    def _give_up(self, error: Exception) -> None:
        _log.warning("the second reading process ended (%s): this one reads on alone", type(error).__name__)
        self._patience = 0
        self.close()
        for result in self._results:
            if not result:
                result.append(None)  # to be read again
