"""The messages to and from a trace processor: protocol buffers as fields by number, and results as numpy columns.

Decoded here: to import protobuf and to make its classes takes 20 ms. What the numbers mean is in Perfetto's
protos/perfetto/trace_processor/trace_processor.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from molprof.common.errors import EngineError

if TYPE_CHECKING:
    import numpy as np

# The values of each field in order: numbers, and the bytes of texts, packed numbers and messages.
Fields = dict[int, list[int | memoryview]]

_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}  # bytes of numbers of fixed length, by kind


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """Return a message of fields.

    Number and value, an integer of at least 0, text, or bytes, which may be a message.
    """
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts += [_varint(number << 3 | _VARINT), _varint(value)]
        else:
            content = value.encode() if isinstance(value, str) else value
            parts += [_varint(number << 3 | _BYTES), _varint(len(content)), content]
    return b"".join(parts)


def read_fields(data: bytes | memoryview) -> Fields:
    """Return the fields of a message, whose memory they share. Raises EngineError."""
    fields: Fields = {}
    try:
        for number, value in _read(memoryview(data)):
            fields.setdefault(number, []).append(value)
    except (IndexError, KeyError) as error:
        raise EngineError("the trace processor sent a reply that is cut off or no message") from error
    return fields


def contents(fields: Fields, number: int) -> list[memoryview]:
    """Return the bytes of each value of a field."""
    return [value for value in fields.get(number, ()) if isinstance(value, memoryview)]


def content(fields: Fields, number: int) -> bytes:
    """Return the bytes of a field, joined where it occurs several times; none where it is missing."""
    return b"".join(contents(fields, number))


def text(fields: Fields, number: int) -> str:
    """Return the text of a field; empty where it is missing."""
    return content(fields, number).decode("utf-8", "replace")


def numbers(packed: bytes) -> np.ndarray:
    """Return packed integers as int64."""
    import numpy as np  # heavy

    raw = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(raw < 0x80) + 1  # the last byte of each has no high bit
    starts = np.append(0, ends[:-1])[: len(ends)]
    shifts = 7 * (np.arange(len(raw)) - np.repeat(starts, ends - starts))
    parts = (raw & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64) if len(starts) else np.empty(0, np.int64)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


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


# The engine copies a request that does not arrive in one piece.
MAX_REQUEST_BYTES = 4 * 1024 * 1024
# By name, in the order of the SELECT list: int64, float64, or object for text (str), blobs (bytes), anything with a
# NULL (None), and columns without rows.
Columns = dict[str, "np.ndarray"]

# Kinds of cells (CellType), and the fields of a CellsBatch that hold them.
_NULL, _INTEGER, _FLOAT, _TEXT, _BLOB = 1, 2, 3, 4, 5
_CELLS, _INTEGERS, _FLOATS, _BLOBS, _TEXTS = 1, 2, 3, 4, 5


def to_columns(names: Sequence[str], batches: Iterable[Fields]) -> Columns:
    """Return columns of `CellsBatch` messages; a name that occurs twice gets a suffix: `name`, `name:1`."""
    import numpy as np  # heavy

    width = len(names)
    parts: list[list[np.ndarray]] = [[] for _ in names]
    kinds: list[set[int]] = [set() for _ in names]
    for batch in batches:
        cells = np.frombuffer(content(batch, _CELLS), np.uint8)
        if not len(cells):
            continue
        values = {
            _INTEGER: numbers(content(batch, _INTEGERS)),
            _FLOAT: np.frombuffer(content(batch, _FLOATS), "<f8"),
            # Texts are joined, each ended by a NUL.
            _TEXT: np.array(text(batch, _TEXTS).split("\0")[:-1], dtype=object),
            _BLOB: np.array(list(map(bytes, contents(batch, _BLOBS))), dtype=object),
        }
        rank = {kind: np.cumsum(cells == kind) - 1 for kind in values}
        for column in range(width):
            mine = cells[column::width]
            present = set(np.flatnonzero(np.bincount(mine)).tolist())
            kinds[column] |= present
            if len(present) == 1 and _NULL not in present:
                kind = present.pop()
                parts[column].append(values[kind][rank[kind][column::width]])
                continue
            part = np.full(len(mine), None, dtype=object)
            for kind in present - {_NULL}:
                here = mine == kind
                # Python's numbers: json and string formatting treat numpy's differently.
                part[here] = values[kind][rank[kind][column::width][here]].astype(object)
            parts[column].append(part)
    columns: Columns = {}
    for index, name in enumerate(names):
        kept = np.concatenate(parts[index] or [np.empty(0, object)], dtype=object if len(kinds[index]) > 1 else None)
        # SQLite mixes both in IFNULL(ratio, 0).
        if kinds[index] == {_INTEGER, _FLOAT} and all(isinstance(cell, float) or abs(cell) <= 2**53 for cell in kept):
            kept = kept.astype(np.float64)
        before = names[:index].count(name)
        columns[f"{name}:{before}" if before else name] = kept
    return columns
