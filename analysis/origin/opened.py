"""Replayed graphs opened: for each kernel the operator, shapes, module and source line, and how sure that is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from molprof.analysis.figures.shapes import Shapes
from molprof.analysis.origin.capture import Node, Segment
from molprof.analysis.origin.match import LIKELY, Match, Pair, best
from molprof.analysis.origin.read import Origins, StackFrame, origins_of, path_of
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.errors import TraceError

EXACT = "exact"
_NODES = Query(
    "graph_nodes",
    """
SELECT id, launch_id, graph, replay, position, ts, dur, name, category, node_id, annotation
FROM molprof_graph_node ORDER BY ts, id
""",
)
# Ranges around the launches, steps too: they name the batch size.
_RANGES = Query(
    "graph_nodes",
    """
SELECT replay.launch_id, GROUP_CONCAT(ancestor.name, ' ') AS names
FROM molprof_graph_replay AS replay
JOIN ancestor_slice(replay.launch_id) AS ancestor
WHERE ancestor.category = 'user_annotation'
GROUP BY replay.launch_id
""",
)
_NUMBER = re.compile(r"\d+")


class Work(NamedTuple):
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


class Place(NamedTuple):
    """What is known of a piece of work; None: not known."""

    operator: str | None = None
    shapes: Shapes | None = None
    module: str | None = None  # modules and ranges, the outermost first, with / between them
    source: str | None = None  # file(line): name
    layer: int | None = None
    certainty: str | None = None  # exact, aligned, likely; None: nothing is known
    how: str = "nothing tells where it comes from"
    frames: tuple[StackFrame, ...] = ()


@dataclass(frozen=True)
class Graph:
    """A graph and the capture that fits it."""

    number: int
    replays: int
    work: tuple[Work, ...]  # of all replays, in order of start
    captures: tuple[str, ...]  # those that fit equally; none without one that fits
    nodes: int  # of the capture
    unused: tuple[Node, ...]  # of the capture, that no position is
    consistent_ratio: float | None


@dataclass(frozen=True)
class Opened:
    capture: str | None  # path of the trace with the capture phase
    segments: tuple[Segment, ...]
    graphs: tuple[Graph, ...]
    places: dict[int, Place]  # by slice of the work


def read_opened(
    engine: TraceProcessor, info: TraceInfo, capture: str | None = None, segments: Sequence[Segment] = ()
) -> tuple[Origins, Opened]:
    """The origins of a trace that was loaded with stacks, its graphs opened with the captures in another trace.

    capture: path of that trace. Raises TraceError where there is one, and no graph is replayed.
    """
    origins = origins_of(engine, info)
    opened = _opened(engine, capture, segments)
    if capture is not None and not opened.graphs:
        raise TraceError(f"{info.path} replays no graph", hint="leave out --graph-capture")
    captured = {number: place.frames for number, place in opened.places.items() if place.frames}
    return replace(origins, captured=captured), opened


def _opened(engine: TraceProcessor, capture: str | None, segments: Sequence[Segment]) -> Opened:
    by_graph: defaultdict[int, list[Work]] = defaultdict(list)
    for row in query_rows(engine, _NODES)[1]:
        work = Work(*row)
        by_graph[work.graph].append(work)
    ranges: dict[int, str] = dict(query_rows(engine, _RANGES)[1]) if segments and by_graph else {}
    places: dict[int, Place] = {}
    graphs = []
    for number, works in by_graph.items():
        first = [work for work in works if work.replay == 0]
        if all(work.node_id is not None for work in first):
            first.sort(key=lambda work: work.node_id or 0)  # nodes are numbered in the order of the capture
        found = best([(work.category, work.name) for work in first], segments)
        match, fitting = found or (Match({}, (), None), [])
        around = {numbers for work in works for numbers in _numbers(ranges.get(work.launch_id, ""))}
        named = [item for item in fitting if around & set(_numbers(segments[item].name))]
        fitting = named or fitting
        graphs.append(
            Graph(
                number=number,
                replays=len({work.replay for work in works}),
                work=tuple(works),
                captures=tuple(segments[item].name for item in fitting),
                nodes=len(segments[fitting[0]].nodes) if fitting else 0,
                unused=tuple(segments[fitting[0]].nodes[item] for item in match.unused) if fitting else (),
                consistent_ratio=match.consistent_ratio,
            )
        )
        pairs = {
            work.position: pair for place, work in enumerate(first) if (pair := match.pairs.get(place)) is not None
        }
        turns = _turns(graphs[-1])
        known: dict[tuple[int, int | None], Place] = {}
        for work in works:
            key = work.replay % turns, work.position
            if key not in known:
                pair = pairs.get(work.position)
                chosen = fitting if turns == 1 else [fitting[key[0]]]
                known[key] = Place() if pair is None else _place(segments, chosen, pair, turns)
            places[work.id] = _annotated(known[key], work)
    return Opened(capture, tuple(segments), tuple(graphs), places)


def _turns(graph: Graph) -> int:
    """How many captures follow each other in the replays: equal pieces of one model, captured in one range; else 1."""
    pieces = len(graph.captures)
    return pieces if pieces > 1 and len(set(graph.captures)) == 1 and graph.replays % pieces == 0 else 1


def _place(segments: Sequence[Segment], fitting: Sequence[int], pair: Pair, turns: int) -> Place:
    """What the nodes of captures that fit equally have in common."""
    nodes = [segments[item].nodes[pair.node] for item in fitting]
    certainty, how = pair.certainty, pair.how
    if turns > 1:
        certainty, how = LIKELY, f"{how}; {turns} captures fit equally, taken in turns"
    frames = nodes[0].frames
    if len(nodes) > 1:
        columns = zip(*(node.frames for node in nodes), strict=False)
        same = takewhile(lambda column: len({(frame.kind, frame.name) for frame in column}) == 1, columns)
        frames = frames[: sum(1 for _ in same)]
        if any(node[3:] != nodes[0][3:] for node in nodes):
            certainty, how = LIKELY, f"{how}; {len(nodes)} captures fit equally, and this is what they have in common"
    paths = {by: path_of(by, frames) for by in ("module", "source")}
    module, source = (
        "/".join(name for _, name in path) if by == "module" else path[-1][1] if path[0][0] != "none" else None
        for by, path in paths.items()
    )
    return Place(
        operator=_common(node.operator for node in nodes),
        shapes=_common(node.shapes for node in nodes),
        module=module if paths["module"][0][0] != "none" else None,
        source=source,
        layer=_common(node.layer for node in nodes),
        certainty=certainty,
        how=how,
        frames=frames,
    )


def _annotated(place: Place, work: Work) -> Place:
    """With what the annotation of the node itself tells."""
    names = _annotation(work.annotation)
    if not names or place.module is not None:
        return place
    frames = tuple(StackFrame(-1, None, "range", name, 0) for name in names)
    if place.certainty is None:
        return Place(module="/".join(names), certainty=EXACT, how="by the annotation of its graph node", frames=frames)
    return place._replace(module="/".join(names), frames=frames + place.frames)


def _annotation(text: str | None) -> list[str]:
    """Names in an annotation, the outermost first: JSON of one or several objects with a name, or plain text."""
    if not text:
        return []
    try:
        found: Any = msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        return [text]
    items = found if isinstance(found, list) else [found]
    return [str(item.get("name", item)) if isinstance(item, dict) else str(item) for item in items]


def _common(values: Iterable[Any]) -> Any:
    """The value, if all are equal."""
    first, *rest = values
    return first if all(value == first for value in rest) else None


def _numbers(text: str) -> list[str]:
    return _NUMBER.findall(text)
