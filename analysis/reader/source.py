"""The text of a trace file: its format found by content, decompressed in a separate thread, in bounded blocks."""

from __future__ import annotations

import io
import itertools
import logging
import os
import re
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from isal.igzip_lib import DECOMP_GZIP, IgzipDecompressor, IsalError
from msgspec import Struct

from molprof.analysis.reader import STDIN, is_stream, path_text
from molprof.analysis.reader.packets import ArgsOf, chrome_text, looks_like_packets
from molprof.analysis.reader.remote import is_remote, opened
from molprof.analysis.trace_processor.zstandard import zstd
from molprof.common.errors import MolprofError, TraceError, UsageError
from molprof.common.files import FULL, check_stdin
from molprof.common.memory import available_bytes
from molprof.common.values import bytes_text

# Blocks that wait: enough to bridge a pause, few enough to stay small.
_WAITING_BLOCKS = 5
_HEAD_BYTES = 64
_KNOWN = {
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ": "xz data",
    b"BZh": "bzip2 data",
    b"SQLite format 3": "an SQLite database",
}
_JSON = re.compile(rb'\s*(\{\s*["}]|\[\s*[{\]]|$)')
GIVE_HINT = "give a trace as torch.profiler or Perfetto write it, plain or packed by gzip or zstd"
# Decompressed bytes per block. The thread waits up to 5 ms for Python's lock after each: with small blocks it would
# take turns with the decoding thread instead of overlapping it.
BLOCK_BYTES = 2 * 1024 * 1024
_READ_BYTES = 256 * 1024
# The first block: some readers need no more. By so much of it JSON is told from packets.
_FIRST_BYTES = 64 * 1024
_TOLD_BYTES = 4096
_MAGIC_BYTES = 4
# A real trace unpacks to 10 to 40 times its size. More than this is a bomb, unless it is small.
_MAX_RATIO = 400
_USUAL_RATIO = 10
# Text from which a copy of this process that reads too saves more than it costs.
LONG_BYTES = 8 * 1024 * 1024
_HARMLESS_BYTES = 1 << 30
# The largest zstd window, 128 MiB, as its own command line allows by default.
_zstd = partial(zstd.ZstdDecompressor, options={zstd.DecompressionParameter.window_log_max: 27})
# What names of traces end in, and how many of them a hint names.
ENDINGS = (".json", ".json.gz", ".json.zst", ".pftrace", ".perfetto-trace")
_LISTED = 8
# A stream is asked again after so long, and so long nothing is said; then how much is read, so often.
_POLL_S, _PATIENCE_S, _SAID_S = 0.1, 2, 10
# After so much text the memory that is left is looked at, of which so much is to stay.
_LOOKED_BYTES, _LEFT_BYTES = 64 << 20, 64 << 20
_log = logging.getLogger(__name__)
MEMORY_HINT = (
    "read it on a machine or in a job with more memory, or record fewer steps; a report without --stacks leaves out"
    " Python stacks"
)
_HINT = "copy or record the file again, or read the intact part with --partial"


class Packing(Struct, frozen=True):
    """A compression: its name, the first bytes of each member, and its decompressor (as bz2.BZ2Decompressor)."""

    name: str
    magic: re.Pattern[bytes]
    decompressor: Callable[[], Any]
    error: Any


PACKINGS = (
    Packing("gzip", re.compile(rb"\x1f\x8b"), partial(IgzipDecompressor, flag=DECOMP_GZIP), IsalError),
    # The latter: frames without data.
    Packing("zstd", re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), _zstd, zstd.ZstdError),
)


def ahead(blocks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Yield the blocks, read ahead by a thread that starts with the first and ends when this is closed."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting: deque[Future[bytes | None]] = deque(pool.submit(next, blocks, None) for _ in range(_WAITING_BLOCKS))
        while (block := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, blocks, None))
            yield block


class _Stream(io.FileIO):
    """A pipe, terminal or the like. It reports long waits and long reading, and ends when `is_left`."""

    label = ""
    is_left = is_told = False
    read_bytes, began, said = 0, 0.0, 0.0

    def readinto(self, buffer: Any) -> int | None:
        begin = time.monotonic()
        while not select.select([self], [], [], _POLL_S)[0]:
            if self.is_left:
                return 0
            if not self.is_told and time.monotonic() - begin > _PATIENCE_S:
                self.is_told = True
                _log.info("waiting for data from %s; Ctrl-C ends it", self.label)
        count = super().readinto(buffer)
        self._tell(count or 0)
        return count

    def _tell(self, count: int) -> None:
        now = time.monotonic()
        if not self.read_bytes:
            self.began = self.said = now
        self.read_bytes += count
        if now - self.said >= _SAID_S:
            self.said = now
            rate = bytes_text(self.read_bytes / (now - self.began))
            _log.info("read %s from %s, %s/s; Ctrl-C ends it", bytes_text(self.read_bytes), self.label, rate)


