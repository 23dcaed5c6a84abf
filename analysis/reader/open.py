"""An engine with a trace in it, and the value of the trace at which a query of the package failed."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from molprof.analysis.reader.info import TraceInfo
from molprof.analysis.reader.kept import keep, kept_key, read_kept
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.common.errors import QueryError, TraceError
from molprof.common.reading import Reading
from molprof.queries import PACKAGE, modules

_SHOWN_CHARACTERS = 60
# Args that the SQL modules read as numbers, by category of event.
_SQL = """
SELECT
  SUBSTR(args.flat_key, LENGTH('args.') + 1) AS arg,
  args.string_value AS value,
  IFNULL(slice.name, '') AS name,
  IFNULL(slice.category, 'None') AS category
FROM args
JOIN slice
  USING (arg_set_id)
WHERE
  args.value_type = 'string'
  AND (
    args.flat_key = 'args.bytes' AND slice.category IN ('gpu_memcpy', 'gpu_memset')
    OR args.flat_key = 'args.stream' AND slice.category IN ('kernel', 'gpu_memcpy', 'gpu_memset')
    OR args.flat_key = 'args.correlation'
    AND slice.category IN ('kernel', 'gpu_memcpy', 'gpu_memset', 'cuda_runtime', 'cuda_driver')
  )
ORDER BY
  slice.id, args.id
LIMIT 1
"""


@contextmanager
def open_trace(
    path: str | os.PathLike[str],
    reading: Reading | None = None,
    *,
    all_args: bool = True,
    check: bool = True,
    **how: Any,
) -> Generator[tuple[TraceProcessor, TraceInfo], None, None]:
    """An engine with the trace at `path` and the SQL package, and what is known of it: see `load_trace`, `open_engine`.

    reading: if None, with Python stacks. how: its fields that differ.
    """
    reading = replace(reading or Reading(stacks=True), **how)
    options = reading.stacks, all_args, reading.partial
    key = kept_key(path, reading.native_path, *options) if reading.cached else None
    with ExitStack() as stack:
        if key and (kept := read_kept(key, path)):
            info, engine = kept[0], stack.enter_context(open_engine(state=kept[1]))
        else:
            from molprof.analysis.reader.load import load_trace  # on use: a kept trace needs no reader

            engines: list[TraceProcessor] = []

            def start(large: bool) -> TraceProcessor:
                engines.append(stack.enter_context(open_engine(reading.native_path, memory64=large)))
                return engines[0]

            info = load_trace(
                path,
                start,
                stacks=reading.stacks,
                all_args=all_args,
                partial=reading.partial,
                processes=reading.processes,
                check=check,
            )
            (engine,) = engines
            if key:
                keep(key, info, engine)
        engine.register_package(PACKAGE, modules())
        yield engine, info


@contextmanager
def values_named(engine: TraceProcessor, path: str | os.PathLike[str]) -> Generator[None, None, None]:
    """A value that the block's queries, all of the package's own SQL, cannot use is a TraceError that names it."""
    try:
        yield
    except QueryError as error:
        raise wrong_value(engine, os.fspath(path), error) from error


def wrong_value(engine: TraceProcessor, path: str, error: QueryError) -> TraceError:
    """The error to raise for `error` of the package's own SQL in the trace at `path`: it names the wrong value."""
    found = {name: column.tolist() for name, column in engine.query(_SQL).items()}
    if not found["arg"]:
        return TraceError(f"{path} holds a value that queries cannot use: {str(error).splitlines()[0]}")
    arg, value, name, category = (found[key][0] for key in ("arg", "value", "name", "category"))
    shown = repr(value[:_SHOWN_CHARACTERS]) + ("..." if len(value) > _SHOWN_CHARACTERS else "")
    event = f"the event {name[:_SHOWN_CHARACTERS]!r} of category {category}"
    hint = f"correct the value, or remove {arg!r} from that event"
    return TraceError(f"{path}: {event} has the {arg} {shown}, which is not an integer of 64 bits", hint)
