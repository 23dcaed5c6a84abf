"""Captures of graphs in a trace: the calls that became nodes of each graph, and the slices that enclose each.

While a stream is captured, launches, copies and sets become nodes of a graph, in their order, and start no work.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from molprof.analysis.facts.nesting import ancestors
from molprof.analysis.figures.shapes import input_shapes
from molprof.analysis.frame import read_frame
from molprof.analysis.origin.match import CapturedCall, Node, Segment
from molprof.analysis.origin.read import origins_of
from molprof.analysis.reader import TraceInfo
from molprof.analysis.roofline.operands import read_operands
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.errors import TraceError

# A number that stands alone: not one of a hash, nor of sq8155.
_SIZE = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
# Category of a function of the host that becomes a node: it has no GPU work.
HOST = "host"
# Equal for calls that start equal work.
_KIND = attrgetter("operator", "shapes", "number", "category")


def sizes(name: str) -> frozenset[str]:
    """Return the numbers in the name of a range; the batch size or tokens of a capture or replay is one of them."""
    return frozenset(_SIZE.findall(name))


def grid_sql(arg_set: str) -> str:
    """Return SQL for grid and block size of a kernel or launch as text; NULL where not recorded."""
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
  call.id,
  CASE
    WHEN call.name GLOB '*LaunchHostFunc*' THEN 'host'
    WHEN call.kind IS NOT NULL THEN 'kernel'
    WHEN call.name GLOB '*Memcpy*' THEN 'gpu_memcpy'
    ELSE 'gpu_memset'
  END AS category,
  IIF(
    call.kind IS NULL,
    NULL,
    IFNULL(EXTRACT_ARG(slice.arg_set_id, 'args.kernel'), EXTRACT_ARG(caller.arg_set_id, 'args.kernel_name'))
  ) AS kernel,
  IFNULL(started.grid, {grid_sql("slice.arg_set_id")}) AS grid, NULL AS class,
  IIF(origin.operator_id IS NULL, NULL, IFNULL(origin.operator, '(no name)')) AS operator, origin.operator_id,
  0 AS number, origin.layer, origin.frame_id, call.ts, call.ts + call.dur AS ts_end, call.name, thread.upid,
  started.name AS work
FROM molprof_gpu_call AS call
JOIN slice ON slice.id = call.id
JOIN thread_track ON thread_track.id = slice.track_id
JOIN thread USING (utid)
LEFT JOIN molprof_call_origin AS origin ON origin.call_id = call.id
LEFT JOIN slice AS caller ON caller.id = origin.operator_id
LEFT JOIN started ON started.call_id = call.id
WHERE call.kind = 'launch' OR call.name GLOB '*Memcpy*' OR call.name GLOB '*Memset*'
  OR call.name GLOB '*LaunchHostFunc*' OR call.name GLOB '*StreamBeginCapture*' OR call.name GLOB '*StreamEndCapture*'
ORDER BY call.ts, call.id
""",
)


class _CallInCapture(NamedTuple):
    node: Node  # that it is or would be; named as the call records it, or the operator (torch.compile's Triton kernels)
    ts: int
    ts_end: int
    name: str
    upid: int
    work: str | None  # name of the work that it started


def read_segments(engine: TraceProcessor, info: TraceInfo) -> list[Segment]:
    """Return the captures of a trace that was loaded with stacks and all arguments, in order.

    Raises TraceError if there are none.
    """
    origins, shapes = origins_of(engine, info), input_shapes(engine)
    calls = []
    counts: Counter[int | None] = Counter()  # of calls of each operator
    for row in query_rows(engine, _CALLS)[1]:
        bare = Node(*row[:10])
        of = None if bare.operator_id is None else shapes.get(bare.operator_id)
        calls.append(_CallInCapture(bare._replace(shapes=of, number=counts[bare.operator_id]), *row[10:]))
        counts[bare.operator_id] += 1
    calls_around = _calls_around(engine, {call.node.operator_id for call in calls if call.work is None})
    # Names and grids of work that equal calls of equal operators start outside captures.
    outside: defaultdict[Any, set[tuple[str, str | None]]] = defaultdict(set)
    for call in calls:
        if call.work is not None and call.node.operator is not None:
            outside[_KIND(call.node)].add((call.work, call.node.grid))

    def node(call: _CallInCapture, begin: int, end: int) -> Node:
        bare = call.node
        names = {name for name, _ in outside.get(_KIND(bare), ())} if not bare.name else set()
        learned = len(names) == 1
        grids = {grid for _, grid in outside[_KIND(bare)]} if learned else set()
        chain = origins.chain(bare.frame_id)
        inside = [frame for frame in chain if frame.ts > begin or frame.ts_end < end]
        # What the capturing function calls itself has no other.
        around = [frame for frame in chain if frame not in inside and frame.kind == "function"]
        return bare._replace(
            name=next(iter(names)) if learned else bare.name or None,
            learned=learned,
            grid=bare.grid or (next(iter(grids)) if len(grids) == 1 else None),
            frames=(*around[-1:], *inside),
            calls=calls_around.get(bare.operator_id, ()),
        )

    segments: list[Segment] = []
    for begin, end, captured in _captures(calls):
        if all(call.node.category == HOST for call in captured):
            continue
        chain = origins.chain(captured[0].node.frame_id)
        ranges = [item.name for item in chain if item.kind == "range" and item.ts <= begin and item.ts_end >= end]
        name = ranges[-1] if ranges else f"capture {len(segments) + 1}"
        of_range = sizes(name) if ranges and "capture" in name.lower() else frozenset()
        work = [call for call in captured if call.node.category != HOST]
        starts = [call.ts for call in work]
        hosts = tuple(bisect_left(starts, call.ts) for call in captured if call.node.category == HOST)
        nodes = tuple(node(call, begin, end) for call in work)
        segments.append(Segment(name, nodes, of_range, captured=True, host_before=hosts))
    if not segments:
        what = "has no launch, copy or set without GPU work, so it captures no graph"
        hint = "give the trace that was recorded while the graphs were captured"
        raise TraceError(f"{info.path} {what}", hint=hint)
    return segments


def _calls_around(engine: TraceProcessor, items: Collection[int | None]) -> dict[int | None, tuple[CapturedCall, ...]]:
    """Return each operator and its callers, the innermost first; without those without recorded arguments."""
    rows = read_frame(engine, "operators", "id name caller_id").rows()
    names, callers = {item: name for item, name, _ in rows}, {item: caller for item, _, caller in rows}
    chains = {item: list(ancestors(item, callers)) for item in items}
    operands = read_operands(engine, {at for chain in chains.values() for at in chain})
    return {
        item: tuple(CapturedCall(at, names[at], operands[at]) for at in chain if at in operands)
        for item, chain in chains.items()
    }


def _captures(calls: Sequence[_CallInCapture]) -> Iterator[tuple[int, int, list[_CallInCapture]]]:
    """Yield begin, end and calls without work of each capture; without recorded begins, runs of such calls."""
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
