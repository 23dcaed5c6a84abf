"""A Perfetto trace as a series of packets, each with the byte at which it begins, and their class."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

# A packet: field number and wire type, length (varint), content.
_TAG = 0x0A
_LENGTH_BYTES = 5
_MAX_BYTES = 256 * 1024 * 1024  # of a packet
_MAX_RATIO = 400
_HARMLESS_BYTES = 1 << 20
_CHECKED_PACKETS = 8
# Types of protobuf fields, by their number in descriptors; any other is a message.
_TYPES = {"double": 1, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "bool": 8, "string": 9, "bytes": 12}
_TYPES |= {"uint32": 13}
_MESSAGE = 11
_OF_FILE = re.compile(r"\bmessage (\w+) \{|(?:\b(optional|repeated) )?\b(\w+) (\w+) = (\d+);")


class DamageError(Exception):
    """Damage in the trace, and its byte; None: the begin of the packet that is being read."""

    def __init__(self, what: str, byte: int | None = None) -> None:
        super().__init__(what, byte)
        self.what = what
        self.byte = byte


def packets(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield each packet: its first byte in the trace, and its content.

    Raises DamageError, and what `blocks` raises, behind the packets before.
    """
    parts: list[bytes] = []  # of the trace that is not read yet
    before = needed = 0  # bytes of the trace before that, and bytes of it that the next packet takes
    for block in blocks:
        parts.append(block)
        if sum(map(len, parts)) < needed:
            continue
        data, at = b"".join(parts), 0
        needed = 0
        while (header := _header(data, at)) is not None:
            begin, size = header
            if size > _MAX_BYTES:
                raise DamageError(f"has a packet of {size} bytes", before + at)
            if begin + size > len(data):
                needed = begin + size - at
                break
            yield before + at, data[begin : begin + size]
            at = begin + size
        if header is None and at < len(data) and (data[at] != _TAG or len(data) - at > _LENGTH_BYTES):
            raise DamageError(f"is damaged: no packet begins with {data[at : at + 4].hex(' ')}", before + at)
        before, parts = before + at, [data[at:]]
    if rest := sum(map(len, parts)):
        raise DamageError("is truncated inside a packet", before + rest)


def _header(data: bytes, at: int) -> tuple[int, int] | None:
    """Return index and length of the content of the packet at `at`; None if its head is wrong or cut off."""
    if at >= len(data) or data[at] != _TAG:
        return None
    size = shift = 0
    for end, byte in enumerate(data[at + 1 : at + 1 + _LENGTH_BYTES], at + 2):
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return end, size
        shift += 7
    return None


def unpacked(content: bytes) -> Iterator[bytes]:
    """Yield the packets inside a compressed one. Raises DamageError without a byte."""
    most = max(_HARMLESS_BYTES, _MAX_RATIO * len(content))
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(content, most)
    except zlib.error as error:
        raise DamageError(f"has a damaged compressed packet: {error}") from error
    if not stream.eof:
        what = "unpacks to far more than its size" if len(text) == most else "is cut off"
        raise DamageError(f"has a compressed packet that {what}")
    try:
        for _, packet in packets([text]):
            yield packet
    except DamageError as damage:
        raise DamageError(f"has a compressed packet that {damage.what}") from damage


def looks_like_packets(head: bytes, whole: bool) -> bool:
    """Return True if a file's beginning may be one of packets. whole: it is all of the file."""
    count = at = 0
    while count < _CHECKED_PACKETS and (header := _header(head, at)) is not None:
        at, count = sum(header), count + 1
        if at > len(head):  # as JSON does by chance only
            return count > 1 or not whole
    is_end = at >= len(head) - _LENGTH_BYTES and head[at : at + 1] in (b"", bytes([_TAG]))
    return count == _CHECKED_PACKETS or (count > 0 and is_end)


@functools.cache
def packet_class() -> Any:
    """Return the class of a trace's packets, made from `trace.proto`.

    Declared there, not taken from the perfetto package: it lacks some fields, its module takes 0.1 s longer to import,
    and does not check that text is UTF-8. Packets decode as fast by both.
    """
    # Imported on use: few traces need it.
    from importlib.resources import files

    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="molprof/packets.proto", package="molprof.packets", syntax="proto3")
    message: Any = None
    for name, label, kind, field, number in _OF_FILE.findall((files(__package__) / "trace.proto").read_text()):
        if name:
            message = file.message_type.add(name=name)
            continue
        added = message.field.add(name=field, number=int(number), label=3 if label == "repeated" else 1)
        added.type = _TYPES.get(kind, _MESSAGE)
        if added.type == _MESSAGE:
            added.type_name = f".{file.package}.{kind}"
        elif label == "optional":
            added.proto3_optional = True
            added.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field}")
    # A pool of its own: names in the default one may be taken.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.TracePacket"))
