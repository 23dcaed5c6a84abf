"""A Chrome trace as a stream: the array of its events, read in blocks of whole events, and the keys around it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from molprof.analysis.reader.part import WRONG_TEXT, TracePart, WrongEventError
from molprof.analysis.reader.pieces import Pieces
from molprof.analysis.reader.source import GIVE_HINT
from molprof.common.errors import TraceError
from molprof.common.text import shortened

_RECORD_HINT = "record the trace again, or copy the file again"
CHROME_HINT = "molprof reads traces in Chrome format, as torch.profiler writes them"
_PARTIAL_HINT = "read the intact part with --partial"
# The longest event, or value of another top-level key.
MAX_VALUE_BYTES = 256 * 1024 * 1024
_SPACE = re.compile(rb"[ \t\r\n]*")

# Text decoded in one call. Its events fit into a processor's cache: half the time of blocks of 2 MiB.
DECODE_BYTES = 256 * 1024
# A whole string with few escapes, since a match takes 70 bytes for each; and a bracket, or the quote of another string.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*){0,99}"', re.DOTALL)
_TOKEN = re.compile(_STRING.pattern + rb'|[\[\]{}"]', re.DOTALL)
# Bytes that are searched at once: the first by patterns, where most values of keys end; then more and more as arrays.
_FIRST_SEARCHED, _MOST_SEARCHED = 4096, 1024 * 1024
_QUOTE, _OPENING, _CLOSING, _EITHER_CASE = b'"[]\xdf'  # but for one bit, braces are brackets
# More than any decoder accepts.
_MAX_DEPTH = 10_000
_SPACES = b" \t\r\n"
_SEPARATOR = re.compile(rb'\}\s*,\s*\{\s*"[^"\\]{0,32}"')
_LEARN_BYTES = 64 * 1024

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # which some editors and PowerShell put before JSON
_SCALAR = re.compile(rb"[^\s,}\]]+")
_OTHER_JSON = re.compile(rb'"|-?[0-9]|(?:null|true|false)\b')


class Cursor:
    """A reader of the file `name`, from its `chunks`.

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
        """The offset of `at` in the whole text."""
        return self.before + self.at

    def peek(self) -> bytes:
        """Return the next byte that is not a space, which stays unread; empty at the end."""
        while True:
            match = _SPACE.match(self.data, self.at)
            assert match is not None
            self.at = match.end()
            if self.at < len(self.data):
                return self.data[self.at : self.at + 1]
            if not self.more():
                return b""

    def take(self, wanted: bytes, missing: str) -> None:
        """Read the next byte that is not a space. Raises TraceError with `missing` where it is not `wanted`."""
        if self.peek() != wanted:
            raise self.error(missing)
        self.at += 1

    def more(self) -> bool:
        """Read on, twice the rest so that long values stay linear. Drops read text; returns False at the end."""
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
        """Go to the next chunk and drop the current text; return False at the end, and keep the text there."""
        if not (chunk := self._chunk()):
            return False
        self.before += len(self.data)
        self.data, self.at = chunk, 0
        return True

    def back(self, texts: Sequence[bytes | memoryview]) -> None:
        """Unread the text before `at`."""
        taken = b"".join(texts)
        self.before += self.at - len(taken)
        self.data = b"".join([taken, memoryview(self.data)[self.at :]])
        self.at = 0

    def need_more(self, where: str) -> None:
        """Read more text. Raises TraceError at its end, and for a value that is too long."""
        if len(self.data) - self.at > MAX_VALUE_BYTES:
            raise self.error(f"has a value of more than {MAX_VALUE_BYTES} bytes, {where}")
        if not self.more():
            raise self.error(f"is truncated {where}", position=len(self.data))

    def _chunk(self) -> bytes:
        """Return the next chunk; empty at the end."""
        try:
            return next(self._chunks, b"")
        except TraceError as error:
            # Damaged compressed data. The text before it is still read.
            if not self._partial:
                raise
            self.problem = error
            return b""

    def error(self, what: str, position: int | None = None, hint: str | None = _PARTIAL_HINT) -> TraceError:
        """Return an error at a position in `data`, or the reason why the text ends early."""
        if self.problem is not None:
            return self.problem
        byte = self.before + (self.at if position is None else position)
        return TraceError(f"{self._name} {what} (byte {byte} of the text, after {self.events} events)", hint=hint)


