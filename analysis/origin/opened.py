"""Replayed graphs opened: for each kernel the operator, shapes, module and source line, and how sure that is.

A replayed graph is matched with the captures of a trace: which captured node each position of it is.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from molprof.analysis.figures.sequence import align, align_by, gaps
from molprof.analysis.figures.shapes import Shapes
from molprof.analysis.origin.capture import CapturedCall, Node, Segment, grid_sql, sizes
from molprof.analysis.origin.read import Origins, StackFrame, modules_and_source, origins_of
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.errors import TraceError
from molprof.common.values import counted, short_name

EXACT, ALIGNED, LIKELY = "exact", "aligned", "likely"
# A capture with less of a graph's work is not the one it came from.
LEAST_FIT = 0.5
# Neighbours are known on both sides: so many kernels with other names between them are told by their place.
MOST_RENAMED = 3
# Share of equal operators with equal shapes that must meet equal kernels, where nothing but the order tells.
LEAST_CONSISTENT = 0.9
_BETWEEN = "by order between neighbours whose names are in order: the capture has no name of it"
_NUMBER = re.compile(r"\d+")
_NODES = Query(
    "graph_nodes",
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
    grid: str | None  # grid and block size; None where not read


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
    calls: tuple[CapturedCall, ...] = ()  # the operator with its arguments and those around it; () where not sure


@dataclass(frozen=True)
class Graph:
    """A graph and the capture that fits it."""

    number: int
    replays: int
    work: tuple[Work, ...]  # of all replays, in order of start
    captures: tuple[str, ...]  # those that fit equally; none without one that fits
    nodes: int  # of the capture
    unused: tuple[Node, ...]  # of the capture, that no position is
    doubts: tuple[str, ...]  # why nothing is sure, whatever matches
    consistent_ratio: float | None


class Difference(NamedTuple):
    """What a graph and the other run have between the same neighbours, and is not alike."""

    graph: int
    here: tuple[str, ...]  # names, in order
    there: tuple[str, ...]
    times: int


@dataclass(frozen=True)
class Opened:
    capture: str | None  # path of the trace with the capture phase
    segments: tuple[Segment, ...]
    graphs: tuple[Graph, ...]
    places: dict[int, Place]  # by slice of the work
    run: str | None = None  # path of the trace of another run, in place of a capture
    differences: tuple[Difference, ...] = ()
    # Of work outside graphs that was paired with the run's, and has an operator in both: the same one, and all.
    agreeing: tuple[int, int] = (0, 0)


class Pair(NamedTuple):
    """The node of a place, and how sure that is."""

    node: int
    certainty: str
    how: str


@dataclass(frozen=True)
class Match:
    pairs: dict[int, Pair]  # by place in the replayed work
    unused: tuple[int, ...]  # nodes that belong to no place
    consistent_ratio: float | None  # of pairs by order alone: equal operators that met equal kernels; None without any

    @property
    def weight(self) -> tuple[int, int, int]:
        """The more, the better it fits."""
        sure = sum(pair.certainty == ALIGNED for pair in self.pairs.values())
        return sure, len(self.pairs), -len(self.unused)


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


def captured_calls(opened: Opened) -> dict[int, tuple[CapturedCall, ...]]:
    """The calls of each piece of a graph's work, by its slice. Each replay has calls of its own: ids below 0."""
    numbers: dict[tuple[int, int, int], int] = {}
    found = {}
    for graph in opened.graphs:
        for work in graph.work:
            calls = opened.places[work.id].calls
            keys = [(graph.number, work.replay, call.id) for call in calls]
            found[work.id] = tuple(
                call._replace(id=numbers.setdefault(key, -1 - len(numbers)))
                for key, call in zip(keys, calls, strict=True)
            )
    return found


def graph_work(engine: TraceProcessor) -> dict[int, list[Work]]:
    """The work of all replays of each graph by its number, in order of start."""
    by_graph: defaultdict[int, list[Work]] = defaultdict(list)
    for row in query_rows(engine, _NODES)[1]:
        work = Work(*row)
        by_graph[work.graph].append(work)
    return by_graph


