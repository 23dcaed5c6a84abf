"""A Perfetto trace as a row of packets, each with the byte at which it begins, and their class."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Iterator
from typing import Any

from molprof.common.errors import TraceError

# A packet: field number and wire type, length (varint), content.
TAG = 0x0A
_LENGTH_BYTES = 5
_MAX_BYTES = 256 * 1024 * 1024  # of a packet
_MAX_RATIO = 400
_HARMLESS_BYTES = 1 << 20
_CHECKED_PACKETS = 8
DAMAGE_HINT = "copy or record the file again, or read the intact part with --partial"
# Types of protobuf fields, by their number in descriptors; any other is a message.
_TYPES = {"double": 1, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "bool": 8, "string": 9, "bytes": 12}
_TYPES |= {"uint32": 13}
_MESSAGE = 11
_OF_FILE = re.compile(r"^message (\w+) \{$|^  (optional|repeated) (\w+) (\w+) = (\d+);$", re.MULTILINE)


class DamageError(Exception):
    """What is wrong with the trace, and at which byte of it; None: where the packet begins that is read."""

    def __init__(self, what: str, place: int | None = None) -> None:
        super().__init__(what, place)
        self.what = what
        self.place = place

    def error(self, name: str, events: int) -> TraceError:
        """The error to raise for the file `name` after so many events."""
        return TraceError(f"{name} {self.what} (byte {self.place} of the trace, after {events} events)", DAMAGE_HINT)


def packets(blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """The place and content of each packet. Raises DamageError, and what `blocks` raises, behind the packets before."""
    data = b""
    at = before = 0  # the place in `data`, and that of `data` in the trace
    ended: TraceError | None = None
    while True:
        header = _header(data, at)
        if header is not None:
            begin, size = header
            if size > _MAX_BYTES:
                raise DamageError(f"has a packet of {size} bytes", before + at)
            if begin + size <= len(data):
                yield before + at, data[begin : begin + size]
                at = begin + size
                continue
        elif at < len(data) and (data[at] != TAG or len(data) - at > _LENGTH_BYTES):
            raise DamageError(f"is damaged: no packet begins with {data[at : at + 4].hex(' ')}", before + at)
        if ended is None:
            rest = data[at:]
            before, at = before + at, 0
            parts = [rest]
            wanted = max(1, len(rest))  # twice the rest, so that long packets stay linear
            try:
                while wanted > 0 and (block := next(blocks, b"")):
                    parts.append(block)
                    wanted -= len(block)
            except TraceError as error:
                ended = error
            data = b"".join(parts)
            if len(data) > len(rest):
                continue
        if ended is not None:
            raise ended
        if at < len(data):
            raise DamageError("is truncated inside a packet", before + len(data))
        return


def _header(data: bytes, at: int) -> tuple[int, int] | None:
    """Where the content of the packet at `at` begins and how long it is; None where its head is not whole or wrong."""
    if at >= len(data) or data[at] != TAG:
        return None
    size = shift = 0
    for behind, byte in enumerate(data[at + 1 : at + 1 + _LENGTH_BYTES], at + 2):
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return behind, size
        shift += 7
    return None


def unpacked(content: bytes, place: int) -> Iterator[tuple[int, bytes]]:
    """The packets of a compressed one, all with its place. Raises DamageError."""
    most = max(_HARMLESS_BYTES, _MAX_RATIO * len(content))
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(content, most)
    except zlib.error as error:
        raise DamageError(f"has a damaged compressed packet: {error}", place) from error
    if not stream.eof:
        what = "unpacks to far more than its size" if len(text) == most else "is cut off"
        raise DamageError(f"has a compressed packet that {what}", place)
    try:
        for _, packet in packets(iter([text])):
            yield place, packet
    except DamageError as damage:
        raise DamageError(f"has a compressed packet that {damage.what}", place) from damage


def looks_like_packets(head: bytes, whole: bool) -> bool:
    """Whether text may be a trace of packets. whole: it is all of the file, else its beginning."""
    count = at = 0
    while count < _CHECKED_PACKETS:
        header = _header(head, at)
        if header is None:
            # The end of the file, or a head that is cut off; JSON looks like a long packet by chance only.
            return count > 0 and at >= len(head) - _LENGTH_BYTES and head[at : at + 1] in (b"", bytes([TAG]))
        at = sum(header)
        count += 1
        if at > len(head):
            return count > 1 or not whole
    return True


@functools.cache
def packet_class() -> Any:
    """The class of one packet of a trace, made from `trace.proto`.

    Declared there, not taken from the perfetto package: older versions of it lack some fields, its module takes 0.1 s
    longer to import, and does not check that text is UTF-8. Packets decode as fast by both.
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