class TracePass(Cursor):
    """One pass over a trace: `chunks` of its text, whose events are read by `pieces`.

    After `parts`, `keys` holds the other top-level keys, decoded. With partial=True, damage ends the events, and
    `problem` says what was wrong.
    """

    def __init__(self, name: str, chunks: Iterator[bytes], pieces: Pieces, partial: bool) -> None:
        super().__init__(name, chunks, partial)
        self.keys: dict[str, Any] = {}
        self._pieces = pieces
        self._separators: list[bytes] = []

    def parts(self) -> Iterator[TracePart]:
        """Yield the parts in file order. Raises TraceError with the byte of the damage, and what `read` raises."""
        try:
            yield from self._document()
        except WrongEventError as error:
            hint = "correct or remove that event, or record the trace again"
            raise TraceError(f"{self._name}: {error.message(self.events)}", hint=hint) from None
        except TraceError as error:
            if not self._partial:
                raise
            if not self.events:
                if "--partial" not in (error.hint or ""):
                    raise
                raise TraceError(f"{error}: there is nothing before the damage", hint=_RECORD_HINT) from error
            self.problem = error

    def _document(self) -> Iterator[TracePart]:
        first = self.peek()
        if first == _BYTE_ORDER_MARK[:1] and self.data.startswith(_BYTE_ORDER_MARK, self.at):
            self.at += len(_BYTE_ORDER_MARK)
            first = self.peek()
        if first == b"[":  # Chrome format: the array alone
            self.at += 1
            yield from self._array()
        elif first == b"{":
            self.at += 1
            yield from self._members()
        elif not first:
            raise self.error("is empty or holds only white space", hint=_RECORD_HINT)
        else:
            text = self.data[self.at :]
            what = "is JSON, but neither an object nor an array" if _OTHER_JSON.match(text) else "is not JSON"
            raise self.error(f"{what}: it begins with {text[:20]!r}", hint=GIVE_HINT)
        if self.peek():
            raise self.error("has more text after the end of the JSON value")

    def _members(self) -> Iterator[TracePart]:
        has_events = False
        more = self.peek() != b"}"
        if not more:
            self.at += 1
        while more:
            key = self._key()
            self.take(b":", f"is malformed: no ':' after key {shortened(repr(key))}")
            if key == "traceEvents":
                self.take(b"[", "has a 'traceEvents' that is not an array")
                if has_events:
                    raise self.error("has 'traceEvents' twice", position=self.at - 1)
                has_events = True
                yield from self._array()
            else:
                self.keys[key] = self._value(key)
            more = self.peek() == b","
            self.take(b"," if more else b"}", f"is malformed: no ',' or '}}' after the value of {shortened(repr(key))}")
        if not has_events and "schema" in self.keys and self.keys.keys() & {"trace", "counts"}:
            raise self.error(
                "is a stored report, not a trace", hint="molprof compare and molprof report plot take its file"
            )
        if not has_events:
            raise self.error("has no 'traceEvents'", hint=CHROME_HINT)

    def _key(self) -> str:
        if self.peek() != b'"':
            raise self.error("is malformed: no key where one should begin")
        while (end := self._string_end()) is None:
            self.need_more("inside a key")
        try:
            key = str(msgspec.json.decode(memoryview(self.data)[self.at : end]))
        except WRONG_TEXT as error:
            raise self.error(f"is malformed: {_reason_of(error)}") from error
        self.at = end
        return key

    def _value(self, key: str) -> Any:
        """Return the value at hand, decoded; it is small next to the events."""
        self.peek()
        shown = shortened(repr(key))
        while (end := self._value_end()) is None:
            self.need_more(f"inside the value of {shown}")
        text = self.data[self.at : end]
        try:
            value = msgspec.json.decode(text)
        except WRONG_TEXT as error:
            raise self.error(f"is malformed in the value of {shown}: {_reason_of(error)}") from error
        self.at = end
        return value

    def _value_end(self) -> int | None:
        first = self.data[self.at : self.at + 1]
        if first in (b"{", b"["):
            depth = 0
            for token in _TOKEN.finditer(self.data, self.at, self.at + _FIRST_SEARCHED):
                depth += (token[0] in (b"{", b"[")) - (token[0] in (b"}", b"]"))
                if depth == 0:
                    return token.end()
                if token[0] == b'"':
                    break
            ends, _, _ = self._ends(len(self.data), "in the value of a key", most=1)
            return ends[0] if ends else None
        if first == b'"':
            return self._string_end()
        match = _SCALAR.match(self.data, self.at)
        # A number may go on behind the text at hand.
        return match.end() if match and match.end() < len(self.data) else None

    def _string_end(self) -> int | None:
        """Return the end of the string at the cursor; None if it does not end here."""
        if match := _STRING.match(self.data, self.at):
            return match.end()
        for begin, text in _without_escapes(self.data, self.at + 1, len(self.data)):
            if (offset := text.find(b'"')) >= 0:
                return begin + offset + 1
        return None

    def _array(self) -> Iterator[TracePart]:
        """Yield the parts from behind `[` to behind `]`. Raises TraceError, and errors of `read`."""
        if self.peek() == b"]":
            self.at += 1
            return
        while True:
            for part in self._blocks():
                self.events += part.events
                yield part
            after = self.peek()
            self.at += 1
            if after == b"]":
                return
            if after != b",":
                self.at -= 1
                raise self.error("is malformed: no ',' or ']' after an event")
            if self.peek() == b"]":
                raise self.error("is malformed: no event after ','")

    def _blocks(self) -> Iterator[TracePart]:
        begin = self.place
        if self._separators:
            yield from self._ahead()
        if self.place == begin:
            yield from self._counted_block()

    def _ahead(self) -> Iterator[TracePart]:
        """Yield parts of whole events; stop at the first wrongly guessed event boundary."""
        pending: deque[tuple[memoryview, int]] = deque()  # what is read, as `_next_piece` gives it
        behind = memoryview(b"")  # what separates the last part from the next
        while True:
            piece = self._next_piece() if self._pieces.have_room() else None
            if piece is not None:
                text, size = piece
                self._pieces.give(text[:size])
                pending.append(piece)
            elif not pending:
                self.back([behind])
                return
            for part in self._pieces.take(wait=piece is None):
                if part is None:
                    self._pieces.forget()
                    self.back([behind, *(text for text, _ in pending)])
                    return
                text, size = pending.popleft()
                behind = text[size:]
                yield part

    def _next_piece(self) -> tuple[memoryview, int] | None:
        """Return the next whole events: their text up to the next event, and its length without the separator.

        It ends at a place that looks like one between two events. JSON is read from left to right, so it decodes only
        if it is nothing but whole events; a brace inside a string fails.
        """
        if len(self.data) - self.at < DECODE_BYTES and (piece := self._across()) is not None:
            return piece
        while len(self.data) - self.at < DECODE_BYTES and self.more():
            pass
        begin = self.at
        end, separator = self._cut(begin, begin + DECODE_BYTES)
        if end < 0:
            return None
        self.at = end + separator.index(b"{")
        return memoryview(self.data)[begin : self.at], end + 1 - begin

    def _across(self) -> tuple[memoryview, int] | None:
        """Return the same where a chunk ends within an event: the piece is copied, and no more of the next chunk."""
        rest = memoryview(self.data)[self.at :]
        if not self.turn():
            return None
        end, separator = self._cut(0, DECODE_BYTES - len(rest))
        if end < 0:
            self.back([rest])
            return None
        self.at = end + separator.index(b"{")
        text = b"".join([rest, memoryview(self.data)[: self.at]])
        return memoryview(text), len(rest) + end + 1

    def _cut(self, begin: int, limit: int) -> tuple[int, bytes]:
        """Return the end of the last event between `begin` and `limit`, and the separator after it; -1 for none."""
        end, last = -1, b""
        for separator in self._separators:
            position = self.data.rfind(separator, max(end, begin), limit)
            if position > end:
                end, last = position, separator
        return end, last

    def _counted_block(self) -> list[TracePart]:
        """Return the next whole events, found by counting brackets: for any layout, and at the end of the array."""
        # Counting is slow. A few events are enough to learn the layout.
        limit = len(self.data) if self._separators else self.at + _LEARN_BYTES
        where = f"inside event {self.events + 1}"
        while True:
            ends, separator, closing = self._ends(limit, where)
            if ends or closing is not None:
                break
            if limit >= len(self.data):
                self.need_more(where)
            limit = len(self.data)
        if separator is not None:
            self._separators = [separator, *(s for s in self._separators if s != separator)][:4]
        end = ends[-1] if ends or closing is None else closing
        try:
            parts = [self._pieces.read(b"".join((b"[", memoryview(self.data)[self.at : end], b"]")))]
        except WRONG_TEXT as error:
            parts, end = self._until_wrong(ends, error)
        self.at = end
        return parts

    def _ends(self, limit: int, where: str, most: int | None = None) -> tuple[list[int], bytes | None, int | None]:
        """Return the ends of at most `most` events, their separator, and the end of the array if it is reached."""
        depth = 0
        in_string = False
        ends: list[int] = []
        closing: int | None = None
        for begin, text in _without_escapes(self.data, self.at, limit):
            characters = np.frombuffer(text, dtype=np.uint8)
            within = np.logical_xor.accumulate(characters == _QUOTE) ^ in_string
            in_string = bool(within[-1])
            folded = characters & np.uint8(_EITHER_CASE)
            brackets = np.flatnonzero(((folded == _OPENING) | (folded == _CLOSING)) & ~within)
            depths = depth + np.where(folded[brackets] == _OPENING, 1, -1).cumsum()
            stops = np.flatnonzero((depths < 0) | (depths > _MAX_DEPTH))[:1].tolist()
            whole = np.flatnonzero(depths[: stops[0] if stops else None] == 0)
            ends += (begin + 1 + brackets[whole]).tolist()
            if stops and depths[stops[0]] < 0:
                closing = begin + int(brackets[stops[0]])
            elif stops and not ends:  # report whole events first
                raise self.error(f"is nested too deeply {where}")
            if stops or (most is not None and len(ends) >= most):
                break
            depth = int(depths[-1]) if len(depths) else depth
        ends = ends[:most]
        separators = (_SEPARATOR.match(self.data, end - 1) for end in reversed(ends))
        return ends, next((match[0] for match in separators if match), None), closing

    def _until_wrong(self, ends: list[int], error: Exception) -> tuple[list[TracePart], int]:
        """Return the events before the first that does not decode, and their end. Raises TraceError if none is."""
        parts: list[TracePart] = []
        start = self.at
        for end in ends:
            piece = self.data[start:end].lstrip(_SPACES)
            if parts:
                if not piece.startswith(b","):
                    return parts, start
                piece = piece[1:].lstrip(_SPACES)
            try:
                parts.append(self._pieces.read(b"[" + piece + b"]"))
            except WRONG_TEXT as wrong:
                if parts:
                    return parts, start
                what = f"has a wrong event {self.events + 1}: {_reason_of(wrong)}"
                raise self.error(what, position=end - len(piece)) from wrong
            except WrongEventError:
                if parts:  # it counts the events of the parts before
                    return parts, start
                raise
            start = end
        raise self.error(f"is malformed: {_reason_of(error)}", position=start)


def _without_escapes(text: bytes, begin: int, limit: int) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of the text with their begin; escapes are blanked, so that each quote begins or ends a string."""
    size = _FIRST_SEARCHED
    is_escaped = False
    while piece := text[begin : min(begin + size, limit)]:
        if is_escaped:
            piece = b" " + piece[1:]
        piece = piece.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
        is_escaped = piece.endswith(b"\\")
        yield begin, piece
        begin += len(piece)
        size = min(4 * size, _MOST_SEARCHED)


def _reason_of(error: Exception) -> str:
    """Return the reason why text did not decode."""
    if isinstance(error, UnicodeDecodeError):
        return f"invalid UTF-8, {error.reason}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if str(error) == "Input data was truncated":  # it is whole: the brackets were counted
        return "text that ends in half a surrogate pair"
    # Positions count from the start of the block, not of the file.
    return re.sub(r" \(byte \d+\)| - at `\$\[\d+\]`|\$\[\d+\]\.", "", str(error))
