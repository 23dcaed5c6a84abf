"""The array of events of a trace, read in blocks of whole events, whatever its layout."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from molprof.analysis.reader.cursor import Cursor
from molprof.analysis.reader.part import WRONG_TEXT, Part, WrongEventError
from molprof.analysis.reader.pieces import Pieces

# Text decoded in one call. Its events fit into a processor's cache: half the time of blocks of 2 MiB.
DECODE_BYTES = 256 * 1024
# A string. The look-ahead keeps the pattern from backtracking: three times as fast in a string without end.
TEXT = rb'"(?=([^"\\]*(?:\\.[^"\\]*)*))\1"'
# A whole string, a bracket, or the quote of a string that does not end within the text.
TOKEN = re.compile(TEXT + rb'|[\[\]{}]|"', re.DOTALL)
# More than any decoder accepts.
MAX_DEPTH = 10_000
_SPACES = b" \t\r\n"
_SEPARATOR = re.compile(rb'\}\s*,\s*\{\s*"[^"\\]{0,32}"')
_LEARN_BYTES = 64 * 1024


class EventArray:
    """Reads the events behind a cursor block by block: by `read`, or ahead by `pieces` in a long trace."""

    def __init__(self, cursor: Cursor, read: Callable[[bytes], Part], pieces: Pieces | None) -> None:
        self._cursor = cursor
        self._read = read
        self._pieces = pieces
        self._separators: list[bytes] = []

    def parts(self) -> Iterator[Part]:
        """The parts from behind `[` to behind `]`. Raises TraceError, and what `read` raises for a whole event."""
        if self._cursor.peek() == b"]":
            self._cursor.at += 1
            return
        while True:
            for part in self._blocks():
                self._cursor.events += part.events
                yield part
            after = self._cursor.peek()
            self._cursor.at += 1
            if after == b"]":
                return
            if after != b",":
                self._cursor.at -= 1
                raise self._cursor.error("is malformed: no ',' or ']' after an event")
            if self._cursor.peek() == b"]":
                raise self._cursor.error("is malformed: no event after ','")

    def _blocks(self) -> Iterator[Part]:
        begin = self._cursor.place
        if self._pieces is not None and self._separators and self._pieces.are_shared:
            yield from self._ahead(self._pieces)
        if self._cursor.place == begin:
            yield from self._block()

    def _ahead(self, pieces: Pieces) -> Iterator[Part]:
        """Parts of whole events, until what looked like a place between two events is none."""
        given: deque[tuple[memoryview, int]] = deque()  # what is read, as `_next_piece` gives it
        behind = memoryview(b"")  # what separates the last part from the next
        while True:
            piece = self._next_piece() if pieces.have_room() else None
            if piece is not None:
                text, size = piece
                pieces.give(text[:size])
                given.append(piece)
            elif not given:
                self._cursor.back([behind])
                return
            for part in pieces.take(wait=piece is None):
                if part is None:
                    pieces.forget()
                    self._cursor.back([behind, *(text for text, _ in given)])
                    return
                text, size = given.popleft()
                behind = text[size:]
                yield part

    def _next_piece(self) -> tuple[memoryview, int] | None:
        """The next whole events at hand: their text up to the next event, and its length without what separates."""
        if len(self._cursor.data) - self._cursor.at < DECODE_BYTES and (piece := self._across()) is not None:
            return piece
        while len(self._cursor.data) - self._cursor.at < DECODE_BYTES:
            if not self._cursor.more():
                return None
        begin = self._cursor.at
        place, separator = self._cut(begin, begin + DECODE_BYTES)
        if place < 0:
            return None
        self._cursor.at = place + separator.index(b"{")
        return memoryview(self._cursor.data)[begin : self._cursor.at], place + 1 - begin

    def _across(self) -> tuple[memoryview, int] | None:
        """The same where a chunk ends within an event: the piece is copied, the rest of the next chunk is not."""
        rest = memoryview(self._cursor.data)[self._cursor.at :]
        if not self._cursor.turn():
            return None
        place, separator = self._cut(0, DECODE_BYTES - len(rest))
        if place < 0:
            self._cursor.back([rest])
            return None
        self._cursor.at = place + separator.index(b"{")
        text = b"".join([rest, memoryview(self._cursor.data)[: self._cursor.at]])
        return memoryview(text), len(rest) + place + 1

    def _cut(self, begin: int, limit: int) -> tuple[int, bytes]:
        """Where the last event between `begin` and `limit` ends, and the separator there; -1 for none."""
        found, last = -1, b""
        for separator in self._separators:
            place = self._cursor.data.rfind(separator, max(found, begin), limit)
            if place > found:
                found, last = place, separator
        return found, last

    def _block(self) -> list[Part]:
        """The next whole events, as many as are at hand.

        Decodes `[` + text + `]`, where the text ends at a place that looks like the end of an event. JSON is read from
        left to right, so this succeeds only if the text is nothing but whole events; a brace inside a string fails.
        """
        while len(self._cursor.data) - self._cursor.at < DECODE_BYTES and self._cursor.more():
            pass
        limit = min(self._cursor.at + DECODE_BYTES, len(self._cursor.data))
        if self._cut(self._cursor.at, limit)[0] < 0:  # a longer event
            limit = len(self._cursor.data)
        for _ in range(4):
            place, _ = self._cut(self._cursor.at, limit)
            if place < 0:
                break
            try:
                part = self._read(self._array_of(self._cursor.at, place + 1))
            except msgspec.ValidationError:
                break  # the exact search names the event
            except WRONG_TEXT:
                limit = place + 1
                continue
            self._cursor.at = place + 1
            return [part]
        return self._counted_block()

    def _counted_block(self) -> list[Part]:
        """The next whole events, found by counting brackets: for any layout, and at the end of the array."""
        # Counting is slow. A few events are enough to learn the layout.
        limit = len(self._cursor.data) if self._separators else self._cursor.at + _LEARN_BYTES
        while True:
            ends, separator, closing = self._ends(limit)
            if ends or closing is not None:
                break
            if limit >= len(self._cursor.data):
                self._cursor.need_more(f"inside event {self._cursor.events + 1}")
            limit = len(self._cursor.data)
        if separator is not None:
            self._separators = [separator, *(s for s in self._separators if s != separator)][:4]
        end = ends[-1] if ends or closing is None else closing
        try:
            parts = [self._read(self._array_of(self._cursor.at, end))]
        except WRONG_TEXT as error:
            parts, end = self._until_wrong(ends, error)
        self._cursor.at = end
        return parts

    def _ends(self, limit: int) -> tuple[list[int], bytes | None, int | None]:
        """Where the events at hand end, what separates them, and where the array ends, if it does."""
        depth = 0
        ends: list[int] = []
        separator: bytes | None = None
        for token in TOKEN.finditer(self._cursor.data, self._cursor.at, limit):
            kind = token[0]
            if kind in (b"{", b"["):
                depth += 1
                if depth > MAX_DEPTH:
                    if ends:  # report whole events first
                        break
                    raise self._cursor.error(f"is nested too deeply inside event {self._cursor.events + 1}")
            elif kind in (b"}", b"]"):
                if depth == 0:
                    return ends, separator, token.start()
                depth -= 1
                if depth == 0:
                    ends.append(token.end())
                    match = _SEPARATOR.match(self._cursor.data, token.start())
                    separator = match[0] if match else separator
            elif kind == b'"':
                break
        return ends, separator, None

    def _until_wrong(self, ends: list[int], error: Exception) -> tuple[list[Part], int]:
        """The events before the first that does not decode, and their end. Raises TraceError if it is the first."""
        parts: list[Part] = []
        start = self._cursor.at
        for end in ends:
            piece = self._cursor.data[start:end].lstrip(_SPACES)
            if parts:
                if not piece.startswith(b","):
                    return parts, start
                piece = piece[1:].lstrip(_SPACES)
            try:
                parts.append(self._read(b"[" + piece + b"]"))
            except WRONG_TEXT as wrong:
                if parts:
                    return parts, start
                what = f"has a wrong event {self._cursor.events + 1}: {reason_of(wrong)}"
                raise self._cursor.error(what, position=end - len(piece)) from wrong
            except WrongEventError:
                if parts:  # it counts the events of the parts before
                    return parts, start
                raise
            start = end
        raise self._cursor.error(f"is malformed: {reason_of(error)}", position=start)

    def _array_of(self, begin: int, end: int) -> bytes:
        return b"".join((b"[", memoryview(self._cursor.data)[begin:end], b"]"))


def reason_of(error: Exception) -> str:
    """What is wrong with text that did not decode."""
    if isinstance(error, UnicodeDecodeError):
        return f"invalid UTF-8, {error.reason}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if str(error) == "Input data was truncated":  # it is whole: the brackets were counted
        return "text that ends in half a surrogate pair"
    # Positions count from the start of the block, not of the file.
    return re.sub(r" \(byte \d+\)| - at `\$\[\d+\]`|\$\[\d+\]\.", "", str(error))
