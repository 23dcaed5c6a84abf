"""The server of `molprof mcp`: the folders that it reads, and its tools with names, parameters, descriptions."""

from __future__ import annotations

import io
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import msgspec
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from molprof import __version__
from molprof.analysis.documents.questions import GUIDANCE
from molprof.common.errors import EngineError, MolprofError, UsageError
from molprof.common.process.workers import Worker, WorkerError
from molprof.common.text import escaped, whole_json

_INSTRUCTIONS = f"""\
molprof says why text generation is slow, from traces of torch.profiler. Begin with `traces`, then `report` of one trace
or `compare` of several; `origin` names the modules, functions and operators behind kernels, copies and syncs.
Every figure of these comes with `sql`, which the tool `query` runs (null: the manifest gives it), and a `verdict`:
exact, bounded (from `low` to `high`; null: no limit known) or not_to_be_had. `reason` says why it is not exact. `path`
says what decides the time, `shape` how near to the GPU's peaks operators run, `memory` what lives at the peak, `ranks`
who waits for whom, `predict` what another GPU would do, `bench` what a benchmark measured, masks of engines too: their
answers are the JSON of the command line. `left_out` says how many entries an answer lacks: ask for more with `limit`,
for less with `select`, or with SQL. {GUIDANCE}"""

_ENDINGS = (".json", ".json.gz", ".json.zst", ".pftrace", ".pftrace.gz", ".perfetto-trace")
_ANSWER = "molprof.commands.mcp_tools:answer"  # imported in the other process alone
_MOST_FILES = 2_000  # that are listed
Trace = Annotated[str, Field(description="Path of a trace, as `traces` lists it.")]
Limit = Annotated[int, Field(ge=1, le=1000, description="Most entries of each list.")]
Select = Annotated[str, Field(description="Words: only figures with one of them in id, label or heading. Empty: all.")]
Traces = Annotated[list[str], Field(min_length=2, max_length=8, description="Paths of traces; the first is the base.")]
Name = Annotated[str, Field(description="A module, table, view or function. Empty: the list of modules.")]
Sql = Annotated[str, Field(description="SELECT over PerfettoSQL and the tables of `queries`, or a module's name.")]
Parameters = Annotated[dict[str, str] | None, Field(description="Values of $NAME in the SQL.")]
Stacks = Annotated[
    bool, Field(description="Read Python stacks: columns module and source of molprof_origin need them.")
]
By = Literal["module", "source", "operator", "kernel"]
Ranks = Annotated[
    list[str],
    Field(min_length=1, max_length=1024, description="Paths of the traces of all ranks, or one merged trace."),
]
Changes = Annotated[
    Sequence[str], Field(description="What would be faster: elementwise=0.2x, gpu=0.5x, launches=graph, syncs=none.")
]
Peaks = Annotated[
    Sequence[str], Field(description="Peaks in place of the data sheet's: bf16=989 (TFLOP/s), memory=3.35 (TB/s).")
]
Device = Annotated[str, Field(description="The GPU: h100, a100, b200, mi300x, ... or a device's name.")]
Batches = Annotated[str, Field(description="Batch sizes: 1,8,32, or 1:256 for powers of two. Empty: the run's own.")]
Results = Annotated[str, Field(description="Path of a file that molprof bench -o wrote.")]
Depth = Annotated[int, Field(ge=1, le=100, description="Levels of the tree.")]


class Folders:
    """The folders whose files may be read. Links are resolved first, so that the real path counts."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._roots = tuple(dict.fromkeys(folder.resolve(strict=True) for folder in folders))

    def find(self, name: str) -> Path:
        """Return the real path of a file below the folders, from a path relative to one of them or an absolute one.

        Raises UsageError where there is no such file below the folders; the message is the same for files elsewhere.
        """
        for root in self._roots:
            try:
                path = (root / name).resolve(strict=True)
                inside = any(path.is_relative_to(allowed) for allowed in self._roots)
                if inside and stat.S_ISREG(path.stat().st_mode):
                    return path
            except (OSError, RuntimeError, ValueError):  # missing, a circle of links, a null character
                continue
        raise UsageError(f"no file {name!r} below the folders of this server", hint="the tool `traces` lists them")

    def files(self) -> Iterator[tuple[str, int]]:
        """Yield path and size in bytes of each file that has a trace's ending, in order of name, without links."""
        for root in self._roots:
            for folder, inner, names in os.walk(root):
                inner.sort()
                for name in sorted(names):
                    path = Path(folder, name)
                    if not name.endswith(_ENDINGS) or path.is_symlink():
                        continue
                    yield str(path.relative_to(root) if len(self._roots) == 1 else path), path.stat().st_size


class RequestLines(io.RawIOBase):
    """The lines of requests, without half of a character (`whole_json`).

    The SDK drops a request that holds one, and who asked would wait without end.
    """

    def __init__(self, lines: BinaryIO) -> None:
        self._lines, self._rest = lines, b""

    def readable(self) -> bool:
        """Return True: lines can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes of whole lines into `buffer`."""
        text = self._rest or whole_json(self._lines.readline().decode("utf-8", "replace")).encode()
        size = min(len(text), len(buffer))
        buffer[:size], self._rest = text[:size], text[size:]
        return size


