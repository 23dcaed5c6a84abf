"""States of the embedded trace processor: all pages of its memory, mostly compressed, or the changed ones."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from molprof.analysis.trace_processor.zstandard import zstd
from molprof.common.errors import EngineError

# Where runs of pages begin, and what they hold.
Changes = list[tuple[int, "np.ndarray[Any, Any]"]]

_PAGE_BYTES = 4096
# Up to here pages are kept as they are: 20 MB of a recorded trace are in their place in 3 ms, decompressed in 15.
_PLAIN_BYTES = 64 << 20
_BLOCK_PAGES = 4096
# Decompressed in half the time of gzip (15 and 31 ms for a recorded trace), from three quarters of its bytes.
_LEVEL = 1
_NUMBER_BYTES = 8
_UNPACKED_BYTES = 1 << 17


def packed(memory: np.ndarray[Any, Any]) -> bytes:
    """Return the bytes of a memory, of whole pages."""
    pages = memory.reshape(-1, _PAGE_BYTES)
    used = pages.any(axis=1)
    used_pages = np.flatnonzero(used)
    parts = [len(pages).to_bytes(_NUMBER_BYTES, "little"), np.packbits(used).tobytes()]
    if len(used_pages) * _PAGE_BYTES <= _PLAIN_BYTES:
        return b"".join((*parts, pages[used].tobytes()))
    compressor = zstd.ZstdCompressor(_LEVEL)
    for start in range(0, len(used_pages), _BLOCK_PAGES):
        parts.append(compressor.compress(pages[used_pages[start : start + _BLOCK_PAGES]].tobytes()))
    return b"".join((*parts, compressor.flush()))


def memory_bytes(content: memoryview) -> int:
    """Return the size of the memory that `content`, a result of `packed`, holds."""
    return int.from_bytes(content[:_NUMBER_BYTES], "little") * _PAGE_BYTES


def unpack(content: memoryview, memory: np.ndarray[Any, Any]) -> None:
    """Restore `memory` from `content`, a result of `packed`. Raises EngineError for other content."""
    pages = memory.reshape(-1, _PAGE_BYTES)
    end = _NUMBER_BYTES + -(-len(pages) // 8)
    used = np.unpackbits(np.frombuffer(content[_NUMBER_BYTES:end], np.uint8), count=len(pages)).astype(bool)
    runs = _runs(used)
    if len(content) - end == int(used.sum()) * _PAGE_BYTES:
        for begin, stop in runs.tolist():
            memory[begin:stop] = np.frombuffer(content[end : end + stop - begin], np.uint8)
            end += stop - begin
    else:
        _decompress(content[end:], runs, memory)
    # A fresh memory holds the constants of the program.
    for begin, stop in np.append([0], np.append(runs.ravel(), len(memory))).reshape(-1, 2).tolist():
        if memory[begin:stop].view(np.uint64).any():
            memory[begin:stop] = 0


def _decompress(content: memoryview, runs: np.ndarray[Any, Any], memory: np.ndarray[Any, Any]) -> None:
    # Into its place, in blocks so small that their memory is used again: a new page takes 1 us.
    with zstd.ZstdFile(io.BytesIO(content)) as file:
        for begin, stop in runs.tolist():
            for start in range(begin, stop, _UNPACKED_BYTES):
                part = memory.data[start : min(start + _UNPACKED_BYTES, stop)]
                if (size := file.readinto(part)) != len(part):
                    raise EngineError(f"a kept trace ends {len(part) - size} bytes before page {stop // _PAGE_BYTES}")


def changes(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> Changes:
    """Return the pages of a memory that differ from those of another one, of the same size."""
    differ = (before.view(np.uint64) != after.view(np.uint64)).reshape(-1, _PAGE_BYTES // 8).any(axis=1)
    return [(begin, after[begin:stop].copy()) for begin, stop in _runs(differ).tolist()]


def put(changed: Changes, memory: np.ndarray[Any, Any]) -> None:
    """Turn a memory that equals `before` into `after`, by the changes between them."""
    for begin, content in changed:
        memory[begin : begin + len(content)] = content


def _runs(pages: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the first byte and the end of each run of marked pages."""
    return np.flatnonzero(np.diff(pages, prepend=False, append=False)).reshape(-1, 2) * _PAGE_BYTES
