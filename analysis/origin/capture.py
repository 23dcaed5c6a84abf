"""The capture phase of graphs in a trace: which calls became the nodes of which graph, and what stood around each.

While a stream is captured, launches, copies and sets become nodes of a graph, in their order, and start no work.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from molprof.analysis.figures.shapes import Shapes, input_shapes
from molprof.analysis.frame import read_frame
from molprof.analysis.origin.read import StackFrame, origins_of
from molprof.analysis.reader import TraceInfo
from molprof.analysis.roofline.operands import Operands, read_operands
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.errors import TraceError

# A number that stands alone: not one of a hash, nor of sq8155.
_SIZE = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")


def sizes(name: str) -> frozenset[str]:
    """Numbers in the name of a range: the batch size or tokens of a capture or replay are among them."""
    return frozenset(_SIZE.findall(name))


def grid_sql(arg_set: str) -> str:
    """Grid and block size of a kernel or launch as text; null where not recorded."""
    parts = (f"EXTRACT_ARG({arg_set}, 'args.{name}[{axis}]')" for name in ("grid", "block") for axis in range(3))
    return " || ',' || ".join(parts)


_CALLS = Query(
    "origin",
    f"""
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;
WITH
  started AS (
    SELECT work.call_id, MIN(work.name) AS name, MIN({grid_sql("slice.arg_set_id")}) AS grid
    FROM molprof_gpu_work AS work
    JOIN slice USING (id)
    WHERE work.call_id IS NOT NULL
    GROUP BY work.call_id
  )
SELECT
  call.ts, call.ts + call.dur AS ts_end, call.name, thread.upid, started.name AS work,
  IFNULL(started.grid, {grid_sql("slice.arg_set_id")}) AS grid,
  IIF(
    call.kind IS NULL,
    NULL,
    IFNULL(EXTRACT_ARG(slice.arg_set_id, 'args.kernel'), EXTRACT_ARG(caller.arg_set_id, 'args.kernel_name'))
  ) AS kernel,
  CASE WHEN call.kind IS NOT NULL THEN 'kernel' WHEN call.name GLOB '*Memcpy*' THEN 'gpu_memcpy' ELSE 'gpu_memset' END
    AS category,
  IIF(origin.operator_id IS NULL, NULL, IFNULL(origin.operator, '(no name)')) AS operator, origin.operator_id,
  ROW_NUMBER() OVER (PARTITION BY origin.operator_id ORDER BY call.ts, call.id) - 1 AS number,
  origin.frame_id, origin.layer
FROM molprof_gpu_call AS call
JOIN slice ON slice.id = call.id
JOIN thread_track ON thread_track.id = slice.track_id
JOIN thread USING (utid)
LEFT JOIN molprof_call_origin AS origin ON origin.call_id = call.id
LEFT JOIN slice AS caller ON caller.id = origin.operator_id
LEFT JOIN started ON started.call_id = call.id
WHERE call.kind = 'launch' OR call.name GLOB '*Memcpy*' OR call.name GLOB '*Memset*'
  OR call.name GLOB '*StreamBeginCapture*' OR call.name GLOB '*StreamEndCapture*'
