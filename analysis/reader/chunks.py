"""A stream of text to whose earlier places one can return for a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from molprof.errors import TraceError


class Chunks:
    """The chunks of `source` with their numbers; with `keep`, those from the last `forget` on can be taken again."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source = source
        self._kept: deque[bytes | TraceError] = deque()
        self._first = 0  # the number of the first kept
        self.taken = 0
        self.keep = False

    def next(self) -> bytes:
        """The next chunk, b"" at the end. Raises TraceError where the source does."""
        if self.taken - self._first == len(self._kept):
            try:
                self._kept.append(next(self._source))
            except StopIteration:
                return b""
            except TraceError as error:
                self._kept.append(error)
        chunk = self._kept[self.taken - self._first]
        self.taken += 1
        if not self.keep:
            self.forget(self.taken)
        if isinstance(chunk, TraceError):
            raise chunk
        return chunk

    def forget(self, number: int) -> None:
        """Lets go of the chunks before this number."""
        while self._first < number:
            self._kept.popleft()
            self._first += 1

    def rewind(self, number: int) -> None:
        """The next chunk is the one of this number."""
        self.taken = number
