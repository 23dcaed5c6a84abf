"""The bytes of a trace file: opened, decompressed by content, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from isal import isal_zlib
from isal.igzip_lib import IsalError

from molprof.errors import TraceError

# Decompressed bytes per block: large against the cost of a call, small against memory.
BLOCK_BYTES = 2 * 1024 * 1024
_READ_BYTES = 256 * 1024
_GZIP = b"\x1f\x8b"
_KNOWN = {
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ": "xz data",
    b"BZh": "bzip2 data",
    b"SQLite format 3": "an SQLite database",
}


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yields the uncompressed text of `path`; raises TraceError with the place of what is wrong.

    What could be read before the place of an error is yielded before it is raised.
    """
    try:
        with path.open("rb") as file:
            head = file.read(16)
            file.seek(0)
            if not head:
                raise TraceError(f"{path} is empty (0 bytes)", hint="the recording was not written: record again")
            for magic, what in _KNOWN.items():
                if head.startswith(magic):
                    raise TraceError(
                        f"{path} is {what}, not a trace (first bytes {head[:4].hex(' ')})",
                        hint="give torch.profiler's Chrome trace: .json or .json.gz",
                    )
            if head.startswith(_GZIP):
                yield from _gunzip(path, file.read)
            else:
                while block := file.read(BLOCK_BYTES):
                    yield block
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error


def _gunzip(path: Path, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Uncompresses gzip members, as many as there are; every block is at most BLOCK_BYTES long."""
    taken = 0  # compressed bytes handed to the decompressor
    given = 0  # uncompressed bytes yielded
    pending = b""
    stream = isal_zlib.decompressobj(wbits=31)
    while True:
        if not pending:
            pending = read(_READ_BYTES)
            taken += len(pending)
        if not pending:
            break
        try:
            block = stream.decompress(pending, BLOCK_BYTES)
        except IsalError as error:  # type: ignore[misc]  # its stub says Exception where type[...] is meant
            raise TraceError(
                f"{path}: damaged gzip data near byte {taken - len(pending)}, after {given} bytes of"
                f" uncompressed text: {error}",
                hint="copy or record the file again, or read what is whole with --partial",
            ) from error
        pending = stream.unconsumed_tail
        if block:
            given += len(block)
            yield block
        if stream.eof:
            # gzip allows zero bytes as padding after a member.
            pending = stream.unused_data.lstrip(b"\0")
            if not pending:
                pending = read(_READ_BYTES).lstrip(b"\0")
                taken += len(pending)
            if not pending:
                return
            stream = isal_zlib.decompressobj(wbits=31)
    raise TraceError(
        f"{path}: gzip data is truncated at byte {taken}, after {given} bytes of uncompressed text",
        hint="copy or record the file again, or read what is whole with --partial",
    )
