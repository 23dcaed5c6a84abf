"""Loaded traces in the user's cache, so that the next query of a file begins at once."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from isal import isal_zlib
from msgspec.structs import replace

from molprof.analysis.reader.info import STDIN, TraceInfo
from molprof.analysis.trace_processor import NATIVE_PATH_VARIABLE, TraceProcessor, engine_version
from molprof.common.cache import cache_key, read_entry, write_entry

# On disk: two dozen recorded traces, or the last few of 100 MB.
MAX_BYTES = 512 << 20
_FOLDER = "traces"
_NUMBER_BYTES = 8
_CHECKSUM_BYTES = 4
_decode_info = msgspec.json.Decoder(TraceInfo).decode


def kept_key(path: str | os.PathLike[str], native_path: str | None, *options: object) -> str | None:
    """The key of the file at `path`, loaded with `options`; None where the trace processor is another process."""
    if str(path) == STDIN or native_path or os.environ.get(NATIVE_PATH_VARIABLE):
        return None
    return cache_key((Path(path),), engine_version(), *options)


def read_kept(key: str, path: str | os.PathLike[str]) -> tuple[TraceInfo, memoryview] | None:
    """What is known of the file at `path`, and the state for `open_engine`; None if it is not kept."""
    content = read_entry(_FOLDER, key, _checksum)
    if content is None:
        return None
    end = _NUMBER_BYTES + int.from_bytes(content[:_NUMBER_BYTES], "little")
    return replace(_decode_info(content[_NUMBER_BYTES:end]), path=str(path)), content[end:]


def keep(key: str, info: TraceInfo, engine: TraceProcessor) -> None:
    """Keep a trace that was just loaded, unless it is too large."""
    state = engine.state()
    if state is not None:
        known = msgspec.json.encode(info)
        content = b"".join((len(known).to_bytes(_NUMBER_BYTES, "little"), known, state))
        write_entry(_FOLDER, key, content, MAX_BYTES, _checksum)


def _checksum(content: bytes | memoryview) -> bytes:
    """Of 20 MB in 2 ms; a digest takes 25."""
    return int(isal_zlib.crc32(content)).to_bytes(_CHECKSUM_BYTES, "little")