def _opened(engine: TraceProcessor, capture: str | None, segments: Sequence[Segment]) -> Opened:
    by_graph = graph_work(engine)
    ranges: dict[int, str] = dict(query_rows(engine, _RANGES)[1]) if segments and by_graph else {}
    places: dict[int, Place] = {}
    graphs = []
    for number, works in by_graph.items():
        first = [work for work in works if work.replay == 0]
        if all(work.node_id is not None for work in first):
            first.sort(key=lambda work: work.node_id or 0)  # nodes are numbered in the order of the capture
        found = best([(work.category, work.name) for work in first], segments)
        match, fitting = found or (Match({}, (), None), [])
        around = frozenset().union(*(sizes(ranges.get(launch, "")) for launch in {work.launch_id for work in works}))
        same_size = [item for item in fitting if around & segments[item].sizes]
        is_other = bool(around) and not same_size and all(segments[item].sizes for item in fitting)
        fitting = same_size or fitting
        names = tuple(segments[item].name for item in fitting)
        nodes = segments[fitting[0]].nodes if fitting else ()
        replays = len({work.replay for work in works})
        unused = tuple(nodes[item] for item in match.unused) if fitting else ()
        doubts = tuple(_doubts(first, match, nodes, names, around if is_other else None))
        graphs.append(Graph(number, replays, tuple(works), names, len(nodes), unused, doubts, match.consistent_ratio))
        pairs = {
            work.position: pair._replace(certainty=LIKELY, how="; ".join((pair.how, *doubts))) if doubts else pair
            for place, work in enumerate(first)
            if (pair := match.pairs.get(place)) is not None
        }
        # Captures that follow each other in the replays: equal pieces of one model, captured in one range; else 1.
        turns = len(names) if len(names) > 1 and len(set(names)) == 1 and replays % len(names) == 0 else 1
        known: dict[tuple[int, int | None], Place] = {}
        for work in works:
            key = work.replay % turns, work.position
            if key not in known:
                pair = pairs.get(work.position)
                chosen = fitting if turns == 1 else [fitting[key[0]]]
                found_place = Place() if pair is None else _place(segments, chosen, pair, turns)
                known[key] = found_place._replace(shapes=None, calls=()) if is_other else found_place
            places[work.id] = annotated(known[key], work)
    return Opened(capture, tuple(segments), tuple(graphs), places)


def _doubts(
    works: Sequence[Work], match: Match, nodes: Sequence[Node], names: Sequence[str], other: frozenset[str] | None
) -> Iterator[str]:
    """Why a match of names does not make the capture the one that is replayed. other: sizes that it does not have."""
    if names and other is not None:
        replayed = ", ".join(sorted(other, key=lambda number: (len(number), number)))
        yield f"{names[0]} is of another size than the replay ({replayed})"
    grids = [(works[place].grid, nodes[pair.node].grid) for place, pair in match.pairs.items()]
    if differ := sum(None not in pair and pair[0] != pair[1] for pair in grids):
        yield f"{counted(differ, 'kernel')} of another grid or block size than captured"
    if names and match.unused:
        yield f"{counted(len(match.unused), 'captured node')} without a match: not recorded, or of another graph"


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
        if any(node[3:-1] != nodes[0][3:-1] for node in nodes):  # ids of calls differ
            certainty, how = LIKELY, f"{how}; {len(nodes)} captures fit equally, and this is what they have in common"
    module, source = modules_and_source(frames)
    return Place(
        operator=common(node.operator for node in nodes),
        shapes=common(node.shapes for node in nodes),
        module=module,
        source=source,
        layer=common(node.layer for node in nodes),
        certainty=certainty,
        how=how,
        frames=frames,
        calls=nodes[0].calls if common(tuple(call[1:] for call in node.calls) for node in nodes) else (),
    )


def annotated(place: Place, work: Work) -> Place:
    """With what the annotation of the node itself tells: JSON of one or several objects with a name, or plain text."""
    if not work.annotation or place.module is not None:
        return place
    try:
        found: Any = msgspec.json.decode(work.annotation.encode())
    except msgspec.DecodeError:
        found = work.annotation
    items = found if isinstance(found, list) else [found]
    names = [str(item.get("name", item)) if isinstance(item, dict) else str(item) for item in items]
    if not names:
        return place
    frames = tuple(StackFrame(-1, None, "range", name, 0) for name in names)
    if place.certainty is None:
        return Place(module="/".join(names), certainty=EXACT, how="by the annotation of its graph node", frames=frames)
    return place._replace(module="/".join(names), frames=frames + place.frames)


def common(values: Iterable[Any]) -> Any:
    """The value, if all are equal; else None."""
    first, *rest = values
    return first if all(value == first for value in rest) else None


