"""The memory of the embedded trace processor as bytes: the pages that hold something, compressed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from molprof.common.errors import EngineError
from molprof.common.zstandard import zstd

_PAGE_BYTES = 4096
_BLOCK_PAGES = 4096
# Decompressed in half the time of gzip (15 and 31 ms for a recorded trace), from three quarters of its bytes.
_LEVEL = 1
_NUMBER_BYTES = 8
_UNPACKED_BYTES = 1 << 17


def packed(memory: np.ndarray[Any, Any]) -> bytes:
    """The bytes of a memory, of whole pages."""
    pages = memory.reshape(-1, _PAGE_BYTES)
    used = pages.any(axis=1)
    places = np.flatnonzero(used)
    compressor = zstd.ZstdCompressor(_LEVEL)
    parts = [len(pages).to_bytes(_NUMBER_BYTES, "little"), np.packbits(used).tobytes()]
    for start in range(0, len(places), _BLOCK_PAGES):
        parts.append(compressor.compress(pages[places[start : start + _BLOCK_PAGES]].tobytes()))
    return b"".join((*parts, compressor.flush()))


def memory_bytes(content: memoryview) -> int:
    """The size of the memory that `packed` made `content` of."""
    return int.from_bytes(content[:_NUMBER_BYTES], "little") * _PAGE_BYTES


def unpack(content: memoryview, memory: np.ndarray[Any, Any]) -> None:
    """Make `memory` what it was when `packed` made `content` of it. Raises EngineError for other content."""
    pages = memory.reshape(-1, _PAGE_BYTES)
    end = _NUMBER_BYTES + -(-len(pages) // 8)
    used = np.unpackbits(np.frombuffer(content[_NUMBER_BYTES:end], np.uint8), count=len(pages)).astype(bool)
    runs = np.flatnonzero(np.diff(used, prepend=False, append=False)) * _PAGE_BYTES
    # Decompressed into its place, in blocks so small that their memory is used again: a new page takes 1 us.
    with zstd.ZstdFile(io.BytesIO(content[end:])) as file:
        for begin, stop in runs.reshape(-1, 2).tolist():
            for start in range(begin, stop, _UNPACKED_BYTES):
                part = memory.data[start : min(start + _UNPACKED_BYTES, stop)]
                if (found := file.readinto(part)) != len(part):
                    raise EngineError(f"a kept trace ends {len(part) - found} bytes before page {stop // _PAGE_BYTES}")
    # A fresh memory holds the constants of the program.
    for begin, stop in np.append([0], np.append(runs, len(memory))).reshape(-1, 2).tolist():
        if memory[begin:stop].view(np.uint64).any():
            memory[begin:stop] = 0