ORDER BY call.ts, call.id
""",
)


class _Call(NamedTuple):
    ts: int
    ts_end: int
    name: str
    upid: int
    work: str | None  # name of the work that it started
    grid: str | None  # of that work, else as the call records it
    kernel: str | None  # its name as the call records it, or as the operator does (torch.compile's Triton kernels)
    category: str  # of the work that it starts, or would
    operator: str | None
    operator_id: int | None
    number: int  # of the call among those of its operator
    frame_id: int | None
    layer: int | None


class CapturedCall(NamedTuple):
    """An operator that was called while a graph was captured."""

    id: int
    name: str
    operands: Operands


class Node(NamedTuple):
    """A node of a graph as it was captured."""

    category: str  # kernel, gpu_memcpy or gpu_memset
    name: str | None  # of the kernel; None where neither the call nor a run outside the capture tells it
    learned: bool  # the name is the one of an equal operator outside the capture
    grid: str | None  # grid and block size, as the name is known; None where not recorded, or of a copy or set
    operator: str | None
    shapes: Shapes | None  # of the operator's inputs; None where not recorded
    number: int  # of the call among those of its operator
    layer: int | None
    frames: tuple[StackFrame, ...]  # the capturing function, and what is inside the capture, the outermost first
    calls: tuple[CapturedCall, ...] = ()  # the operator with recorded arguments, and those around it in the capture


@dataclass(frozen=True)
class Segment:
    """One capture, from its begin to its end."""

    name: str  # the range around it, else its number from 1
    nodes: tuple[Node, ...]
    sizes: frozenset[str] = frozenset()  # numbers in the name of the range


def read_segments(engine: TraceProcessor, info: TraceInfo) -> list[Segment]:
    """The captures of a trace that was loaded with stacks and all arguments, in order.

    Raises TraceError if there are none.
    """
    origins, shapes = origins_of(engine, info), input_shapes(engine)
    calls = [_Call(*row) for row in query_rows(engine, _CALLS)[1]]
    callers = _Callers(
        engine, {call.operator_id for call in calls if call.work is None and call.operator_id is not None}
    )

    def shapes_of(call: _Call) -> Shapes | None:
        return None if call.operator_id is None else shapes.get(call.operator_id)

    # Names of work that equal calls of equal operators start outside captures.
    names: defaultdict[Any, set[str]] = defaultdict(set)
    grids: defaultdict[Any, set[str | None]] = defaultdict(set)
    for call in calls:
        if call.work is not None and call.operator is not None:
            key = call.operator, shapes_of(call), call.number, call.category
            names[key].add(call.work)
            grids[key].add(call.grid)

    def node(call: _Call, begin: int, end: int) -> Node:
        key = call.operator, shapes_of(call), call.number, call.category
        known = [] if call.kernel else list(names.get(key, ()))
        name = known[0] if len(known) == 1 else None
        outside = list(grids.get(key, ())) if name else []
        chain = origins.chain(call.frame_id)
        inside = [frame for frame in chain if frame.ts > begin or frame.ts_end < end]
        # What the capturing function calls itself has no other.
        around = [frame for frame in chain if frame not in inside and frame.kind == "function"]
        return Node(
            category=call.category,
            name=call.kernel or name,
            learned=name is not None,
            grid=call.grid or (outside[0] if len(outside) == 1 else None),
            operator=call.operator,
            shapes=shapes_of(call),
            number=call.number,
            layer=call.layer,
            frames=(*around[-1:], *inside),
            calls=tuple(callers.of(call.operator_id)),
        )

    segments: list[Segment] = []
    for begin, end, captured in _captures(calls):
        chain = origins.chain(captured[0].frame_id)
        ranges = [item.name for item in chain if item.kind == "range" and item.ts <= begin and item.ts_end >= end]
        name = ranges[-1] if ranges else f"capture {len(segments) + 1}"
        of_range = sizes(name) if ranges and "capture" in name.lower() else frozenset()
        segments.append(Segment(name, tuple(node(call, begin, end) for call in captured), of_range))
    if not segments:
        what = "has no launch, copy or set without GPU work, so it captures no graph"
        hint = "give the trace that was recorded while the graphs were captured"
        raise TraceError(f"{info.path} {what}", hint=hint)
    return segments


class _Callers:
    """Operators with their arguments, and the operators that call them."""

    def __init__(self, engine: TraceProcessor, items: Collection[int]) -> None:
        frame = read_frame(engine, "operators", "id name caller_id")
        each = zip(*(frame[name].tolist() for name in ("id", "name", "caller_id")), strict=True)
        self._known = {item: (name, caller) for item, name, caller in each}
        self._operands = read_operands(engine, {at for item in items for at, _ in self._chain(item)})

    def _chain(self, item: int | None) -> Iterator[tuple[int, str]]:
        while item is not None and item in self._known:
            name, caller = self._known[item]
            yield item, name
            item = caller

    def of(self, item: int | None) -> Iterator[CapturedCall]:
        """The innermost first; those without recorded arguments are left out."""
        for at, name in self._chain(item):
            if at in self._operands:
                yield CapturedCall(at, name, self._operands[at])


def _captures(calls: Sequence[_Call]) -> Iterator[tuple[int, int, list[_Call]]]:
    """Begin, end, and calls without work; without recorded begins, all such calls that follow each other."""
    begins = [call for call in calls if "BeginCapture" in call.name]
    ends = [call for call in calls if "EndCapture" in call.name]
    plain = [call for call in calls if "Capture" not in call.name]
    if not begins:
        for started, group in groupby(plain, key=lambda call: call.work is not None):
            if not started:
                run = list(group)
                yield run[0].ts, run[-1].ts_end, run
        return
    last = max(call.ts_end for call in calls)
    starts = [call.ts for call in plain]
    for begin in begins:
        end = next((call.ts for call in ends if call.upid == begin.upid and call.ts >= begin.ts), last)
        inside = plain[bisect_left(starts, begin.ts) : bisect_right(starts, end)]
        if nodes := [call for call in inside if call.upid == begin.upid and call.work is None]:
            yield begin.ts, end, nodes
