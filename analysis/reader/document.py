"""A Chrome trace as a stream: the array of its events, and the keys around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from molprof.analysis.reader.array import MAX_DEPTH, TEXT, TOKEN, EventArray, reason_of
from molprof.analysis.reader.cursor import CHROME_HINT, RECORD_HINT, Cursor
from molprof.analysis.reader.part import WRONG_TEXT, Part
from molprof.analysis.reader.pieces import Pieces
from molprof.analysis.reader.source import GIVE_HINT
from molprof.common.errors import TraceError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # which some editors and PowerShell put before JSON
_STRING = re.compile(TEXT, re.DOTALL)
_SCALAR = re.compile(rb"[^\s,}\]]+")
_OTHER_JSON = re.compile(rb'"|-?[0-9]|(?:null|true|false)\b')


class Document:
    """One pass over a trace: `chunks` of its text, each block of events read by `read`, or ahead by `pieces`.

    After `parts`, `keys` holds the other top-level keys, decoded. With partial=True, damage ends the events, and
    `problem` says what was wrong.
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
        self._partial = partial
        self._cursor = Cursor(name, chunks, partial)
        self._events = EventArray(self._cursor, read, pieces)

    @property
    def problem(self) -> TraceError | None:
        """What was wrong with a file that was read in part; None of a whole one."""
        return self._cursor.problem

    def parts(self) -> Iterator[Part]:
        """The parts in file order. Raises TraceError with the byte of the damage, and what `read` raises."""
        try:
            yield from self._document()
        except TraceError as error:
            if not self._partial:
                raise
            if not self._cursor.events:
                if "--partial" not in (error.hint or ""):
                    raise
                raise TraceError(f"{error}: there is nothing before the damage", hint=RECORD_HINT) from error
            self._cursor.problem = error

    def _document(self) -> Iterator[Part]:
        first = self._cursor.peek()
        if first == _BYTE_ORDER_MARK[:1] and self._cursor.data.startswith(_BYTE_ORDER_MARK, self._cursor.at):
            self._cursor.at += len(_BYTE_ORDER_MARK)
            first = self._cursor.peek()
        if first == b"[":  # Chrome format: the array alone
            self._cursor.at += 1
            yield from self._events.parts()
        elif first == b"{":
            self._cursor.at += 1
            yield from self._members()
        elif not first:
            raise self._cursor.error("is empty or holds only white space", hint=RECORD_HINT)
        else:
            text = self._cursor.data[self._cursor.at :]
            what = "is JSON, but neither an object nor an array" if _OTHER_JSON.match(text) else "is not JSON"
            raise self._cursor.error(f"{what}: it begins with {text[:20]!r}", hint=GIVE_HINT)
        if self._cursor.peek():
            raise self._cursor.error("has more text after the end of the JSON value")

    def _members(self) -> Iterator[Part]:
        found = False
        more = self._cursor.peek() != b"}"
        if not more:
            self._cursor.at += 1
        while more:
            key = self._key()
            self._cursor.take(b":", f"is malformed: no ':' after key {key!r}")
            if key == "traceEvents":
                self._cursor.take(b"[", "has a 'traceEvents' that is not an array")
                if found:
                    raise self._cursor.error("has 'traceEvents' twice", position=self._cursor.at - 1)
                found = True
                yield from self._events.parts()
            else:
                self.keys[key] = self._value(key)
            more = self._cursor.peek() == b","
            self._cursor.take(b"," if more else b"}", f"is malformed: no ',' or '}}' after the value of {key!r}")
        if not found and "schema" in self.keys and self.keys.keys() & {"trace", "counts"}:
            raise self._cursor.error("is a stored report, not a trace", hint="molprof compare and molprof plot take it")
        if not found:
            raise self._cursor.error("has no 'traceEvents'", hint=CHROME_HINT)

    def _key(self) -> str:
        if self._cursor.peek() != b'"':
            raise self._cursor.error("is malformed: no key where one should begin")
        while not (match := _STRING.match(self._cursor.data, self._cursor.at)):
            self._cursor.need_more("inside a key")
        try:
            key = str(msgspec.json.decode(match[0]))
        except WRONG_TEXT as error:
            raise self._cursor.error(f"is malformed: {reason_of(error)}") from error
        self._cursor.at = match.end()
        return key

    def _value(self, key: str) -> Any:
        """The value at hand, decoded; it is small next to the events."""
        self._cursor.peek()
        while (end := self._value_end()) is None:
            self._cursor.need_more(f"inside the value of {key!r}")
        text = self._cursor.data[self._cursor.at : end]
        try:
            value = msgspec.json.decode(text)
        except WRONG_TEXT as error:
            raise self._cursor.error(f"is malformed in the value of {key!r}: {reason_of(error)}") from error
        self._cursor.at = end
        return value

    def _value_end(self) -> int | None:
        if self._cursor.data[self._cursor.at : self._cursor.at + 1] not in (b"{", b"[", b'"'):
            match = _SCALAR.match(self._cursor.data, self._cursor.at)
            # A number may go on behind the text at hand.
            return match.end() if match and match.end() < len(self._cursor.data) else None
        depth = 0
        for token in TOKEN.finditer(self._cursor.data, self._cursor.at):
            if token[0] == b'"':
                return None
            depth += (token[0] in (b"{", b"[")) - (token[0] in (b"}", b"]"))
            if depth == 0:
                return token.end()
            if depth > MAX_DEPTH:
                raise self._cursor.error("is nested too deeply in the value of a key")
        return None
