"""A place in a text that arrives in chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from molprof.common.errors import TraceError

RECORD_HINT = "record the trace again, or copy the file again"
CHROME_HINT = "molprof reads traces in Chrome format, as torch.profiler writes them"
_PARTIAL_HINT = "read the intact part with --partial"
# The longest event, or value of another top-level key.
_MAX_VALUE_BYTES = 256 * 1024 * 1024
_SPACE = re.compile(rb"[ \t\r\n]*")


class Cursor:
    """Reads the `chunks` of the file `name`.

    data: the text at hand; at: the place in it; before: bytes of the text before `data`. With partial=True, damage ends
    the text, and `problem` says what was wrong.
    """

    def __init__(self, name: str, chunks: Iterator[bytes], partial: bool) -> None:
        self.data = b""
        self.at = 0
        self.before = 0
        self.events = 0  # read so far, for messages
        self.problem: TraceError | None = None
        self._name = name
        self._chunks = chunks
        self._partial = partial

    @property
    def place(self) -> int:
        """`at` as a place in the whole text."""
        return self.before + self.at

    def peek(self) -> bytes:
        """The next byte that is not a space, which stays unread; empty at the end."""
        while True:
            match = _SPACE.match(self.data, self.at)
            assert match is not None
            self.at = match.end()
            if self.at < len(self.data):
                return self.data[self.at : self.at + 1]
            if not self.more():
                return b""

    def take(self, wanted: bytes, missing: str) -> None:
        """Reads the next byte that is not a space. Raises TraceError with `missing` where it is not `wanted`."""
        if self.peek() != wanted:
            raise self.error(missing)
        self.at += 1

    def more(self) -> bool:
        """Reads on, twice the rest so that long values stay linear. Drops what was read; False at the end."""
        rest = self.data[self.at :]
        self.before += self.at
        self.at = 0
        parts = [rest]
        wanted = max(1, len(rest))
        while wanted > 0 and (chunk := self._chunk()):
            parts.append(chunk)
            wanted -= len(chunk)
        self.data = b"".join(parts)
        return len(self.data) > len(rest)

    def turn(self) -> bool:
        """Goes on to the next chunk, and drops the text at hand; False at the end, where it keeps it."""
        if not (chunk := self._chunk()):
            return False
        self.before += len(self.data)
        self.data, self.at = chunk, 0
        return True

    def back(self, texts: Sequence[bytes | memoryview]) -> None:
        """Takes what is before `at` back."""
        taken = b"".join(texts)
        self.before += self.at - len(taken)
        self.data = b"".join([taken, memoryview(self.data)[self.at :]])
        self.at = 0

    def need_more(self, where: str) -> None:
        """Reads on where the text must. Raises TraceError at its end, and for a value that is too long."""
        if len(self.data) - self.at > _MAX_VALUE_BYTES:
            raise self.error(f"has a value of more than {_MAX_VALUE_BYTES} bytes, {where}")
        if not self.more():
            raise self.error(f"is truncated {where}", position=len(self.data))

    def _chunk(self) -> bytes:
        """The next chunk; empty at the end."""
        try:
            return next(self._chunks, b"")
        except TraceError as error:
            # Damaged compressed data. The text before it is still read.
            if not self._partial:
                raise
            self.problem = error
            return b""

    def error(self, what: str, position: int | None = None, hint: str | None = _PARTIAL_HINT) -> TraceError:
        """An error at a position in `data`, or what cut the text short."""
        if self.problem is not None:
            return self.problem
        place = self.before + (self.at if position is None else position)
        return TraceError(f"{self._name} {what} (byte {place} of the text, after {self.events} events)", hint=hint)
