"""A session with a trace processor: requests, replies, typed errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from molprof.analysis.trace_processor.protocol import (
    MAX_REQUEST_BYTES,
    Columns,
    Fields,
    content,
    contents,
    message,
    read_fields,
    text,
    to_columns,
)
from molprof.common.errors import EngineError, QueryError

if TYPE_CHECKING:
    from molprof.analysis.trace_processor.native import NativeTransport
    from molprof.analysis.trace_processor.wasm import WasmTransport

_MAX_APPEND_BYTES = MAX_REQUEST_BYTES - 64

# What the engine runs for a statement without result, such as INCLUDE or CREATE PERFETTO.
_NO_RESULT = "SELECT 0 WHERE 0"

# Fields of the messages. TraceProcessorRpcStream and TraceProcessorRpc:
_MESSAGE, _SEQUENCE, _METHOD, _INVALID, _FATAL_ERROR = 1, 1, 2, 4, 5
_DATA, _QUERIED, _PACKAGE = 101, 103, 108  # arguments
_APPENDED, _ANSWERED, _STATUS, _REGISTERED, _FINALIZED = 201, 203, 210, 211, 212  # results
# TraceProcessorMethod
_APPEND, _FINALIZE, _QUERY, _GET_STATUS, _REGISTER = 1, 2, 3, 10, 13
# QueryArgs, QueryResult
_QUERY_SQL, _COLUMN, _QUERY_ERROR, _BATCH, _LAST_STATEMENT = 1, 1, 2, 3, 6
# RegisterSqlPackageArgs and its modules; other results; StatusResult
_NAME, _SQL, _MODULE, _MAY_REPLACE = 1, 2, 2, 3
_ERROR, _APPEND_ERROR, _TRACE_NAME = 1, 2, 1

_PLACE = re.compile(r'^\s*(?:File "stdin"|Module include "(?P<module>[^"]*)") line (?P<line>\d+) col (?P<column>\d+)$')
# Lines shown before and after the one with the mistake.
_AROUND = 8


class TraceProcessor:
    """A trace processor with one trace: `feed` chunks, `finish`, then `query`.

    transport: carries `TraceProcessorRpcStream` bytes to it and back.
    """

    def __init__(self, transport: NativeTransport | WasmTransport) -> None:
        self._transport: NativeTransport | WasmTransport | None = transport
        self._relaying = threading.Lock()
        self._sequence = 0  # of the next request
        self._packages: dict[str, dict[str, str]] = {}
        # Called with each query before it is asked; what it provides queries from.
        self.before_query: Callable[[str], None] | None = None
        self.facts: Any = None
        self.arguments: Any = None  # of operators (facts/arguments.py); None: not read
        self.fed: Any = None  # a future of the slices in it, where the reader knows them (facts/slices.py)

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append trace data in any format; the first piece must be long enough to show which. Raises EngineError."""
        view = memoryview(chunk)
        for start in range(0, len(view), _MAX_APPEND_BYTES):
            piece = bytes(view[start : start + _MAX_APPEND_BYTES])
            for reply in self._exchange(_APPEND, (_DATA, piece)):
                if error := text(_inner(reply, _APPENDED), _APPEND_ERROR):
                    raise EngineError(f"the trace processor refused trace data: {error}")

    def finish(self) -> None:
        """End the trace; queries see all of it from here on."""
        for reply in self._exchange(_FINALIZE):
            if error := text(_inner(reply, _FINALIZED), _ERROR):
                raise EngineError(f"the trace processor could not finish the trace: {error}")

    def register_package(self, name: str, modules: Mapping[str, str]) -> None:
        """Make SQL modules available to INCLUDE PERFETTO MODULE, replacing the package `name`. Raises EngineError.

        modules: key (`molprof.phases`) to SQL. Does nothing if they are unchanged: the trace processor would forget
        which modules are included, but not the tables that they made.
        """
        if self._packages.get(name) == modules:
            return
        listed = ((_MODULE, message((_NAME, key), (_SQL, sql))) for key, sql in modules.items())
        package = message((_NAME, name), *listed, (_MAY_REPLACE, 1))
        for reply in self._exchange(_REGISTER, (_PACKAGE, package)):
            if error := text(_inner(reply, _REGISTERED), _ERROR):
                raise EngineError(f"cannot register SQL package {name!r}: {error}")
        self._packages[name] = dict(modules)

    def query(self, sql: str, shown: str | None = None) -> Columns:
        """Return the columns of the last statement, in the order of its SELECT list; {} where it has none.

        Arrays of int64 or float64; object arrays for text, blobs, columns with NULL (as None) and columns without rows.
        shown: the text that errors quote, of which `sql` is a part at the same lines and columns. Raises QueryError.
        """
        if self.before_query is not None:
            self.before_query(sql)
        names: list[str] = []
        batches: list[Fields] = []
        for reply in self._exchange(_QUERY, (_QUERIED, message((_QUERY_SQL, sql)))):
            result = _inner(reply, _ANSWERED)
            if error := text(result, _QUERY_ERROR):
                raise _query_error(sql if shown is None else shown, error)
            if text(result, _LAST_STATEMENT) == _NO_RESULT and _NO_RESULT not in sql:
                return {}
            names += [str(name, "utf-8", "replace") for name in contents(result, _COLUMN)]
            batches += map(read_fields, contents(result, _BATCH))
        return to_columns(names, batches)

    def state(self) -> bytes | None:
        """Return a state for `open_engine`; None for a native trace processor and a very large one.

        Raises EngineError once it has packages, which a new one would not know of.
        """
        if self._packages:
            raise EngineError("a trace processor with packages has no state to keep")
        return None if self._transport is None else self._transport.state()

    def relay(self, requests: bytes) -> bytes:
        """Return the replies to a `TraceProcessorRpcStream` of another client, from any thread. Raises EngineError."""
        with self._relaying:
            if self._transport is None:
                raise EngineError("the trace processor is closed")
            return self._transport.exchange(requests)

    @property
    def is_relaying(self) -> bool:
        """True if a client waits for a reply, so that `close` would wait too."""
        return self._relaying.locked()

    def status(self, trace_name: str) -> bytes:
        """Return the engine's `StatusResult` with the trace's name in it. Raises EngineError."""
        (reply,) = self._exchange(_GET_STATUS)
        return content(reply, _STATUS) + message((_TRACE_NAME, trace_name))  # of two values, the last one holds

    def close(self) -> None:
        """Free the trace processor once no client waits for a reply. Idempotent."""
        with self._relaying:
            if self._transport is not None:
                self._transport.close()
                self._transport = None
        # They hold this one and large arrays, and circles of objects are looked for seldom.
        self.before_query = self.facts = self.fed = None

    def __enter__(self) -> TraceProcessor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _exchange(self, method: int, *arguments: tuple[int, bytes]) -> list[Fields]:
        """Return the replies to one request. Raises EngineError."""
        if self._transport is None:
            raise EngineError("the trace processor is closed")
        # The engine checks that numbers follow each other, to catch lost requests; a client may begin anew with 0.
        request = message((_SEQUENCE, self._sequence), (_METHOD, method), *arguments)
        self._sequence += 1
        stream = read_fields(self._transport.exchange(message((_MESSAGE, request))))
        replies = list(map(read_fields, contents(stream, _MESSAGE)))
        for reply in replies:
            if error := text(reply, _FATAL_ERROR):
                raise EngineError(f"the trace processor stopped: {error}")
            if invalid := reply.get(_INVALID):
                hint = "use a newer trace processor (the perfetto package's version or later)"
                raise EngineError(f"the trace processor does not know request {invalid[0]}", hint)
        if not replies:
            raise EngineError("the trace processor sent no reply")
        return replies


