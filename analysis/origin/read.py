"""The origins of a trace, read from the engine: its work, the enclosing frames, and the callers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, TypeVar

import numpy as np

from molprof.analysis.facts.nesting import ancestors
from molprof.analysis.frame import Frame, read_frame
from molprof.analysis.origin.host import host_of, waits_of
from molprof.analysis.origin.paths import BACKWARD, WITHOUT, FramePaths, PathTable, StackFrame
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_row
from molprof.common.manifest import from_json
from molprof.common.sampled import SampledFunctions
from molprof.common.values import class_names, short_source

NO_CALL = "(launch not recorded)"
NOWHERE = frozenset({BACKWARD, *WITHOUT.values()})
_COPY_CLASSES = ("copy", "cat")
# Apart from all that the trees are made of.
_TOTALS = Query(
    "launches",
    """
INCLUDE PERFETTO MODULE molprof.host_syncs;
SELECT
  (SELECT IFNULL(SUM(dur), 0) FROM slice WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset')) AS gpu_ns,
  (SELECT COUNT() FROM slice WHERE category = 'kernel') AS kernels,
  (SELECT COUNT() FROM slice WHERE category IN ('gpu_memcpy', 'gpu_memset')) AS memory_operations,
  (SELECT launches FROM molprof_launch_count) AS launches,
  (SELECT graph_launches FROM molprof_launch_count) AS graph_launches,
  (SELECT COUNT() FROM molprof_host_sync) AS syncs,
  (SELECT IFNULL(SUM(dur), 0) FROM molprof_host_sync) AS sync_ns
""",
)

T = TypeVar("T")


@dataclass(frozen=True)
class Origins:
    """The work of a trace, with its enclosing frames."""

    info: TraceInfo
    frames: dict[int, StackFrame]
    work: Frame
    calls: Frame  # that are launches or host syncs, or start GPU work
    operators: Frame
    leaves: np.ndarray  # operators that call no other
    host: Frame  # self time of phases and frames on the host, outside operators
    waits: Frame  # time for which GPUs waited for the host, by phase and frame
    totals: dict[str, int]  # what each tree must add up to
    steps: int
    tokens: int | None  # generated in the steps; None where not known
    # Of work of a graph: what stood around the call that was captured for it, as far as known.
    captured: Mapping[int, tuple[StackFrame, ...]] = field(default_factory=dict)
    # Of each piece of work PIECE_AMOUNTS; None: shapes are not recorded, or the device's peaks not known.
    pieces: np.ndarray | None = None
    marks_ns: int = 0  # host time of molprof's own marks, which no tree holds
    waiting_ns: int = 0  # of threads that only wait, which none holds either
    sampled: SampledFunctions | None = None  # functions of the run's processors; None: not recorded

    @property
    def has_gpu(self) -> bool:
        """True if the trace holds GPU work or calls that launch it."""
        return bool(len(self.work) or len(self.calls))

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Kinds of frames: module, range, function and others; without ranges of a run, which are molprof's marks."""
        kinds = frozenset(frame.kind for frame in self.frames.values())
        return kinds if self.info.manifest is None else kinds - {"range"}

    @property
    def without_call(self) -> tuple[int, int]:
        """Number of pieces of work without a recorded call, and their time, ns."""
        alone = self.work.where(~self.work.known("call_id"))
        return len(alone), int(alone["dur"].sum())

    def chain(self, frame_id: int | None) -> list[StackFrame]:
        """Return the frames that enclose a call, the outermost first."""
        return [self.frames[item] for item in ancestors(frame_id, self._parents)][::-1]

    @cached_property
    def _parents(self) -> dict[int, int | None]:
        return {item: frame.parent_id for item, frame in self.frames.items()}


@dataclass
class CallLocation:
    """A module, Python function and operator, with number and time of their calls; modules of a class are merged."""

    module: str  # classes from the outermost to the innermost, with / between them
    source: str  # file(line): name of the innermost function
    operator: str  # the innermost, behind the outermost where that is another
    modules: set[str] = field(default_factory=set)  # the same with their numbers
    count: int = 0
    time_ns: int = 0
    step_count: int = 0  # inside recorded steps

    @property
    def known(self) -> bool:
        """True if the call is recorded."""
        return self.operator != NO_CALL

    @property
    def text(self) -> str:
        """The location as text."""
        if not self.known:
            return "whose launch is not recorded"
        names = [item for item in (self.operator, short_source(self.source)) if item not in NOWHERE]
        inside = "" if self.module in NOWHERE else f" in {len(self.modules)} x {self.module}"
        return (", ".join(names) or "without an operator or function") + inside


def origins_of(engine: TraceProcessor, info: TraceInfo) -> Origins:
    """Return the origins of the trace that the engine holds, Python stacks included."""
    around = frames_around(engine)
    work = read_frame(engine, "work", "id dur name category class call_id in_graph frame_id phase")
    calls = read_frame(engine, "calls", "id dur kind gpu_ns is_sync sync_ns frame_id phase step_id")
    # Copies that are captured into a graph start no work.
    starts = np.isin(calls["id"], work["call_id"][work.known("call_id")].astype(np.int64))
    steps = read_frame(engine, "steps", "tokens")["tokens"].tolist()
    calling = calls["frame_id"][calls.known("frame_id")].astype(np.int64)
    host, host_ns, marks_ns, waiting_ns = host_of(engine, around, calling)
    return Origins(
        info=info,
        frames=frames_by_id(around),
        host=host,
        waits=waits_of(engine, around),
        work=work,
        calls=calls.where(calls.known("kind") | (calls["is_sync"] == 1) | starts),
        operators=read_frame(engine, "operators", "id own_ns phase"),
        leaves=engine.facts.leaf_operators,
        totals={
            **query_row(engine, _TOTALS),
            "operators": len(engine.facts.leaf_operators),
            "wait_ns": int((engine.facts.windows.ts_end - engine.facts.windows.ts).sum()),
            "python_ns": host_ns,
        },
        steps=len(steps),
        tokens=sum(steps) if steps and None not in steps else None,
        marks_ns=marks_ns,
        waiting_ns=waiting_ns,
        sampled=_sampled(info),
    )


def frames_around(engine: TraceProcessor) -> Frame:
    """Return the operators, modules, ranges and Python functions of a trace."""
    return read_frame(engine, "functions", "id parent_id kind name ts dur upid tid", where="TRUE")


def frames_by_id(around: Frame) -> dict[int, StackFrame]:
    """Return the frames by id of their slice."""
    return {row[0]: StackFrame(*row[:6]) for row in around.rows()}


def _sampled(info: TraceInfo) -> SampledFunctions | None:
    functions = None if info.manifest is None else from_json(info.manifest).functions
    return functions if isinstance(functions, SampledFunctions) and functions.samples else None


def places_of(origins: Origins, asked: str) -> list[CallLocation]:
    """Return the locations that make GPU calls or run operators, by module, Python function and operator.

    asked: `launches`, those of graphs included, most first, with the time of the GPU work that they started; or, the
    longest time first, `copies` (kernels that copy, cast or concatenate, and memory copies), `syncs`, or `operators`
    with their self time.
    """
    calls, work = origins.calls, origins.work
    if asked == "operators":
        rows, time = origins.operators, "own_ns"
    elif asked == "copies":
        is_copy = np.isin(work["class"], _COPY_CLASSES) | (work["category"] == "gpu_memcpy")
        rows, time = work.where(is_copy), "dur"
    elif asked == "syncs":
        rows, time = calls.where(calls["is_sync"] == 1), "sync_ns"
    else:
        rows, time = calls.where(calls.known("kind")), "gpu_ns"
    # Of each row its frame, what was captured for it, which says more than what launched the graph, or NO_CALL.
    around = rows["id" if asked == "operators" else "frame_id"].tolist()
    if asked == "copies":
        around = [
            NO_CALL if call is None else origins.captured.get(number, frame)
            for number, call, frame in rows.select("id", "call_id", "frame_id").rows()
        ]
    in_steps = (rows["kind"] == "launch") & rows.known("step_id") if asked == "launches" else np.zeros(len(rows))
    locations = summed_places(origins.frames, around, rows[time], in_steps)
    first, second = ("count", "time_ns") if asked == "launches" else ("time_ns", "count")
    return sorted(locations, key=lambda item: (getattr(item, first), getattr(item, second)), reverse=True)


def summed_places(
    frames: Mapping[int, StackFrame], around: Sequence[Any], time_ns: np.ndarray, in_steps: np.ndarray
) -> list[CallLocation]:
    """Return the locations of events, in order of their first event.

    around: of each event the innermost frame or None, the frames around a captured call, or NO_CALL.
    """
    table = PathTable()
    paths = [FramePaths(by, frames, table) for by in WITHOUT]

    @cache
    def named(*numbers: int) -> tuple[str, str, str, str]:
        """Return module, source, operator, and the module with its numbers, of the paths by WITHOUT."""
        modules, functions, operators = map(table.nodes, numbers)
        return (
            "/".join(class_names(name) if kind == "module" else name for kind, name in modules),
            functions[-1][1],
            " > ".join(dict.fromkeys((operators[0][1], operators[-1][1]))),
            "/".join(name for _, name in modules),
        )

    locations: dict[tuple[str, ...], CallLocation] = {}
    for item, amounts in sums(around, np.ones(len(around)), time_ns, in_steps).items():
        module = source = operator = whole = NO_CALL
        if item != NO_CALL:
            numbers = (path.of_chain(item) if isinstance(item, tuple) else path.of_frame(item) for path in paths)
            module, source, operator, whole = named(*numbers)
        location = locations.setdefault((module, source, operator), CallLocation(module, source, operator))
        location.modules.add(whole)
        location.count += amounts[0]
        location.time_ns += amounts[1]
        location.step_count += amounts[2]
    return list(locations.values())


def sums(keys: Iterable[T], *amounts: np.ndarray) -> dict[T, tuple[int, ...]]:
    """Return the sum of each column over the rows of each key, in order of the first."""
    index_of: dict[T, int] = {}
    row_of = np.array([index_of.setdefault(key, len(index_of)) for key in keys], dtype=np.intp)
    totals = np.zeros((len(index_of), len(amounts)), dtype=np.int64)
    for number, column in enumerate(amounts):
        np.add.at(totals[:, number], row_of, column.astype(np.int64))
    return dict(zip(index_of, map(tuple, totals.tolist()), strict=True))
