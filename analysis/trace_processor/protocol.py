"""The messages to and from a trace processor: protocol buffers as fields by number.

Decoded here: to import protobuf and to make its classes takes 20 ms. What the numbers mean is in Perfetto's
protos/perfetto/trace_processor/trace_processor.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from molprof.common.errors import EngineError

if TYPE_CHECKING:
    import numpy as np

# The values of each field in order: numbers, and the bytes of texts, packed numbers and messages.
Fields = dict[int, list[int | memoryview]]

_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}  # bytes of numbers of fixed length, by kind


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """A message of fields: number and value, an integer of at least 0, text, or bytes, which may be a message."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts += [_varint(number << 3 | _VARINT), _varint(value)]
        else:
            content = value.encode() if isinstance(value, str) else value
            parts += [_varint(number << 3 | _BYTES), _varint(len(content)), content]
    return b"".join(parts)


def read_fields(data: bytes | memoryview) -> Fields:
    """The fields of a message, whose memory they share. Raises EngineError."""
    found: Fields = {}
    try:
        for number, value in _read(memoryview(data)):
            found.setdefault(number, []).append(value)
    except (IndexError, KeyError) as error:
        raise EngineError("the trace processor sent a reply that is cut off or no message") from error
    return found


def contents(fields: Fields, number: int) -> list[memoryview]:
    """The bytes of each value of a field."""
    return [value for value in fields.get(number, ()) if isinstance(value, memoryview)]


def content(fields: Fields, number: int) -> bytes:
    """The bytes of a field, joined where it occurs several times; none where it is missing."""
    return b"".join(contents(fields, number))


def text(fields: Fields, number: int) -> str:
    """The text of a field; empty where it is missing."""
    return content(fields, number).decode("utf-8", "replace")


def numbers(packed: bytes) -> np.ndarray:
    """Packed integers, int64."""
    import numpy as np  # heavy

    raw = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(raw < 0x80) + 1  # the last byte of each has no high bit
    starts = np.append(0, ends[:-1])[: len(ends)]
    shifts = 7 * (np.arange(len(raw)) - np.repeat(starts, ends - starts))
    parts = (raw & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64) if len(starts) else np.empty(0, np.int64)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _read(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield key >> 3, value
            continue
        size = _FIXED.get(kind)
        if size is None:
            size, at = _read_varint(data, at)
        if kind not in (_BYTES, *_FIXED) or at + size > len(data):
            raise IndexError
        yield key >> 3, data[at : at + size]
        at += size


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := data[at]) >= 0x80:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    return number | byte << shift, at + 1
