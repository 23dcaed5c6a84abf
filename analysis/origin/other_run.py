"""Names for the kernels of graphs from another run of the same program, in which no graph ran.

Both runs are cut alike: into steps where both mark them, else into calls of the outermost module, of the replays also
into single launches. What ran in each is aligned in the order of the calls, by names as `compare --by kernel` has them.
What stands between two pairs and is not alike on both sides is told as a difference, and gets no name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import dropwhile

from molprof.analysis.figures.shapes import input_shapes
from molprof.analysis.origin.capture import grid_sql
from molprof.analysis.origin.match import KnownOrigin, Named, Node, Segment, name_kernels
from molprof.analysis.origin.opened import (
    GraphDifference,
    NodeWork,
    Opened,
    annotated,
    graph_of,
    graph_work,
    with_captured,
)
from molprof.analysis.origin.paths import StackFrame, modules_and_source
from molprof.analysis.origin.read import Origins, origins_of
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.errors import NotComparableError, TraceError
from molprof.common.values import counted

_WITHOUT_GRAPHS = "record with graphs off: enforce_eager=True (vLLM), --disable-cuda-graph (SGLang)"
# In the order of the calls; nodes of a graph are numbered in the order of its capture.
_WORK = Query(
    "origin",
    f"""
INCLUDE PERFETTO MODULE molprof.graphs;
SELECT
  work.id, work.category, work.name, {grid_sql("slice.arg_set_id")} AS grid, work.class,
  IIF(work.operator_id IS NULL, NULL, IFNULL(work.operator, '(no name)')) AS operator, work.operator_id,
  0 AS number, work.layer, work.frame_id, work.call_id, work.in_graph, work.device, work.step_id, work.ts
FROM molprof_origin AS work
JOIN slice USING (id)
LEFT JOIN slice AS call ON call.id = work.call_id
LEFT JOIN _molprof_graph_work AS node ON node.id = work.id
ORDER BY IFNULL(call.ts, work.ts), IFNULL(node.node_id, 0), work.ts, work.id
""",
)
_STEPS = Query("steps", "SELECT id, name, kind, prompt_sequences, prompt_tokens, tokens FROM molprof_any_step")


@dataclass(frozen=True)
class OtherRun:
    """A run without graphs, and each piece of its work as the node that it would be in a graph."""

    path: str
    segments: tuple[Segment, ...]
    has_steps: bool
    graphs: str  # that it replays some itself, whose kernels name nothing; empty if it does not


def read_run(engine: TraceProcessor, info: TraceInfo) -> OtherRun:
    """Read the kernels of graphs in a trace that was loaded with stacks and all arguments.

    Raises TraceError where it replays graphs itself, or records no operator, step or module.
    """
    origins, shapes = origins_of(engine, info), input_shapes(engine)
    nodes = _read_work(engine)
    inside = sum(node.in_graph for node in nodes)
    graphs = f"replays graphs itself: {inside:,} of {counted(len(nodes), 'piece')} of work" if inside else ""
    if inside and inside == len(nodes):
        raise TraceError(f"{info.path} {graphs}", hint=_WITHOUT_GRAPHS)
    nodes = [node for node in nodes if not node.in_graph and node.call_id is not None]
    if all(node.operator is None for node in nodes):
        raise TraceError(f"{info.path} has no operator that starts GPU work", hint="record the CPU's activity too")
    with_frames = (
        node._replace(
            shapes=None if node.operator_id is None else shapes.get(node.operator_id),
            frames=_inner(origins.chain(node.frame_id)),
        )
        for node in nodes
    )
    steps = _read_steps(engine)
    segments = tuple(_segments(origins, with_frames, steps))
    if not segments:
        what = f"{info.path} marks neither steps nor modules, so no step is found in it"
        raise TraceError(
            what, hint="record with with_stack=True, or with record_function('decode step N') around steps"
        )
    return OtherRun(info.path, segments, bool(steps), graphs)


def read_named(engine: TraceProcessor, info: TraceInfo, run: OtherRun) -> tuple[Origins, Opened]:
    """Return the origins of a trace that was loaded with stacks and all arguments, its graphs named from another run.

    Raises TraceError where it replays no graph, NotComparableError where the run is not one of the same program.
    """
    origins = origins_of(engine, info)
    of_graphs = graph_work(engine)
    if not of_graphs:
        raise TraceError(f"{info.path} replays no graph", hint="leave out --names-from")
    nodes = [node for node in _read_work(engine) if node.call_id is not None]
    segments = _segments(origins, nodes, _read_steps(engine) if run.has_steps else {}, launches=True)
    with_graphs = (item for item in segments if any(node.in_graph for node in item.nodes))
    matched = list(name_kernels(with_graphs, run.segments))
    named = [item for item in matched if item.segments]
    if not named:
        why = max(item.why_not for item in matched)
        if run.graphs:
            raise NotComparableError(f"{run.path} {run.graphs}", hint=_WITHOUT_GRAPHS)
        hint = "record the same model, at the same batch sizes, with graphs off"
        raise NotComparableError(f"{run.path} names no graph of {info.path}: {why}", hint=hint)
    opened = _opened(origins, of_graphs, named, run.path)
    return with_captured(origins, opened), opened


def _read_work(engine: TraceProcessor) -> list[Node]:
    """Return the work of a trace, in the order of its calls."""
    rows = query_rows(engine, _WORK)[1]
    counts: Counter[int | None] = Counter()  # of work of each operator, by start
    numbers = {}
    for row in sorted(rows, key=lambda row: (row[14], row[0])):
        numbers[row[0]] = counts[row[6]]
        counts[row[6]] += 1
    return [Node(*row[:14])._replace(number=numbers[row[0]]) for row in rows]


def _read_steps(engine: TraceProcessor) -> dict[int, Segment]:
    """Return steps by id, without their work.

    Those that compute equally many rows have one size; none where that is not recorded.
    """
    steps = {}
    for number, name, kind, *amounts in query_rows(engine, _STEPS)[1]:
        size = frozenset[Hashable]() if amounts == [None] * 3 else frozenset({(kind, *amounts)})
        rows = zip(amounts[1:], ("prompt token", "new token"), strict=True)
        text = " and ".join(counted(amount, what) for amount, what in rows if amount)
        steps[number] = Segment(name, (), size, f"{kind or 'step'} of {text}")
    return steps


def _inner(chain: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
    """Return the frames that a graph's launch lacks: from the outermost module on, else from the last function on."""
    modules = [index for index, frame in enumerate(chain) if frame.kind == "module"]
    functions = [index for index, frame in enumerate(chain) if frame.kind == "function"]
    return tuple(chain[(modules[:1] or functions[-1:] or [0])[0] :])


