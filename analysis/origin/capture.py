"""The capture phase of graphs in a trace: which calls became the nodes of which graph, and what stood around each.

While a stream is captured, launches, copies and sets become nodes of a graph, in their order, and start no work.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from molprof.analysis.figures.shapes import Shapes, input_shapes
from molprof.analysis.origin.read import Origins, StackFrame, origins_of
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
SELECT call.id, call.ts, call.ts + call.dur AS ts_end, call.name, call.kind, thread.upid, started.name AS work,
  EXTRACT_ARG(slice.arg_set_id, 'args.kernel') AS kernel, origin.frame_id, origin.layer
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
    id: int
    ts: int
    ts_end: int
    name: str
    kind: str | None
    upid: int
    work: str | None  # name of the work that it started
    kernel: str | None  # name of the kernel as the call records it
    frame_id: int | None
    layer: int | None

    @property
    def category(self) -> str:
        """Of the work that it starts, or would."""
        return "kernel" if self.kind else "gpu_memcpy" if "Memcpy" in self.name else "gpu_memset"


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
    calls = [_Call(*row) for row in query_rows(engine, _CALLS)[1]]
    segments = _Maker(origins_of(engine, info), input_shapes(engine), calls).segments()
    if not segments:
        what = "has no launch, copy or set without GPU work, so it captures no graph"
        hint = "give the trace that was recorded while the graphs were captured"
        raise TraceError(f"{info.path} {what}", hint=hint)
    return segments


class _Maker:
    def __init__(self, origins: Origins, shapes: dict[int, Shapes], calls: Sequence[_Call]) -> None:
        self._origins, self._shapes, self._calls = origins, shapes, calls
        counts: defaultdict[int | None, int] = defaultdict(int)
        self._operators: dict[int, tuple[StackFrame | None, int]] = {}
        learned: defaultdict[Any, set[str]] = defaultdict(set)
        for call in calls:
            operator = next((item for item in self._chain(call)[::-1] if item.kind == "operator"), None)
            counts[operator and operator.id] += 1
            self._operators[call.id] = operator, counts[operator and operator.id] - 1
            if call.work is not None and operator is not None:
                learned[self._key(call)].add(call.work)
        self._learned = {key: names.pop() for key, names in learned.items() if len(names) == 1}

    def segments(self) -> list[Segment]:
        found: list[Segment] = []
        for begin, end, calls in self._captures():
            nodes = tuple(self._node(call, begin, end) for call in calls)
            around = [frame for frame in self._chain(calls[0]) if frame.ts <= begin and frame.ts_end >= end]
            ranges = [frame.name for frame in around if frame.kind == "range"]
            found.append(Segment(ranges[-1] if ranges else f"capture {len(found) + 1}", nodes))
        return found

    def _captures(self) -> Iterator[tuple[int, int, list[_Call]]]:
        """Begin, end, and calls without work; without recorded begins, all such calls that follow each other."""
        begins = [call for call in self._calls if "BeginCapture" in call.name]
        ends = [call for call in self._calls if "EndCapture" in call.name]
        plain = [call for call in self._calls if "Capture" not in call.name]
        if not begins:
            run: list[_Call] = []
            for call in [*plain, None]:
                if call is not None and call.work is None:
                    run.append(call)
                elif run:
                    yield run[0].ts, run[-1].ts_end, run
                    run = []
            return
        last = max(call.ts_end for call in self._calls)
        starts = [call.ts for call in plain]
        for begin in begins:
            end = next((call.ts for call in ends if call.upid == begin.upid and call.ts >= begin.ts), last)
            inside = plain[bisect_left(starts, begin.ts) : bisect_right(starts, end)]
            if nodes := [call for call in inside if call.upid == begin.upid and call.work is None]:
                yield begin.ts, end, nodes

    def _node(self, call: _Call, begin: int, end: int) -> Node:
        operator, number = self._operators[call.id]
        name = call.kernel if call.kind else None
        learned = None if name or operator is None else self._learned.get(self._key(call))
        return Node(
            category=call.category,
            name=name or learned,
            learned=learned is not None,
            operator=None if operator is None else operator.name,
            shapes=None if operator is None else self._shapes.get(operator.id),
            number=number,
            layer=call.layer,
            frames=self._frames(call, begin, end),
        )

    def _frames(self, call: _Call, begin: int, end: int) -> tuple[StackFrame, ...]:
        chain = self._chain(call)
        inside = [frame for frame in chain if frame.ts > begin or frame.ts_end < end]
        # What the capturing function calls itself has no other.
        around = [frame for frame in chain if frame not in inside and frame.kind == "function"]
        return (*around[-1:], *inside)

    def _key(self, call: _Call) -> Any:
        operator, number = self._operators[call.id]
        return operator and (operator.name, self._shapes.get(operator.id)), number, call.category

    def _chain(self, call: _Call) -> list[StackFrame]:
        return self._origins.chain(call.frame_id)
