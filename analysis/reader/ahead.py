"""Blocks made ahead by a thread: decompressing, numpy and the trace processor do not hold Python's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

# Blocks that wait: enough to bridge a pause, few enough to stay small.
_WAITING_BLOCKS = 5


def ahead(blocks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """The blocks. The thread starts with the first, and ends when this is closed."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting: deque[Future[bytes | None]] = deque(pool.submit(next, blocks, None) for _ in range(_WAITING_BLOCKS))
        while (block := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, blocks, None))
            yield block
