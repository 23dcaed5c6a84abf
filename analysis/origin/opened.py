"""Replayed graphs opened: for each kernel the operator, shapes, module and source line, and how sure that is.

A graph is named from the captures in a trace of their own, and by the annotations of its nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from molprof.analysis.origin.capture import grid_sql, sizes
from molprof.analysis.origin.folder import padded
from molprof.analysis.origin.match import EXACT, CapturedCall, KnownOrigin, Named, Node, Segment, name_kernels
from molprof.analysis.origin.paths import StackFrame
from molprof.analysis.origin.read import Origins, origins_of
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.errors import TraceError

_NODES = Query(
    "graph_work",
    f"""
SELECT node.id, node.launch_id, node.graph, node.replay, node.position, node.ts, node.dur, node.name, node.category,
  node.node_id, node.annotation, {grid_sql("slice.arg_set_id")} AS grid
FROM molprof_graph_node AS node JOIN slice USING (id) ORDER BY node.ts, node.id
""",
)
# Ranges around the launches, steps too: they name the batch size, unless they only number steps.
_RANGES = Query(
    "graph_nodes",
    """
SELECT replay.launch_id, GROUP_CONCAT(ancestor.name, ' ') AS names
FROM molprof_graph_replay AS replay
JOIN ancestor_slice(replay.launch_id) AS ancestor
WHERE ancestor.category = 'user_annotation' AND ancestor.name NOT GLOB 'ProfilerStep#*'
  AND ancestor.name NOT GLOB 'molprof.*'
GROUP BY replay.launch_id
""",
)
# The sizes of the batches that the launches are for, where names of steps tell them.
_BATCHES = Query(
    "steps",
    """
INCLUDE PERFETTO MODULE molprof.graph_nodes;
SELECT DISTINCT replay.launch_id, size.graph_size
FROM molprof_graph_replay AS replay
JOIN ancestor_slice(replay.launch_id) AS ancestor
JOIN _molprof_step_size AS size ON size.id = ancestor.id
WHERE size.graph_size IS NOT NULL
ORDER BY replay.launch_id
""",
)
_DIGITS = 10  # as long a number is no batch size


class NodeWork(NamedTuple):
    """A piece of work of a graph."""

    id: int
    launch_id: int
    graph: int
    replay: int
    position: int | None
    ts: int
    dur: int
    name: str
    category: str
    node_id: int | None
    annotation: str | None
    grid: str | None  # grid and block size; None where not read


@dataclass(frozen=True)
class Graph:
    """A graph and the capture that matches it."""

    number: int
    replays: int
    work: tuple[NodeWork, ...]  # of all replays, in order of start
    captures: tuple[str, ...]  # those that fit equally; none without one that fits
    nodes: int  # of the capture
    unused: tuple[Node, ...]  # of the capture, that no position is
    doubts: tuple[str, ...]  # why nothing is sure, whatever matches
    consistent_ratio: float | None
    host_functions: int = 0  # of the capture, which are nodes too
    host_wait_ns: int = 0  # of all replays: between the work before and behind a host function


class GraphDifference(NamedTuple):
    """Different work of a graph and the other run between the same neighbours."""

    graph: int
    here: tuple[str, ...]  # names, in order
    there: tuple[str, ...]
    times: int


@dataclass(frozen=True)
class Opened:
    """Graphs with named kernels, and the source of the names."""

    capture: str | None  # path of the trace with the capture phase, or of the folder with those of several
    segments: tuple[Segment, ...]
    graphs: tuple[Graph, ...]
    places: dict[int, KnownOrigin]  # by slice of the work
    run: str | None = None  # path of the trace of another run, in place of a capture
    differences: tuple[GraphDifference, ...] = ()
    # Of work outside graphs that was paired with the run's, and has an operator in both: the same one, and all.
    agreeing: tuple[int, int] = (0, 0)
    remarks: tuple[str, ...] = ()  # on a folder of captures: what of it is read, and what it lacks


def read_opened(
    engine: TraceProcessor,
    info: TraceInfo,
    capture: str | None = None,
    segments: Sequence[Segment] = (),
    remarks: Sequence[str] = (),
) -> tuple[Origins, Opened]:
    """Return the origins of a trace that was loaded with stacks, its graphs opened with the captures in another trace.

    capture: path of that trace. remarks: on the segments. Raises TraceError where there is one, and no graph is
    replayed.
    """
    by_graph = graph_work(engine)
    if capture is not None and not by_graph:
        raise TraceError(f"{info.path} replays no graph", hint="leave out --graph-capture")
    ranges: dict[int, str] = dict(query_rows(engine, _RANGES)[1]) if segments and by_graph else {}
    batches = replayed_batches(engine) if segments and by_graph else {}
    captured = {int(size) for segment in segments for size in map(str, segment.sizes) if len(size) < _DIGITS}
    origin_of: dict[int, KnownOrigin] = {}
    graphs = []
    replayed = [_replayed(works, ranges, batches, captured) for works in by_graph.values()]
    for works, named in zip(by_graph.values(), name_kernels(replayed, segments), strict=True):
        position_of = {work.id: work.position for work in works}
        index_of = {position_of[node.id]: index for index, node in enumerate(named.work.nodes)}
        for work in works:
            origins = named.places[work.replay % len(named.places)]
            origin_of[work.id] = annotated(origins.get(index_of.get(work.position, -1), KnownOrigin()), work)
        graphs.append(graph_of(works, [named]))
    opened = Opened(capture, tuple(segments), tuple(graphs), origin_of, remarks=tuple(remarks))
    return with_captured(origins_of(engine, info), opened), opened


def replayed_batches(engine: TraceProcessor) -> dict[int, int]:
    """Return the size of the batch of each launch of a graph, where the name of its step tells it."""
    return dict(query_rows(engine, _BATCHES)[1])


def _replayed(
    works: Sequence[NodeWork], ranges: dict[int, str], batches: dict[int, int], captured: Collection[int]
) -> Segment:
    """Return the first replay of a graph, with the sizes of the graphs that its launches can be of.

    Those are the captured sizes that the batches fit into, or numbers in the ranges around the launches.
    """
    first = [work for work in works if work.replay == 0]
    if all(work.node_id is not None for work in first):
        first.sort(key=lambda work: work.node_id or 0)  # nodes are numbered in the order of the capture
    launches = {work.launch_id for work in works}
    fits = {batches[launch]: padded(batches[launch], captured) for launch in launches if launch in batches}
    around = frozenset(str(fit or batch) for batch, fit in fits.items())
    if not around:
        around = frozenset().union(*(sizes(ranges.get(launch, "")) for launch in launches))
    return Segment(
        name="",
        nodes=tuple(Node(work.id, work.category, work.name, work.grid) for work in first),
        sizes=around,
        size_text=", ".join(sorted(around, key=lambda size: (len(size), size))),
        replays=len({work.replay for work in works}),
    )


def graph_of(works: Sequence[NodeWork], named: Sequence[Named]) -> Graph:
    """Return a graph, and the candidates that name it. named: by its launches, or of all."""
    fitting = [(item, item.segments[0]) for item in named if item.segments]
    captures = [
        tuple(other.name for other in (item.segments if first.captured else (first,))) for item, first in fitting
    ]
    return Graph(
        number=works[0].graph,
        replays=len({work.replay for work in works}),
        work=tuple(works),
        captures=sum(dict.fromkeys(captures), ()),
        nodes=max((len(first.nodes) for _, first in fitting), default=0),
        unused=tuple(first.nodes[index] for item, first in fitting for index in item.unused),
        doubts=tuple(dict.fromkeys(doubt for item, _ in fitting for doubt in item.doubts)),
        consistent_ratio=next((item.consistent_ratio for item, _ in fitting), None),
        host_functions=max((len(first.host_before) for _, first in fitting), default=0),
        host_wait_ns=max((_host_wait_ns(works, item) for item, _ in fitting), default=0),
    )


def _host_wait_ns(works: Sequence[NodeWork], named: Named) -> int:
    """Return the time from the work before each host function of a capture to that behind it, in all replays."""
    if not named.segments[0].host_before:
        return 0
    position_of = {work.id: work.position for work in works}
    nodes = {position_of[named.work.nodes[index].id]: pair.node for index, pair in named.pairs.items()}
    total = 0
    for place in set(named.segments[0].host_before):
        ends: dict[int, int] = {}
        starts: dict[int, int] = {}
        for work in works:
            if (node := nodes.get(work.position)) is None:
                continue
            if node < place:
                ends[work.replay] = max(ends.get(work.replay, 0), work.ts + work.dur)
            else:
                starts[work.replay] = min(starts.get(work.replay, work.ts), work.ts)
        total += sum(max(0, starts[replay] - end) for replay, end in ends.items() if replay in starts)
    return total


def with_captured(origins: Origins, opened: Opened) -> Origins:
    """Return the origins, with the frames of the captured calls added to each piece of a graph's work."""
    return replace(origins, captured={number: item.frames for number, item in opened.places.items() if item.frames})