def _inner(fields: Fields, number: int) -> Fields:
    """Return the message in a field; an empty one where it is missing."""
    return read_fields(content(fields, number))


def _query_error(sql: str, message: str) -> QueryError:
    """Return the error for `sql`: location and reason as its message, the numbered query as its hint."""
    locations: list[re.Match[str]] = []
    reasons: list[str] = []
    quoted = 0
    for line in message.strip().splitlines():
        location = _PLACE.match(line)
        if location:
            locations.append(location)
            quoted = 2  # the SQL and the mark under it follow
        elif quoted:
            quoted -= 1
        elif not line.startswith("Traceback"):
            reasons.append(line.strip())
    reason = " ".join(reasons) or "no reason given"
    if not locations:
        return QueryError(f"the query failed: {reason}", hint=_numbered(sql, None))
    inner = locations[-1]
    where = f"line {inner['line']} col {inner['column']}"
    if inner["module"]:
        where = f"module {inner['module']} {where}"
    in_query = next((location for location in locations if not location["module"]), None)
    mark = (int(in_query["line"]), int(in_query["column"])) if in_query else None
    return QueryError(f"the query failed at {where}: {reason}", hint=_numbered(sql, mark))


def _numbered(sql: str, mark: tuple[int, int] | None) -> str:
    """Return the query's numbered lines, with a mark under (line, column), both counted from 1."""
    lines = sql.rstrip().splitlines()
    first, last = 1, len(lines)
    if mark and len(lines) > 2 * _AROUND + 1:
        first, last = max(1, mark[0] - _AROUND), min(len(lines), mark[0] + _AROUND)
    shown = []
    for number in range(first, last + 1):
        shown.append(f"{number:4d} | {lines[number - 1]}".replace("\t", " "))
        if mark and number == mark[0]:
            shown.append(f"     | {' ' * (mark[1] - 1)}^")
    return "\n".join(shown)
