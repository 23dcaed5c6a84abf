"""Decompression by content: gzip and zstd, as many members as there are, in blocks of bounded size."""

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

# Decompressed bytes per block. For each the decompressing thread waits for the interpreter, which another that decodes
# gives up every 5 ms only: with blocks of 256 KiB the two would take turns and not overlap.
BLOCK_BYTES = 2 * 1024 * 1024
_READ_BYTES = 256 * 1024
_MAGIC_BYTES = 4
# A real trace becomes a tenth to a fortieth; a file that unpacks to this many times its size is a bomb. Small ones
# are let through, as they do no harm.
_MAX_RATIO = 400
_HARMLESS_BYTES = 1 << 30
# The most that a zstd file may ask for as a window, 128 MiB: what its own command line allows without being told.
_WINDOW_LOG = 27
_HINT = "copy or record the file again, or read what is whole with --partial"


@dataclass(frozen=True)
class Packing:
    """A way of compressing: how to tell it by what a file and each of its members begins with, and how to undo it (as
    bz2.BZ2Decompressor, which all are alike)."""

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
        re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),  # the latter holds no data: to be skipped
        lambda: zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}),
        zstd.ZstdError,
    ),
)


def unpack(name: str, read: Callable[[int], bytes], packing: Packing) -> Iterator[bytes]:
    """Yields the text of what `read` gives, which messages call `name`, each block at most BLOCK_BYTES long.

    Raises TraceError with the place of the damage, after what came before it was yielded.
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
