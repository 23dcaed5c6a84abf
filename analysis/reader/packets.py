"""Whether a Perfetto trace ends with a whole packet: the engine takes a part of one for the end, without a word."""

from __future__ import annotations

_PACKET = 0x0A  # field 1 of the trace, length-delimited
_LENGTH_BYTES = 5  # a varint of 32 bits


class Packets:
    """Walks over a trace block by block, from packet to packet by their lengths.

    Attributes:
        count: packets that have begun.
        known: False once there was something else than a packet; then nothing more can be told.
    """

    def __init__(self) -> None:
        self.count = 0
        self.known = True
        self._missing = 0  # bytes of the running packet that are still to come
        self._head = b""  # a tag and a length of which the rest is still to come

    def take(self, block: bytes) -> None:
        """The next bytes of the trace."""
        if len(block) < self._missing:
            self._missing -= len(block)
            return
        # Of the two at most one is there: inside a packet no length is read.
        data, at = self._head + block, self._missing
        self._missing, self._head = 0, b""
        while at < len(data) and self.known:
            length = shift = 0
            end = at + 1
            while end < len(data) and data[end] & 0x80 and end - at < _LENGTH_BYTES:
                length |= (data[end] & 0x7F) << shift
                shift += 7
                end += 1
            if data[at] != _PACKET:
                self.known = False
            elif end >= len(data):
                self._head = data[at:]
                return
            elif data[end] & 0x80:  # longer than any length
                self.known = False
            else:
                self.count += 1
                at = end + 1 + (length | data[end] << shift)
        self._missing = max(0, at - len(data))

    @property
    def is_whole(self) -> bool:
        """As far as it is known."""
        return not self.known or not (self._missing or self._head)