def captured_calls(opened: Opened) -> dict[int, tuple[CapturedCall, ...]]:
    """Return the calls of each piece of a graph's work, by its slice; each replay has its own, with ids below 0."""
    numbers: dict[tuple[int, int, int], int] = {}
    calls_of = {}
    for graph in opened.graphs:
        for work in graph.work:
            calls = opened.places[work.id].calls
            keys = [(graph.number, work.replay, call.id) for call in calls]
            calls_of[work.id] = tuple(
                call._replace(id=numbers.setdefault(key, -1 - len(numbers)))
                for key, call in zip(keys, calls, strict=True)
            )
    return calls_of


def graph_work(engine: TraceProcessor) -> dict[int, list[NodeWork]]:
    """Return the work of all replays of each graph by its number, in order of start."""
    by_graph: defaultdict[int, list[NodeWork]] = defaultdict(list)
    for row in query_rows(engine, _NODES)[1]:
        work = NodeWork(*row)
        by_graph[work.graph].append(work)
    return by_graph


def annotated(origin: KnownOrigin, work: NodeWork) -> KnownOrigin:
    """Return the origin with the node's own annotation: JSON of one or several objects with a name, or plain text."""
    if not work.annotation or origin.module is not None:
        return origin
    try:
        annotation: Any = msgspec.json.decode(work.annotation.encode())
    except msgspec.DecodeError:
        annotation = work.annotation
    items = annotation if isinstance(annotation, list) else [annotation]
    names = [str(item.get("name", item)) if isinstance(item, dict) else str(item) for item in items]
    if not names:
        return origin
    frames = tuple(StackFrame(-1, None, "range", name, 0) for name in names)
    if origin.certainty is None:
        return KnownOrigin(
            module="/".join(names), certainty=EXACT, how="by the annotation of its graph node", frames=frames
        )
    return origin._replace(module="/".join(names), frames=frames + origin.frames)