def _segments(
    origins: Origins, work: Iterable[Node], steps: dict[int, Segment], launches: bool = False
) -> Iterator[Segment]:
    """Yield work by device and step; without steps by the outermost module's call; else, with `launches`, by launch."""

    @cache
    def module(frame_id: int | None) -> StackFrame | None:
        return next((frame for frame in origins.chain(frame_id) if frame.kind == "module"), None)

    groups: dict[Hashable, tuple[Segment, list[Node]]] = {}
    for node in work:
        key: tuple[str, int | None]
        if node.step_id in steps:
            key, segment = ("step", node.step_id), steps[node.step_id]
        elif not steps and (frame := module(node.frame_id)) is not None:
            key, segment = ("module", frame.id), Segment(frame.name, ())
        elif launches and node.in_graph:
            key, segment = ("launch", node.call_id), Segment("launch", ())
        else:
            continue
        groups.setdefault((node.device, *key), (segment, []))[1].append(node)
    for segment, nodes in groups.values():
        yield replace(segment, nodes=tuple(nodes))


def _opened(origins: Origins, of_graphs: dict[int, list[NodeWork]], named: Sequence[Named], run: str) -> Opened:
    by_id: dict[int, KnownOrigin] = {}
    by_launch: dict[int | None, Named] = {}
    cut: dict[tuple[int, int | None], KnownOrigin] = {}  # what is equal shares its frames
    for item in named:
        for index, node in enumerate(item.work.nodes):
            if node.in_graph:
                by_launch[node.call_id] = item
            if (origin := item.places[0].get(index)) is not None:
                key = id(origin), node.frame_id
                by_id[node.id] = cut[key] = cut.get(key) or _below(origins, node.frame_id, origin)
    graphs, differences = [], []
    for number, works in of_graphs.items():
        launches = dict.fromkeys(work.launch_id for work in works)
        named_of = {launch: by_launch[launch] for launch in launches if launch in by_launch}
        unlike = Counter(item for each in named_of.items() for item in _unlike(*each))
        differences += [GraphDifference(number, *item, count) for item, count in unlike.items()]
        graphs.append(graph_of(works, list(named_of.values())))
    nothing = KnownOrigin(how="the other run has nothing like it at its place")
    by_id = {work.id: annotated(by_id.get(work.id, nothing), work) for works in of_graphs.values() for work in works}
    agreeing = sum(item.agreeing[0] for item in named), sum(item.agreeing[1] for item in named)
    return Opened(None, (), tuple(graphs), by_id, run, tuple(differences), agreeing)


def _below(origins: Origins, launch: int | None, origin: KnownOrigin) -> KnownOrigin:
    """Return an origin without the frames that the launch of the graph has too."""
    around = {(frame.kind, frame.name) for frame in origins.chain(launch)}
    frames = tuple(dropwhile(lambda frame: (frame.kind, frame.name) in around, origin.frames))
    module, source = modules_and_source(frames)
    return origin._replace(frames=frames, module=module or origin.module, source=source or origin.source)


def _unlike(launch: int, named: Named) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the names of differing work of a launch and the other run between the same neighbours."""
    nodes = named.work.nodes
    for here, there in named.unlike:
        inside = [nodes[index].name or "" for index in here if nodes[index].call_id == launch]
        # What stands before or after all of the graph's work is none of it.
        around = [nodes[index].call_id for index in (here.start - 1, here.stop) if 0 <= index < len(nodes)]
        if inside or (not here and around == [launch, launch]):
            yield tuple(inside), tuple(named.segments[0].nodes[index].name or "" for index in there)
