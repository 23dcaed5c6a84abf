"""The capture phase of graphs in a trace: which calls became the nodes of which graph, and what stood around each.

While a stream is captured, launches, copies and sets become nodes of a graph, in their order, and start no work.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from molprof.analysis.figures.shapes import Shapes, input_shapes
from molprof.analysis.origin.read import StackFrame, origins_of
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.errors import TraceError

_CALLS = Query(
    "origin",
    """
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;
WITH
  started AS (
    SELECT call_id, MIN(name) AS name
    FROM molprof_gpu_work
    WHERE call_id IS NOT NULL
    GROUP BY call_id
  )
SELECT
  call.ts, call.ts + call.dur AS ts_end, call.name, thread.upid, started.name AS work,
  IIF(call.kind IS NULL, NULL, EXTRACT_ARG(slice.arg_set_id, 'args.kernel')) AS kernel,
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
    kernel: str | None  # name of the kernel as the call records it
    category: str  # of the work that it starts, or would
    operator: str | None
    operator_id: int | None
    number: int  # of the call among those of its operator
    frame_id: int | None
    layer: int | None


class Node(NamedTuple):
    """A node of a graph as it was captured."""

    category: str  # kernel, gpu_memcpy or gpu_memset
    name: str | None  # of the kernel; None where neither the call nor a run outside the capture tells it
    learned: bool  # the name is the one of an equal operator outside the capture
    operator: str | None
    shapes: Shapes | None  # of the operator's inputs; None where not recorded
    number: int  # of the call among those of its operator
    layer: int | None
    frames: tuple[StackFrame, ...]  # the capturing function, and what is inside the capture, the outermost first


@dataclass(frozen=True)
class Segment:
    """One capture, from its begin to its end."""

    name: str  # the range around it, else its number from 1
    nodes: tuple[Node, ...]


def read_segments(engine: TraceProcessor, info: TraceInfo) -> list[Segment]:
    """The captures of a trace that was loaded with stacks and all arguments, in order.

    Raises TraceError if there are none.
    """
    origins, shapes = origins_of(engine, info), input_shapes(engine)
    calls = [_Call(*row) for row in query_rows(engine, _CALLS)[1]]

    def shapes_of(call: _Call) -> Shapes | None:
        return None if call.operator_id is None else shapes.get(call.operator_id)

    # Names of work that equal calls of equal operators start outside captures.
    names: defaultdict[Any, set[str]] = defaultdict(set)
    for call in calls:
        if call.work is not None and call.operator is not None:
            names[call.operator, shapes_of(call), call.number, call.category].add(call.work)
    learned = {key: next(iter(found)) for key, found in names.items() if len(found) == 1}

    def node(call: _Call, begin: int, end: int) -> Node:
        name = None if call.kernel else learned.get((call.operator, shapes_of(call), call.number, call.category))
        chain = origins.chain(call.frame_id)
        inside = [frame for frame in chain if frame.ts > begin or frame.ts_end < end]
        # What the capturing function calls itself has no other.
        around = [frame for frame in chain if frame not in inside and frame.kind == "function"]
        return Node(
            category=call.category,
            name=call.kernel or name,
            learned=name is not None,
            operator=call.operator,
            shapes=shapes_of(call),
            number=call.number,
            layer=call.layer,
            frames=(*around[-1:], *inside),
        )

    segments: list[Segment] = []
    for begin, end, captured in _captures(calls):
        chain = origins.chain(captured[0].frame_id)
        ranges = [item.name for item in chain if item.kind == "range" and item.ts <= begin and item.ts_end >= end]
        name = ranges[-1] if ranges else f"capture {len(segments) + 1}"
        segments.append(Segment(name, tuple(node(call, begin, end) for call in captured)))
    if not segments:
        what = "has no launch, copy or set without GPU work, so it captures no graph"
        hint = "give the trace that was recorded while the graphs were captured"
        raise TraceError(f"{info.path} {what}", hint=hint)
    return segments


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
