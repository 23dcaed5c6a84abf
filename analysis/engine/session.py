"""One conversation with a trace processor: requests, replies, typed errors."""

from __future__ import annotations

import functools
import importlib.util
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from molprof.analysis.engine.columns import Columns, to_columns
from molprof.analysis.engine.shared import answered
from molprof.common.copied import can_copy
from molprof.common.errors import EngineError, QueryError
from molprof.queries import included

# The engine copies a request that does not arrive in one piece.
MAX_REQUEST_BYTES = 4 * 1024 * 1024
SEQUENCE_BYTES = 8
_MAX_APPEND_BYTES = MAX_REQUEST_BYTES - 64

# What the engine runs for a statement without result, such as INCLUDE or CREATE PERFETTO.
_NO_RESULT = "SELECT 0 WHERE 0"

_PLACE = re.compile(r'^\s*(?:File "stdin"|Module include "(?P<module>[^"]*)") line (?P<line>\d+) col (?P<column>\d+)$')
# Lines shown before and after the one with the mistake.
_AROUND = 8


class Transport(Protocol):
    """Carries `TraceProcessorRpcStream` bytes to a trace processor and back."""

    is_embedded: bool  # in the memory of this process

    def exchange(self, request: bytes) -> bytes:
        """Sends one request and returns the bytes of all its replies."""

    def state(self) -> bytes | None:
        """What it holds, to start another one with; None where that is not to be had."""

    def close(self) -> None:
        """Frees the trace processor. May be called again."""