def best(work: Sequence[tuple[str, str]], segments: Sequence[Segment]) -> tuple[Match, list[int]] | None:
    """The best match of categories and names, and the numbers of the segments that it fits; None if none does."""
    names: Counter[tuple[str, str] | None] = Counter(_work_key(*item) for item in work)
    bounds = {}
    for number, segment in enumerate(segments):
        unnamed = sum(node.name is None and node.category == "kernel" for node in segment.nodes)
        common = (Counter(map(_node_key, segment.nodes)) & names).total()
        bounds[number] = min(len(work), common + unnamed)
    found: dict[int, tuple[tuple[int, int, int], Match]] = {}
    seen: dict[tuple[object, ...], Match] = {}
    for number in sorted(bounds, key=lambda item: (-bounds[item], item)):
        most = max((weight for weight, _ in found.values()), default=(0, 0, 0))
        if bounds[number] < max(LEAST_FIT * len(work), most[0]):
            break
        nodes = segments[number].nodes
        alike = tuple((node.category, node.name, node.operator, node.number) for node in nodes)
        match = seen[alike] = seen.get(alike) or match_nodes(work, nodes)
        found[number] = match.weight, match
    if not found:
        return None
    most = max(weight for weight, _ in found.values())
    equal = sorted(number for number, (weight, _) in found.items() if weight == most)
    match = found[equal[0]][1]
    return (match, equal) if len(match.pairs) >= LEAST_FIT * len(work) else None


def match_nodes(work: Sequence[tuple[str, str]], nodes: Sequence[Node]) -> Match:
    """Pairs by names in order, then by shortened names, then by the place between neighbours that are known."""
    here = [_work_key(*item) for item in work]
    there = [_node_key(node) for node in nodes]
    short = [(kind, plain_name(name)) for kind, name in here]
    short_nodes = [key and (key[0], plain_name(key[1])) for key in there]
    matches = align_by([(here, there), (short, short_nodes)])
    complete = len(matches) == len(work) == len(nodes)
    backwards = set()
    if not complete:
        pairs = align(here[::-1], there[::-1])
        backwards = {(len(work) - 1 - one, len(nodes) - 1 - two) for one, two in pairs}
    found: dict[int, Pair] = {}
    for one, two, level in matches:
        if level:
            found[one] = Pair(two, LIKELY, "by its name without namespaces and template arguments, in order")
        elif complete or (one, two) in backwards:
            how = (
                "by names in order, that of the same operator outside the capture"
                if nodes[two].learned
                else "by names in order"
            )
            found[one] = Pair(two, ALIGNED, how)
        else:
            found[one] = Pair(two, LIKELY, "by names in order; another place fits equally")
    by_place: dict[int, int] = {}
    enclosed: set[int] = set()  # between neighbours that are sure, as many as nodes: no other place is left
    for places, numbers in gaps(matches, len(work), len(nodes)):
        if [work[place][0] for place in places] == [nodes[number].category for number in numbers]:
            named = [number for number in numbers if nodes[number].name is not None]
            if len(named) <= MOST_RENAMED:
                by_place.update(zip(places, numbers, strict=True))
                ends = [place for place in (places.start - 1, places.stop) if 0 <= place < len(work)]
                if ends and all(found[place].certainty == ALIGNED for place in ends):
                    enclosed.update(places)
    ratio = _consistent(work, nodes, by_place)
    if ratio is None or ratio >= LEAST_CONSISTENT:
        for place, node in by_place.items():
            how = (
                "by order: the capture has no name of it"
                if nodes[node].name is None
                else "by its place; the names differ"
            )
            between = place in enclosed and nodes[node].name is None
            found[place] = Pair(node, ALIGNED, _BETWEEN) if between else Pair(node, LIKELY, how)
    used = {pair.node for pair in found.values()}
    return Match(found, tuple(number for number in range(len(nodes)) if number not in used), ratio)


def _consistent(work: Sequence[tuple[str, str]], nodes: Sequence[Node], pairs: dict[int, int]) -> float | None:
    """Share of equal operators with equal shapes that meet the same kernel as most of them do."""
    met: defaultdict[object, Counter[str]] = defaultdict(Counter)
    for place, number in pairs.items():
        node = nodes[number]
        if node.name is None and node.operator is not None:
            met[node.operator, node.shapes, node.number][work[place][1]] += 1
    several = [names for names in met.values() if names.total() > 1]
    total = sum(names.total() for names in several)
    return sum(max(names.values()) for names in several) / total if total else None


def plain_name(name: str) -> str:
    """The name without namespaces, arguments and template arguments: mangled or not, the same."""
    if not name.startswith("_ZN"):
        return short_name(name).partition("<")[0].partition("(")[0].rpartition("::")[2].split(" ")[-1]
    found, place = "", len("_ZN")
    while digits := _NUMBER.match(name, place):
        place = digits.end() + int(digits[0])
        found = name[digits.end() : place]
    return found or name


def _work_key(category: str, name: str) -> tuple[str, str]:
    return category, name if category == "kernel" else ""


def _node_key(node: Node) -> tuple[str, str] | None:
    """None where the name of a kernel is not known: it belongs to nothing by name."""
    if node.category != "kernel":
        return node.category, ""
    return None if node.name is None else (node.category, node.name)
