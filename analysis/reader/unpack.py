"""Decompression of gzip and zstd by content, any number of members, in blocks of bounded size."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from isal import igzip_lib

from molprof.common.errors import TraceError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# Decompressed bytes per block. The thread waits up to 5 ms for Python's lock after each: with small blocks it would
# take turns with the decoding thread instead of overlapping it.
BLOCK_BYTES = 2 * 1024 * 1024
_READ_BYTES = 256 * 1024
_MAGIC_BYTES = 4
# A real trace unpacks to 10 to 40 times its size. More than this is a bomb, unless it is small.
_MAX_RATIO = 400
_HARMLESS_BYTES = 1 << 30
# The largest zstd window, 128 MiB, as its own command line allows by default.
_WINDOW_LOG = 27
_HINT = "copy or record the file again, or read what is whole with --partial"


@dataclass(frozen=True)
class Packing:
    """A compression: its name, what each member begins with, and its decompressor (as bz2.BZ2Decompressor)."""

    name: str
    magic: re.Pattern[bytes]
    decompressor: Callable[[], Any]
    error: Any


PACKINGS = (
    Packing(
        "gzip",
        re.compile(rb"\x1f\x8b"),
        lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP),
        igzip_lib.IsalError,
    ),
    Packing(
        "zstd",
        re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),  # the latter: frames without data
        lambda: zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}),
        zstd.ZstdError,
    ),
)


def unpack(name: str, read: Callable[[int], bytes], packing: Packing) -> Iterator[bytes]:
    """Yields the text of what `read` gives, which messages call `name`, each block at most BLOCK_BYTES long.

    Raises TraceError with the place of the damage, behind what came before it.
    """
    taken = given = 0  # compressed bytes read, uncompressed bytes yielded
    stream = packing.decompressor()
    pending = b""
    while True:
        if stream.needs_input and not pending:
            pending = read(_READ_BYTES)
            taken += len(pending)
            if not pending:
                break
        try:
            block = stream.decompress(pending, BLOCK_BYTES)
        except packing.error as error:
            raise TraceError(
                f"{name}: damaged {packing.name} data near byte {taken - len(pending)}, after {given} bytes of"
                f" uncompressed text: {error}",
                hint=_HINT,
            ) from error
        pending = b""
        if block:
            given += len(block)
            if given > _HARMLESS_BYTES and given > taken * _MAX_RATIO:
                raise TraceError(
                    f"{name}: {taken} bytes of {packing.name} data unpack to more than {given} bytes, over"
                    f" {_MAX_RATIO} times as many: not a trace"
                )
            yield block
        if stream.eof:
            end = taken - len(stream.unused_data)
            # Zero bytes may follow a member as padding.
            pending = stream.unused_data.lstrip(b"\0")
            while len(pending) < _MAGIC_BYTES and (more := read(_READ_BYTES)):
                taken += len(more)
                pending = (pending + more).lstrip(b"\0")
            if not pending:
                return
            if not packing.magic.match(pending):
                raise TraceError(
                    f"{name}: the {packing.name} data ends at byte {end}, and other bytes follow it, from byte"
                    f" {taken - len(pending)} on: {pending[:20]!r}",
                    hint="cut them off, or read what comes before them with --partial",
                )
            stream = packing.decompressor()
    raise TraceError(
        f"{name}: {packing.name} data is truncated at byte {taken}, after {given} bytes of uncompressed text",
        hint=_HINT,
    )
