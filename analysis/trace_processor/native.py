"""The native trace processor: `trace_processor_shell` as a process, over its HTTP port."""

from __future__ import annotations

import http.client
import os

from molprof.common.errors import EngineError

_HINT = (
    "give the path of an executable trace_processor_shell with --trace-processor or"
    " MOLPROF_TRACE_PROCESSOR, or leave both out to use the embedded one"
)


class NativeTransport:
    """A native trace processor, started by the `perfetto` package, that is used over its `/rpc` address.

    `/rpc` takes the same bytes as the embedded module. The package's own methods cannot register a SQL package.
    """

    is_embedded = False

    def __init__(self, path: str) -> None:
        if not os.path.isfile(path):
            raise EngineError(f"no trace processor at {path!r}", hint=_HINT)
        if not os.access(path, os.X_OK):
            raise EngineError(f"{path!r} is not executable", hint=_HINT)
        from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

        self._path = path
        try:
            self._process = TraceProcessor(config=TraceProcessorConfig(bin_path=path))
        except Exception as error:  # the package raises bare Exceptions, OSErrors and its own
            raise EngineError(f"cannot start {path!r}: {_one_line(error)}", hint=_HINT) from error

    def exchange(self, request: bytes) -> bytes:
        """Send a request to the process and return its answer. Raises EngineError."""
        connection = self._process.http.conn
        try:
            connection.request("POST", "/rpc", body=request)
            with connection.getresponse() as response:
                replies = bytes(response.read())
        except (OSError, http.client.HTTPException) as error:
            what = f"the trace processor {self._path!r} stopped answering: {_one_line(error)}"
            raise EngineError(what, hint="it may have run out of memory") from error
        if response.status != http.client.OK:
            raise EngineError(f"the trace processor {self._path!r} answered {response.status} to /rpc", hint=_HINT)
        return replies

    def state(self) -> None:
        """Return None: a process has no state to keep."""
        return

    def close(self) -> None:
        """End the process."""
        self._process.close()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
