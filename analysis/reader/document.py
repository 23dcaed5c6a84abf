"""A Chrome trace as a stream: blocks of whole events, and the keys around them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from molprof.analysis.reader.part import WRONG_TEXT, Part
from molprof.analysis.reader.pieces import Pieces
from molprof.analysis.reader.source import GIVE_HINT
from molprof.errors import TraceError

# A string. Its text is matched by a look ahead and then taken as it is, so that where its end is missing no shorter one
# is tried: three times as fast in a string without end.
_TEXT = rb'"(?=([^"\\]*(?:\\.[^"\\]*)*))\1"'
# A whole string, a bracket, or a quote whose string does not end within the text at hand.
_TOKEN = re.compile(_TEXT + rb'|[\[\]{}]|"', re.DOTALL)
_SPACES = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # not JSON, but what some editors and PowerShell put before it
_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(_TEXT, re.DOTALL)
_SCALAR = re.compile(rb"[^\s,}\]]+")
_SEPARATOR = re.compile(rb'\}\s*,\s*\{\s*"[^"\\]{0,32}"')
_LEARN_BYTES = 64 * 1024
# Text that is decoded at once: large against the cost of a call, and what is decoded of it fits into a processor's
# cache, which halves the time of a pass against 2 MiB.
DECODE_BYTES = 256 * 1024
# What a single value may take in memory: an event, or the value of another top-level key.
_MAX_VALUE_BYTES = 256 * 1024 * 1024
# More than any decoder takes; counting on would only take time.
_MAX_DEPTH = 10_000
_OTHER_JSON = re.compile(rb'"|-?[0-9]|(?:null|true|false)\b')
RECORD_HINT = "record it again, or copy it again from where it was recorded"
_PARTIAL_HINT = "read what is whole with --partial"


class Document:
    """One pass over a trace: `chunks` of its text, each array of events read by `read`, or ahead by `pieces`.

    `parts` yields what `read` makes of its blocks; afterwards `keys` holds the other
    top-level keys, decoded. With partial=True a damaged file ends the events instead of raising, and `problem` says
    what was wrong.
    """

    def __init__(
        self,
        name: str,
        chunks: Iterator[bytes],
        read: Callable[[bytes], Part],
        partial: bool,
        pieces: Pieces | None = None,
    ) -> None:
        self.keys: dict[str, Any] = {}
        self.problem: TraceError | None = None
        self._name = name
        self._chunks = chunks
        self._partial = partial
        self._read = read
        self._pieces = pieces
        self._data = b""
        self._at = 0  # position in _data up to which all is read
        self._before = 0  # bytes of the text before _data
        self._events = 0
        self._separators: list[bytes] = []

    def parts(self) -> Iterator[Part]:
        """Yields the parts in file order.

        Raises TraceError with the byte where the text stops to be a trace, and what `read` raises for a whole event.
        """
        try:
            yield from self._document()
        except TraceError as error:
            if not self._partial:
                raise
            if not self._events:
                if "--partial" not in (error.hint or ""):
                    raise
                raise TraceError(f"{error}: there is nothing before the damage", hint=RECORD_HINT) from error
            self.problem = error

    def _document(self) -> Iterator[Part]:
        first = self._peek()
        if first == _BYTE_ORDER_MARK[:1] and self._data.startswith(_BYTE_ORDER_MARK, self._at):
            self._at += len(_BYTE_ORDER_MARK)
            first = self._peek()
        if first == b"[":  # legal Chrome format: nothing but the array
            self._at += 1
            yield from self._array()
        elif first == b"{":
            self._at += 1
            yield from self._members()
        elif not first:
            raise self._error("holds no text, or white space alone", hint=RECORD_HINT)
        else:
            what = "is JSON, but no object and no array" if _OTHER_JSON.match(self._data, self._at) else "is not JSON"
            raise self._error(f"{what}: it begins with {self._data[self._at : self._at + 20]!r}", hint=GIVE_HINT)
        if self._peek():
            raise self._error("has more text after the end of the JSON value")

    def _members(self) -> Iterator[Part]:
        found = False
        more = self._peek() != b"}"
        while more:
            key = self._key()
            if self._peek() != b":":
                raise self._error(f"is malformed: no ':' after key {key!r}")
            self._at += 1
            if key == "traceEvents":
                if self._peek() != b"[":
                    raise self._error("has a 'traceEvents' that is not an array")
                if found:
                    raise self._error("has 'traceEvents' twice")
                found = True
                self._at += 1
                yield from self._array()
            else:
                self.keys[key] = self._value(key)
            after = self._peek()
            if after not in (b",", b"}"):
                raise self._error(f"is malformed: no ',' or '}}' after the value of {key!r}")
            more = after == b","
            self._at += more
        self._at += 1
        if not found and "schema" in self.keys and self.keys.keys() & {"trace", "counts"}:
            raise self._error("is a stored report, not a trace", hint="molprof compare and molprof plot take it")
        if not found:
            raise self._error(
                "has no 'traceEvents'",
                hint="molprof reads traces in Chrome format, as torch.profiler writes them",
            )

    def _array(self) -> Iterator[Part]:
        """From behind `[` to behind `]`, in blocks."""
        if self._peek() == b"]":
            self._at += 1
            return
        while True:
            for part in self._blocks():
                self._events += part.events
                yield part
            after = self._peek()
            self._at += 1
            if after == b"]":
                return
            if after != b",":
                self._at -= 1
                raise self._error("is malformed: no ',' or ']' after an event")
            if self._peek() == b"]":
                raise self._error("is malformed: no event after ','")

    def _blocks(self) -> Iterator[Part]:
        begin = self._before + self._at
        if self._pieces is not None and self._separators and self._pieces.are_shared(begin):
            yield from self._ahead(self._pieces)
        if self._before + self._at == begin:
            yield from self._block()

    def _ahead(self, pieces: Pieces) -> Iterator[Part]:
        """Whole events as long as all that looks like a place between two of them is one."""
        begin = self._before + self._at  # in the text, as the ends
        ends: deque[int] = deque()
        while True:
            place = self._next_place(begin) if pieces.have_room() else None
            if place is not None:
                end, next_begin = place
                pieces.give(memoryview(self._data)[begin - self._before : end - self._before])
                ends.append(end)
                begin = next_begin
            elif not ends:
                return
            for part in pieces.take(wait=place is None):
                if part is None:
                    pieces.forget()
                    return
                self._at = ends.popleft() - self._before
                yield part

    def _next_place(self, begin: int) -> tuple[int, int] | None:
        """Where the last event of those at hand ends that begin at `begin`, and the next begins, both in the text."""
        while self._before + len(self._data) < begin + DECODE_BYTES:
            if not self._more():
                return None
        at = begin - self._before
        place, separator = self._cut(at, at + DECODE_BYTES)
        if place < 0:
            return None
        return self._before + place + 1, self._before + place + separator.index(b"{")

    def _cut(self, begin: int, limit: int) -> tuple[int, bytes]:
        """Where the last event between them ends, by what separated earlier ones, and that; -1 where none does."""
        found, last = -1, b""
        for separator in self._separators:
            place = self._data.rfind(separator, max(found, begin), limit)
            if place > found:
                found, last = place, separator
        return found, last

    def _block(self) -> list[Part]:
        """The next whole events, as many as are at hand.

        `[` + text + `]` is decoded, where the text goes from an event's beginning to a place where
        one may end. JSON is read from left to right, so if that succeeds the text was nothing but
        whole events: a wrong guess (a brace in a string or deeper inside) cannot succeed.
        """
        while len(self._data) - self._at < DECODE_BYTES and self._more():
            pass
        limit = min(self._at + DECODE_BYTES, len(self._data))
        if self._cut(self._at, limit)[0] < 0:  # an event that is longer
            limit = len(self._data)
        for _ in range(4):
            place, _ = self._cut(self._at, limit)
            if place < 0:
                break
            try:
                part = self._read(self._array_of(self._at, place + 1))
            except msgspec.ValidationError:
                break  # an event with a wrong type: found below
            except WRONG_TEXT:
                limit = place + 1
                continue
            self._at = place + 1
            return [part]
        return self._counted_block()

    def _counted_block(self) -> list[Part]:
        """The same by counting brackets, for any layout and for the end of the array."""
        # Counting is slow: where the layout is not known yet, a few events are enough to learn it.
        limit = len(self._data) if self._separators else self._at + _LEARN_BYTES
        while True:
            ends, separator, closed = self._ends(limit)
            if ends or closed:
                break
            if limit < len(self._data):
                limit = len(self._data)
                continue
            self._need_more(f"inside event {self._events + 1}")
            limit = len(self._data)
        if separator is not None:
            self._separators = [separator, *(s for s in self._separators if s != separator)][:4]
        end = ends[-1] if ends else self._data.index(b"]", self._at)
        try:
            parts = [self._read(self._array_of(self._at, end))]
        except WRONG_TEXT as error:
            parts, end = self._until_wrong(ends, error)
        self._at = end
        return parts

    def _ends(self, limit: int) -> tuple[list[int], bytes | None, bool]:
        """Where the events at hand end, what separates them, and whether the array ends here."""
        depth = 0
        ends: list[int] = []
        separator: bytes | None = None
        for token in _TOKEN.finditer(self._data, self._at, limit):
            kind = token[0]
            if kind in (b"{", b"["):
                depth += 1
                if depth > _MAX_DEPTH:
                    if ends:  # what is whole before it goes first
                        break
                    raise self._error(f"is nested too deeply inside event {self._events + 1}")
            elif kind in (b"}", b"]"):
                if depth == 0:
                    return ends, separator, True
                depth -= 1
                if depth == 0:
                    ends.append(token.end())
                    match = _SEPARATOR.match(self._data, token.start())
                    separator = match[0] if match else separator
            elif kind == b'"':
                break
        return ends, separator, False

    def _until_wrong(self, ends: list[int], error: Exception) -> tuple[list[Part], int]:
        """The events before the first that does not decode, and their end; raises if it is the first."""
        parts: list[Part] = []
        start = self._at
        for end in ends:
            piece = self._data[start:end].lstrip(_SPACES)
            if parts:
                if not piece.startswith(b","):
                    return parts, start
                piece = piece[1:].lstrip(_SPACES)
            try:
                parts.append(self._read(b"[" + piece + b"]"))
            except WRONG_TEXT as wrong:
                if parts:
                    return parts, start
                what = f"has a wrong event {self._events + 1}: {_reason(wrong)}"
                raise self._error(what, position=end - len(piece)) from wrong
            start = end
        raise self._error(f"is malformed: {_reason(error)}", position=start)

    def _array_of(self, begin: int, end: int) -> bytes:
        return b"".join((b"[", memoryview(self._data)[begin:end], b"]"))

    def _key(self) -> str:
        if self._peek() != b'"':
            raise self._error("is malformed: no key where one should begin")
        while not (match := _STRING.match(self._data, self._at)):
            self._need_more("inside a key")
        try:
            key = str(msgspec.json.decode(match[0]))
        except WRONG_TEXT as error:
            raise self._error(f"is malformed: {_reason(error)}") from error
        self._at = match.end()
        return key

    def _value(self, key: str) -> Any:
        """The value at hand, decoded: these are small next to the events."""
        self._peek()
        while (end := self._value_end()) is None:
            self._need_more(f"inside the value of {key!r}")
        text = self._data[self._at : end]
        try:
            value = msgspec.json.decode(text)
        except WRONG_TEXT as error:
            raise self._error(f"is malformed in the value of {key!r}: {_reason(error)}") from error
        self._at = end
        return value

    def _value_end(self) -> int | None:
        if self._data[self._at : self._at + 1] not in (b"{", b"[", b'"'):
            match = _SCALAR.match(self._data, self._at)
            # A number may go on where the text at hand ends.
            return match.end() if match and match.end() < len(self._data) else None
        depth = 0
        for token in _TOKEN.finditer(self._data, self._at):
            if token[0] == b'"':
                return None
            depth += (token[0] in (b"{", b"[")) - (token[0] in (b"}", b"]"))
            if depth == 0:
                return token.end()
            if depth > _MAX_DEPTH:
                raise self._error("is nested too deeply in the value of a key")
        return None

    def _peek(self) -> bytes:
        """The next byte that is not space, without going behind it; empty at the end."""
        while True:
            match = _SPACE.match(self._data, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._data):
                return self._data[self._at : self._at + 1]
            if not self._more():
                return b""

    def _more(self) -> bool:
        """Reads on; what was used is dropped. Twice the rest, so that long values stay linear."""
        rest = self._data[self._at :]
        self._before += self._at
        self._at = 0
        parts = [rest]
        wanted = max(1, len(rest))
        try:
            while wanted > 0 and (chunk := next(self._chunks, b"")):
                parts.append(chunk)
                wanted -= len(chunk)
        except TraceError as error:
            # Damaged compressed data: what came before it is still to be used.
            if not self._partial:
                raise
            self.problem = error
        self._data = b"".join(parts)
        return len(self._data) > len(rest)

    def _need_more(self, where: str) -> None:
        if len(self._data) - self._at > _MAX_VALUE_BYTES:
            raise self._error(f"has a value of more than {_MAX_VALUE_BYTES} bytes, {where}")
        if not self._more():
            raise self._error(f"is truncated {where}", position=len(self._data))

    def _error(self, what: str, position: int | None = None, hint: str | None = _PARTIAL_HINT) -> TraceError:
        if self.problem is not None:  # the damage that cut the text short says more
            return self.problem
        place = self._before + (self._at if position is None else position)
        return TraceError(f"{self._name} {what} (byte {place} of the text, after {self._events} events)", hint=hint)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"invalid UTF-8, {error.reason}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if str(error) == "Input data was truncated":  # which it is not: the brackets were counted
        return "text that ends in half a surrogate pair"
    # Positions inside the decoder's own input would only confuse.
    return re.sub(r" \(byte \d+\)| - at `\$\[\d+\]`|\$\[\d+\]\.", "", str(error))