class TraceReader:
    """The process that reads traces, one call after the other. It is restarted when it ends."""

    def __init__(self, limit_s: float = 300.0) -> None:
        self.worker = Worker(limit_s=limit_s, alone=True)
        self._lock = threading.Lock()

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the tool's answer. Raises the MolprofError that it raises, EngineError if the process failed."""
        with self._lock:
            try:
                text: bytes = self.worker.run(_ANSWER, tool, arguments)
            except WorkerError as error:
                raise EngineError(f"the process that read traces failed: {error}", "ask for less") from error
        return msgspec.json.decode(text, type=dict[str, Any])


def make_server(folders: Folders) -> MCPServer[Any]:
    """Return the server; its tools read only files below the folders."""
    # Its own notes on stderr are of no use to the user of an assistant.
    server: MCPServer[Any] = MCPServer("molprof", instructions=_INSTRUCTIONS, version=__version__, log_level="CRITICAL")
    reader = TraceReader()

    def traces(limit: Limit = 200) -> dict[str, Any]:
        """List the traces that can be read, with their sizes."""
        data: dict[str, Any] = {}
        files = [{"path": escaped(path), "bytes": size} for path, size in islice(folders.files(), _MOST_FILES + 1)]
        if len(files) > _MOST_FILES:
            data["notes"] = [f"there are more than {_MOST_FILES} traces: the others are not counted, and can be read"]
        shown = files[:_MOST_FILES]
        left_out = {"left_out": {"traces": len(shown) - limit}} if len(shown) > limit else {}
        return {**data, "traces": shown[:limit], **left_out}

    def ask(tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the reader's answer, with traces below the folders.

        An error of molprof's becomes one for the assistant.
        """
        try:
            for name in {"trace", "file"} & arguments.keys():
                arguments[name] = str(folders.find(arguments[name]))
            if "traces" in arguments:
                arguments["traces"] = [str(folders.find(trace)) for trace in arguments["traces"]]
            return reader.call(tool, **arguments)
        except MolprofError as error:
            raise ToolError(f"{error}; {error.hint}" if error.hint else str(error)) from error

    def report(trace: Trace, select: Select = "", limit: Limit = 100) -> dict[str, Any]:
        """Report a trace: launches, kernels, GPU time, steps, tokens, findings with fixes, and its certificate."""
        return ask("report", trace=trace, select=select, limit=limit)

    def compare(traces: Traces, select: Select = "", limit: Limit = 30) -> dict[str, Any]:
        """Compare traces with the first: figures that differ, the parts of the difference in time, and its causes."""
        return ask("compare", traces=traces, select=select, limit=limit)

    def queries(name: Name = "") -> dict[str, Any]:
        """List the SQL modules, or show what one offers: tables, columns, units, an example."""
        return ask("queries", name=name)

    def query(
        trace: Trace, sql: Sql, parameters: Parameters = None, stacks: Stacks = False, limit: Limit = 100
    ) -> dict[str, Any]:
        """Run SQL over a trace. Only SELECT is allowed; the tables of `queries` need no INCLUDE."""
        return ask("query", trace=trace, sql=sql, parameters=parameters or {}, stacks=stacks, limit=limit)

    def origin(trace: Trace, by: By = "module", depth: Depth = 4, limit: Limit = 30) -> dict[str, Any]:
        """Show the origin of GPU work as a tree, and the callers of launches, copies and host syncs.

        Amounts are inclusive, and equal layers in one row.
        """
        return ask("origin", trace=trace, by=by, depth=depth, limit=limit)

    def path(trace: Trace, changes: Changes = (), limit: Limit = 30) -> dict[str, Any]:
        """Show the critical path of a trace, which decides how long it takes, and the gain of each part or change."""
        return ask("path", trace=trace, changes=changes, limit=limit)

    def shape(trace: Trace, peaks: Peaks = (), limit: Limit = 30) -> dict[str, Any]:
        """Show how near to the GPU's peaks each operator runs, for the shapes that it was called with."""
        return ask("shape", trace=trace, peaks=peaks, limit=limit)

    def memory(trace: Trace, limit: Limit = 30) -> dict[str, Any]:
        """Show memory at its peak by category and by what allocated it, and the need of other batches."""
        return ask("memory", trace=trace, limit=limit)

    def ranks(traces: Ranks, limit: Limit = 30) -> dict[str, Any]:
        """Show the ranks of a distributed job side by side: compute, communication, waiting, idle, stragglers."""
        return ask("ranks", traces=traces, limit=limit)

    def predict(
        trace: Trace,
        device: Device,
        changes: Changes = (),
        batches: Batches = "",
        limit: Limit = 30,
    ) -> dict[str, Any]:
        """Predict launches, times and what limits a run with recorded shapes on another GPU, with intervals."""
        return ask("predict", trace=trace, device=device, changes=changes, batches=batches, limit=limit)

    def bench(file: Results, limit: Limit = 30) -> dict[str, Any]:
        """Show the results of a benchmark: configurations, attention kernels, masks of constrained decoding."""
        return ask("bench", file=file, limit=limit)

    for tool in (traces, report, compare, queries, query, origin, path, shape, memory, ranks, predict, bench):
        server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    return server