class Engine:
    """A trace processor with one trace: `feed` chunks, `finish`, then `query`."""

    def __init__(self, transport: Transport, sequence: int = 0) -> None:
        self._transport: Transport | None = transport
        self._relaying = threading.Lock()
        self._sequence = sequence  # of the next request
        self._packages: dict[str, dict[str, str]] = {}
        self._answers: dict[str, Columns] = {}
        _stream_type()  # raises at once what is missing

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Appends trace data in any format; the first piece must be long enough to show which. Raises EngineError."""
        view = memoryview(chunk)
        for start in range(0, len(view), _MAX_APPEND_BYTES):
            piece = bytes(view[start : start + _MAX_APPEND_BYTES])
            for reply in self._exchange("TPM_APPEND_TRACE_DATA", append_trace_data=piece):
                if reply.append_result.error:
                    message = reply.append_result.error
                    raise EngineError(f"the trace processor refused trace data: {message}")

    def finish(self) -> None:
        """Ends the trace; queries see all of it from here on."""
        for reply in self._exchange("TPM_FINALIZE_TRACE_DATA"):
            result = getattr(reply, "finalize_data_result", None)  # older protos have no such field
            if result is not None and result.error:
                raise EngineError(f"the trace processor could not finish the trace: {result.error}")

    def register_package(self, name: str, modules: Mapping[str, str]) -> None:
        """Makes SQL modules available to INCLUDE PERFETTO MODULE, replacing the package `name`. Raises EngineError.

        modules: key (`molprof.phases`) to SQL. Does nothing if they are unchanged: the trace processor would forget
        which modules are included, but not the tables that they made.
        """
        if self._packages.get(name) == modules:
            return
        package = {
            "package_name": name,
            "allow_override": True,
            "modules": [{"name": key, "sql": sql} for key, sql in modules.items()],
        }
        for reply in self._exchange("TPM_REGISTER_SQL_PACKAGE", register_sql_package_args=package):
            if reply.register_sql_package_result.error:
                raise EngineError(f"cannot register SQL package {name!r}: {reply.register_sql_package_result.error}")
        self._packages[name] = dict(modules)

    def query(self, sql: str, shown: str | None = None) -> Columns:
        """The columns of the last statement, in the order of its SELECT list; {} where it has none.

        Arrays of int64 or float64; object arrays for text, blobs, columns with NULL (as None) and columns without rows.
        shown: the text that errors quote, of which `sql` is a part at the same lines and columns. Raises QueryError.
        """
        if sql in self._answers:
            return self._answers[sql]
        names: list[str] = []
        batches: list[Any] = []
        for reply in self._exchange("TPM_QUERY_STREAMING", query_args={"sql_query": sql}):
            result = reply.query_result
            if result.error:
                raise _query_error(sql if shown is None else shown, result.error)
            if result.last_statement_sql == _NO_RESULT and _NO_RESULT not in sql:
                return {}
            names.extend(result.column_names)
            batches.extend(result.batch)
        return to_columns(names, batches)

    def state(self) -> bytes | None:
        """What `open_engine` makes this trace processor from again; None for a native one and a very large one.

        Raises EngineError once it has packages, which a new one would not know of.
        """
        if self._packages:
            raise EngineError("a trace processor with packages has no state to keep")
        state = None if self._transport is None else self._transport.state()
        return None if state is None else self._sequence.to_bytes(SEQUENCE_BYTES, "little") + state

    def share(self, queries: Sequence[str], first: str) -> None:
        """Answers `queries` now, if a copy of this process can help; `query` gives the same answers from then on.

        first: a query that makes what many of them need. A copy answers those that do without, at the same time.
        Another copy, which then has these tables, shares the others.
        """
        if self._transport is not None and self._transport.is_embedded and can_copy():
            made = included(first)
            without = [query for query in queries if made.isdisjoint(included(query))]
            self._answers |= answered(self.query, without, first=first)
            self._answers |= answered(self.query, [query for query in queries if query not in without], made)

    def relay(self, requests: bytes) -> bytes:
        """The replies to a `TraceProcessorRpcStream` of another client, from any thread. Raises EngineError."""
        with self._relaying:
            if self._transport is None:
                raise EngineError("the trace processor is closed")
            return self._transport.exchange(requests)

    @property
    def is_relaying(self) -> bool:
        """Whether a client waits for a reply, as `close` then would."""
        return self._relaying.locked()

    def status(self, trace_name: str) -> bytes:
        """The engine's `StatusResult` with the trace's name in it. Raises EngineError."""
        (reply,) = self._exchange("TPM_GET_STATUS")
        reply.status.loaded_trace_name = trace_name
        status: bytes = reply.status.SerializeToString()
        return status

    def close(self) -> None:
        """Frees the trace processor when nothing is relayed any more. May be called again."""
        with self._relaying:
            if self._transport is not None:
                self._transport.close()
                self._transport = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _exchange(self, method: str, **arguments: Any) -> list[Any]:
        """The replies to one request. Raises EngineError."""
        if self._transport is None:
            raise EngineError("the trace processor is closed")
        stream = _stream_type()
        # The engine checks that numbers follow each other, to catch lost requests.
        request = stream(msg=[{"request": method, "seq": self._sequence, **arguments}])
        self._sequence += 1
        replies = stream.FromString(self._transport.exchange(request.SerializeToString()))
        for reply in replies.msg:
            if reply.fatal_error:
                raise EngineError(f"the trace processor stopped: {reply.fatal_error}")
            if reply.HasField("invalid_request"):
                hint = "use a newer trace processor (the perfetto package's version or later)"
                raise EngineError(f"the trace processor does not know request {reply.invalid_request}", hint)
        if not replies.msg:
            raise EngineError("the trace processor sent no reply")
        return list(replies.msg)


@functools.cache
def _stream_type() -> Any:
    """The class `TraceProcessorRpcStream`, from the descriptor in the `perfetto` package."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    # The file is read without importing perfetto.trace_processor, which takes 0.15 s.
    spec = importlib.util.find_spec("perfetto")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, "trace_processor", "trace_processor.descriptor")
        if path.is_file():
            # A pool of its own: the default one may already hold another version of these files.
            pool = descriptor_pool.DescriptorPool()
            for file in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file:
                pool.Add(file)
            kind = pool.FindMessageTypeByName("perfetto.protos.TraceProcessorRpcStream")
            return message_factory.GetMessageClass(kind)
    what = "the perfetto package is missing or has no trace_processor/trace_processor.descriptor"
    raise EngineError(what, hint="pip install perfetto")


def _query_error(sql: str, message: str) -> QueryError:
    """The error for `sql`: place and reason as its message, the numbered query as its hint."""
    places: list[re.Match[str]] = []
    reasons: list[str] = []
    quoted = 0
    for line in message.strip().splitlines():
        place = _PLACE.match(line)
        if place:
            places.append(place)
            quoted = 2  # the SQL and the mark under it follow
        elif quoted:
            quoted -= 1
        elif not line.startswith("Traceback"):
            reasons.append(line.strip())
    reason = " ".join(reasons) or "no reason given"
    if not places:
        return QueryError(f"the query failed: {reason}", hint=_numbered(sql, None))
    inner = places[-1]
    where = f"line {inner['line']} col {inner['column']}"
    if inner["module"]:
        where = f"module {inner['module']} {where}"
    own = next((place for place in places if not place["module"]), None)
    mark = (int(own["line"]), int(own["column"])) if own else None
    return QueryError(f"the query failed at {where}: {reason}", hint=_numbered(sql, mark))


def _numbered(sql: str, mark: tuple[int, int] | None) -> str:
    """The query's numbered lines, with a mark under (line, column), both counted from 1."""
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