def _opened(path: Path) -> tuple[io.BufferedReader, int | None]:
    """Return the file, and its size; None if that is unknown before its end."""
    if is_remote(path):
        return opened(path)
    if not is_stream(path):
        file = path.open("rb")
        return file, os.fstat(file.fileno()).st_size
    if str(path) == STDIN:
        check_stdin()
        stream = _Stream(sys.stdin.fileno(), closefd=False)
    else:
        stream = _Stream(os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # does not wait for who writes to a pipe
        os.set_blocking(stream.fileno(), True)
    stream.label = path_text(path)
    return io.BufferedReader(stream), None


class TraceSource:
    """An open trace."""

    is_perfetto: bool  # in Perfetto's own format, else JSON
    text_bytes: int  # of its text, as far as can be told
    is_long: bool  # worth being read by two processes
    blocks: Iterator[bytes]  # its text as JSON

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name = name  # for messages
        self.stored_bytes = 0  # read so far
        self._file = file
        self._first = b""

    def peek(self) -> bytes:
        """Return the first bytes, which `read` returns again."""
        while len(self._first) < _HEAD_BYTES and (more := self._file.read(_HEAD_BYTES - len(self._first))):
            self._first += more
        return self._first

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes of the trace as text."""
        data = self._first or self._file.read(size)
        self._first = b""
        self.stored_bytes += len(data)
        return data


@contextmanager
def open_source(path: Path, args_of: ArgsOf | None = None) -> Generator[TraceSource, None, None]:
    """Open the trace at `path`, `-` for standard input; `args_of`: the args to read of packets (`chrome_text`).

    It, or `blocks` behind the rest, raises TraceError; UsageError where there is no file to read.
    """
    name = path_text(path)
    refuse_folder(path)
    try:
        file, size = _opened(path)
        with file:
            source = TraceSource(name, file)
            _refuse_others(name, source.peek())
            packing = next((packing for packing in PACKINGS if packing.magic.match(source.peek())), None)
            source.text_bytes = (size or 0) * (1 if packing is None else _USUAL_RATIO)
            source.is_long = source.text_bytes >= LONG_BYTES or size is None
            blocks = iter(partial(source.read, BLOCK_BYTES), b"")
            if packing is not None:
                blocks = unpack(name, source.read, packing)
            head = b""
            try:
                while len(head) < BLOCK_BYTES // 2 and not _is_json(head) and (block := next(blocks, b"")):
                    head += block
            except TraceError as error:  # in a small file; the text before it is still given
                blocks = _raising(error)
            with closing(ahead(blocks)) as rest:
                text = itertools.chain([head] if head else [], rest)
                whole = len(head) < BLOCK_BYTES // 2
                source.is_perfetto = not _JSON.match(head[:_TOLD_BYTES]) and looks_like_packets(head, whole)
                source.blocks = _within_memory(name, chrome_text(name, text, args_of) if source.is_perfetto else text)
                try:
                    yield source
                finally:
                    if isinstance(file.raw, _Stream):
                        file.raw.is_left = True
    except FileNotFoundError as error:
        hint = f"give the path of a trace; {STDIN} is standard input"
        raise UsageError(f"cannot read {name}: {error.strerror}", hint=hint) from error
    except PermissionError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error
    except OSError as error:
        if error.errno in FULL:  # of what the block writes
            raise
        raise TraceError(f"cannot read {name}: {error.strerror or error}") from error


def _within_memory(name: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the blocks. Raises TraceError before they take all memory, as of an endless stream."""
    read_bytes, looked = 0, 0
    for block in blocks:
        read_bytes += len(block)
        if read_bytes - looked >= _LOOKED_BYTES:
            looked, left = read_bytes, available_bytes()
            if left is not None and left < _LEFT_BYTES:
                what = f"the first {bytes_text(read_bytes)} of its text leave {bytes_text(left)} of memory"
                raise TraceError(f"{name} does not fit into memory: {what}", hint=MEMORY_HINT)
        yield block


def _is_json(head: bytes) -> bool:
    return len(head) >= _TOLD_BYTES and _JSON.match(head[:_TOLD_BYTES]) is not None


def refuse_folder(path: Path) -> None:
    """Raise UsageError if the path of a trace is a folder; the hint names traces in it."""
    if not path.is_dir():
        return
    names = [item.name for item in traces_in(path) if not is_other(item)]
    inside = f"in it: {_listed(names)}" if names else "there is none in it"
    raise UsageError(f"{path} is a directory", hint=f"give a trace file; {inside}")


def _raising(error: TraceError) -> Iterator[bytes]:
    raise error
    yield b""


def _refuse_others(name: str, head: bytes) -> None:
    if not head:
        raise TraceError(f"{name} is empty (0 bytes)", hint="the trace was not written: record it again")
    for magic, what in _KNOWN.items():
        if head.startswith(magic):
            first = head[:4].hex(" ")
            raise TraceError(f"{name} is {what}, not a trace (first bytes {first})", hint=GIVE_HINT)


def unpack(name: str, read: Callable[[int], bytes], packing: Packing) -> Iterator[bytes]:
    """Yield the text of the bytes that `read` returns, in blocks.

    Raises TraceError with the position of the damage, after the rest is yielded.
    """
    taken = yielded = 0  # compressed bytes read, uncompressed bytes yielded
    stream = packing.decompressor()
    pending = b""
    while True:
        if stream.needs_input and not pending:
            pending = read(_READ_BYTES)
            taken += len(pending)
            if not pending:
                break
        try:
            block = stream.decompress(pending, BLOCK_BYTES if yielded else _FIRST_BYTES)
        except packing.error as error:
            position = f"near byte {taken - len(pending)}, after {yielded} bytes of uncompressed text"
            raise TraceError(f"{name}: damaged {packing.name} data {position}: {error}", hint=_HINT) from error
        pending = b""
        if block:
            yielded += len(block)
            if yielded > _HARMLESS_BYTES and yielded > taken * _MAX_RATIO:
                what = f"{taken} bytes of {packing.name} data unpack to more than {yielded} bytes"
                raise TraceError(f"{name}: {what}, over {_MAX_RATIO} times as many: not a trace")
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
                others = f"other bytes follow it, from byte {taken - len(pending)} on: {pending[:20]!r}"
                hint = "cut them off, or read what comes before them with --partial"
                raise TraceError(f"{name}: the {packing.name} data ends at byte {end}, and {others}", hint)
            stream = packing.decompressor()
    position = f"at byte {taken}, after {yielded} bytes of uncompressed text"
    raise TraceError(f"{name}: {packing.name} data is truncated {position}", hint=_HINT)


_MOST_HEAD_BYTES = 4 << 20


def head_of(path: Path) -> bytes | None:
    """Return the beginning of a trace, empty of a native one; None if the file is none. A damaged trace counts."""
    head = bytearray()
    try:
        return _read_head(path, head)
    except TraceError:
        return bytes(head) if b'"ph"' in head else None


def _read_head(path: Path, head: bytearray) -> bytes | None:
    with open_source(path) as source:
        if source.is_perfetto:
            return b""
        for block in source.blocks:
            head += block
            if b'"traceEvents"' in head or (head.lstrip()[:1] == b"[" and b'"ph"' in head):
                return bytes(head)
            if len(head) > _MOST_HEAD_BYTES:
                break
    return None


def is_trace(path: Path) -> bool:
    """Return True if a file begins as a trace does."""
    return head_of(path) is not None


def is_other(path: Path) -> bool:
    """Return True if a file is whole, and no trace."""
    head = bytearray()
    try:
        if _read_head(path, head) is None:
            msgspec.json.decode(head)
            return True
    except MolprofError:  # which reading it tells
        pass
    except RecursionError:  # nested as no trace is
        return True
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return len(head) > _MOST_HEAD_BYTES or "truncated" not in str(error)
    return False


def traces_in(folder: Path) -> list[Path]:
    """Return the files of a folder with names of traces, in order of their names."""
    return sorted(item for item in folder.iterdir() if item.name.lower().endswith(ENDINGS) and item.is_file())


def left_out(folder: Path, files: Sequence[Path]) -> list[str]:
    """Return remarks on files of a folder that are no traces.

    There are remarks, too, on items that have the name of a trace and are no file: a pipe, a broken link.
    """
    others = [item for item in folder.iterdir() if item.name.lower().endswith(ENDINGS)]
    others = sorted(item for item in others if not item.is_file() and not item.is_dir())
    return [
        f"left out of {folder}: {_listed([str(item.relative_to(folder)) for item in group])} ({what})"
        for group, what in (
            (files, "not a trace" if len(files) == 1 else "not traces"),
            (others, "no regular file" if len(others) == 1 else "no regular files"),
        )
        if group
    ]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else "")
