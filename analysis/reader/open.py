"""Engines with a loaded trace, from its file or the user's cache, and the value at which a query failed."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from isal import isal_zlib
from msgspec import structs

from molprof.analysis.facts.arguments import Arguments
from molprof.analysis.facts.stacks import Stacks
from molprof.analysis.facts.tables import install
from molprof.analysis.reader import Reading, TraceInfo, is_stream
from molprof.analysis.trace_processor import NATIVE_PATH_VARIABLE, TraceProcessor, engine_version, open_engine
from molprof.common.cache import cache_key, read_entry, write_entry
from molprof.common.errors import QueryError, TraceError
from molprof.common.text import escaped

# On disk: two dozen recorded traces, or the last few of 100 MB.
MAX_BYTES = 512 << 20
_FOLDER = "traces"
_NUMBER_BYTES = 8
_CHECKSUM_BYTES = 4
_decode_head = msgspec.json.Decoder(tuple[TraceInfo, Arguments | None]).decode
_SHOWN_CHARACTERS = 60
# The first arg that the SQL modules read as a number of 64 bits, and that is none.
_WRONG_VALUE = """
SELECT SUBSTR(flat_key, LENGTH('args.') + 1) AS arg, string_value AS value, name, IFNULL(category, 'None') AS category
FROM args
JOIN slice
  USING (arg_set_id)
WHERE value_type = 'string' AND (
  flat_key = 'args.bytes' AND category IN ('gpu_memcpy', 'gpu_memset')
  OR flat_key = 'args.stream' AND category IN ('kernel', 'gpu_memcpy', 'gpu_memset')
  OR flat_key = 'args.correlation'
  AND category IN ('kernel', 'gpu_memcpy', 'gpu_memset', 'cuda_runtime', 'cuda_driver')
  OR name = '[memory]'
  AND flat_key IN ('args.Bytes', 'args.Addr', 'args.Total Allocated', 'args.Total Reserved')
)
ORDER BY slice.id, args.id
LIMIT 1
"""


def kept_key(path: str | os.PathLike[str], native_path: str | None, *options: object) -> str | None:
    """Return the key of the file at `path`, loaded with `options`.

    None of a stream, and for a native trace processor.
    """
    if is_stream(path) or native_path or os.environ.get(NATIVE_PATH_VARIABLE):
        return None
    return cache_key((Path(path),), engine_version(), *options)


def _read_kept(key: str, path: str | os.PathLike[str]) -> tuple[TraceInfo, Arguments | None, memoryview] | None:
    """Return the info of the file at `path`, the arguments of its operators, and the state for `open_engine`.

    None if it is not kept.
    """
    content = read_entry(_FOLDER, key, _checksum)
    if content is None:
        return None
    end = _NUMBER_BYTES + int.from_bytes(content[:_NUMBER_BYTES], "little")
    info, arguments = _decode_head(content[_NUMBER_BYTES:end])
    return structs.replace(info, path=str(path)), arguments, content[end:]


def _checksum(content: bytes | memoryview) -> bytes:
    """Return a checksum: of 20 MB in 2 ms; a digest takes 25."""
    return int(isal_zlib.crc32(content)).to_bytes(_CHECKSUM_BYTES, "little")


@contextmanager
def open_trace(
    path: str | os.PathLike[str],
    reading: Reading | None = None,
    *,
    all_args: bool = True,
    check: bool = True,
    beside: list[Stacks] | None = None,
    **how: Any,
) -> Generator[tuple[TraceProcessor, TraceInfo], None, None]:
    """Open an engine with the trace at `path` and the SQL package, with its info: see `load_trace`, `open_engine`.

    reading: if None, with Python stacks. how: its fields that differ. beside: see `load_trace`; none is kept then.
    """
    reading = replace(reading or Reading(stacks=True), **how)
    options = reading.stacks, all_args, reading.partial
    key = kept_key(path, reading.native_path, *options) if reading.cached and beside is None else None
    with ExitStack() as stack:
        if key and (kept := _read_kept(key, path)):
            info, arguments, state = kept
            engine = stack.enter_context(open_engine(state=state))
            engine.arguments = arguments
        else:
            from molprof.analysis.reader.load import load_trace  # on use: a kept trace needs no reader

            engines: list[TraceProcessor] = []

            def start(large: bool) -> TraceProcessor:
                engines.append(stack.enter_context(open_engine(reading.native_path, memory64=large)))
                return engines[0]

            info = load_trace(path, start, reading, all_args=all_args, check=check, beside=beside)
            (engine,) = engines
            if key and (made := engine.state()) is not None:
                problem = info.problem and escaped(info.problem)
                head = msgspec.json.encode((structs.replace(info, path="", problem=problem), engine.arguments))
                content = b"".join((len(head).to_bytes(_NUMBER_BYTES, "little"), head, made))
                write_entry(_FOLDER, key, content, MAX_BYTES, _checksum)
        install(engine)
        yield engine, info


@contextmanager
def values_named(engine: TraceProcessor, path: str | os.PathLike[str]) -> Generator[None, None, None]:
    """Raise TraceError, with its name, for a value in the trace that a query of this block cannot use."""
    try:
        yield
    except QueryError as error:
        columns = [column.tolist() for column in engine.query(_WRONG_VALUE).values()]
        if not columns[0]:
            raise TraceError(f"{path} holds a value that queries cannot use: {str(error).splitlines()[0]}") from error
        ((arg, value, name, category),) = zip(*columns, strict=True)
        shown = repr(value[:_SHOWN_CHARACTERS]) + ("..." if len(value) > _SHOWN_CHARACTERS else "")
        event = f"the event {(name or '')[:_SHOWN_CHARACTERS]!r} of category {category}"
        hint = f"correct the value, or remove {arg!r} from that event"
        what = f"{event} has the {arg} {shown}, which is not an integer of 64 bits"
        raise TraceError(f"{path}: {what}", hint) from error
