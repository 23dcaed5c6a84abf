"""An engine with a trace in it, and the value of the trace at which a query of the package failed."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

from molprof.analysis.engine import Engine, open_engine
from molprof.analysis.reader.info import TraceInfo
from molprof.analysis.reader.kept import keep, kept_key, read_kept
from molprof.common.errors import QueryError, TraceError
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
    *,
    native_path: str | None = None,
    stacks: bool = True,
    all_args: bool = True,
    partial: bool = False,
    processes: int | None = None,
    cached: bool = False,
) -> Generator[tuple[Engine, TraceInfo], None, None]:
    """An engine that holds the trace at `path`, and what is known of it: see `load_trace` and `open_engine`.

    cached: take it from the user's cache, or keep it there.
    """
    key = kept_key(path, native_path, stacks, all_args, partial) if cached else None
    if key and (kept := read_kept(key, path)):
        with open_engine(state=kept[1]) as engine:
            yield engine, kept[0]
        return
    how = {"stacks": stacks, "all_args": all_args, "partial": partial, "processes": processes}
    with open_loaded(path, native_path, **how) as (engine, info):
        if key:
            keep(key, info, engine)
        yield engine, info


@contextmanager
def open_loaded(
    path: str | os.PathLike[str], native_path: str | None, **how: Any
) -> Generator[tuple[Engine, TraceInfo], None, None]:
    """An engine with the trace at `path`, which `load_trace` loads as `how` says."""
    from molprof.analysis.reader.load import load_trace  # on use: a kept trace needs no reader

    engines: list[Engine] = []
    with ExitStack() as stack:

        def start(large: bool) -> Engine:
            engines.append(stack.enter_context(open_engine(native_path, memory64=large)))
            return engines[0]

        info = load_trace(path, start, **how)
        yield engines[0], info


@contextmanager
def open_packaged(path: str | os.PathLike[str], **how: Any) -> Generator[tuple[Engine, TraceInfo], None, None]:
    """`open_trace` with the SQL package; a value that the block's queries cannot use is a TraceError that names it."""
    with open_trace(path, **how) as (engine, info):
        engine.register_package(PACKAGE, modules())
        try:
            yield engine, info
        except QueryError as error:
            raise wrong_value(engine, str(path), error) from error


def wrong_value(engine: Engine, path: str, error: QueryError) -> TraceError:
    """The error to raise for `error` of the package's own SQL in the trace at `path`: it names the wrong value."""
    found = {name: column.tolist() for name, column in engine.query(_SQL).items()}
    if not found["arg"]:
        return TraceError(f"{path} holds a value that queries cannot use: {str(error).splitlines()[0]}")
    arg, value, name, category = (found[key][0] for key in ("arg", "value", "name", "category"))
    shown = repr(value[:_SHOWN_CHARACTERS]) + ("..." if len(value) > _SHOWN_CHARACTERS else "")
    event = f"the event {name[:_SHOWN_CHARACTERS]!r} of category {category}"
    hint = f"correct the value, or remove {arg!r} from that event"
    return TraceError(f"{path}: {event} has the {arg} {shown}, which is not an integer of 64 bits", hint)
