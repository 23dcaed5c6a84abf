"""Names for the kernels of graphs from another run of the same program, in which no graph ran.

Both runs are cut alike: into steps where both mark them, else into calls of the outermost module, of the replays also
into single launches. What ran in each is aligned in the order of the calls, by names as `compare --by kernel` has them.
What stands between two pairs and is not alike on both sides is told as a difference, and gets no name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from molprof.analysis.figures.sequence import SPECIFIC, align, align_by, blocks, gaps
from molprof.analysis.figures.shapes import input_shapes
from molprof.analysis.origin.capture import Node
from molprof.analysis.origin.opened import (
    ALIGNED,
    LEAST_CONSISTENT,
    LEAST_FIT,
    LIKELY,
    Difference,
    Graph,
    Opened,
    Place,
    Work,
    annotated,
    common,
    graph_work,
)
from molprof.analysis.origin.read import Origins, modules_and_source, origins_of
from molprof.analysis.origin.stretches import HOW, Stretch, inner, order, read_items, read_steps, stretches_of
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import NotComparableError, TraceError
from molprof.common.values import counted, percent_text

# The grids of these follow the contexts, which differ between runs of one batch size.
_BY_CONTEXT = frozenset({"attention", "cache-write"})
# What is fused into nothing else: one of each between the same neighbours is the same, whatever is around it.
_ALONE = ("attention", "collective")
# Names that a compiler makes, which a run without it does not have.
_COMPILED = re.compile(r"triton_[a-z]+_fused_")
_WITHOUT_GRAPHS = "record with graphs off: enforce_eager=True (vLLM), --disable-cuda-graph (SGLang)"
# So many repeats more or less of the block that repeats most are another number of layers. One may be hidden at an end.
_OTHER_LAYERS = 2
# Of so many stretches that fit equally, what they have in common is told.
_MOST_ALIKE = 4


class _Pair(NamedTuple):
    other: int  # place in the stretch of the other run
    certainty: str
    how: str


class _Match(NamedTuple):
    pairs: dict[int, _Pair]  # by place in the stretch with graphs
    unlike: tuple[tuple[range, range], ...]  # places of both between two pairs, which belong to nothing

    @property
    def weight(self) -> tuple[int, int]:
        """The more, the better it fits."""
        return sum(pair.certainty == ALIGNED for pair in self.pairs.values()), len(self.pairs)


@dataclass(frozen=True)
class Run:
    """A run without graphs: its stretches, and each piece of work as the node that it would be in a graph."""

    path: str
    stretches: tuple[Stretch, ...]
    nodes: dict[int, Node]
    has_steps: bool
    graphs: str  # that it replays some itself, whose kernels name nothing; empty if it does not
    # What is found once for stretches of equal names and size.
    found: dict[Hashable, tuple[_Match, list[int], str]] = field(default_factory=dict)
    places: dict[Hashable, dict[int, Place]] = field(default_factory=dict)

    def best(self, stretch: Stretch) -> tuple[_Match, list[int], str]:
        """The best match; some of the stretches that fit equally, of one size and names; why not alike."""
        asked = stretch.names, stretch.size
        if asked in self.found:
            return self.found[asked]
        here = Counter(stretch.keys[1])
        matches: dict[Hashable, _Match] = {}
        fitting: dict[int, tuple[bool, tuple[int, int]]] = {}
        shared = [(here & Counter(other.keys[1])).total() for other in self.stretches]
        for number, other in enumerate(self.stretches):
            # Libraries have names of their own for half of it, not for more.
            if shared[number] >= LEAST_FIT * max(shared):
                found = matches[other.names] = matches.get(other.names) or _match(stretch, other)
                fitting[number] = stretch.size is not None and stretch.size == other.size, found.weight
        most = max(fitting.values())
        equal = [number for number, worth in fitting.items() if worth == most]
        names = self.stretches[equal[0]].names
        equal = [number for number in equal if self.stretches[number].names == names]
        self.found[asked] = matches[names], equal[:_MOST_ALIKE], _other_layers(stretch, self.stretches[equal[0]])
        return self.found[asked]


@dataclass(frozen=True)
class _Named:
    """A stretch with graphs, and what the other run tells of it."""

    stretch: Stretch
    other: Stretch
    match: _Match
    places: dict[int, Place]  # by place in the stretch
    doubts: tuple[str, ...]
    agreeing: tuple[int, int]  # pairs outside graphs with an operator on both sides: the same one, and all


def read_run(engine: TraceProcessor, info: TraceInfo) -> Run:
    """What a trace that was loaded with stacks and all arguments tells of the kernels of graphs.

    Raises TraceError where it replays graphs itself, or tells no operator, step or module.
    """
    origins, shapes = origins_of(engine, info), input_shapes(engine)
    items = read_items(engine)
    inside = sum(item.in_graph for item in items)
    graphs = f"replays graphs itself: {inside:,} of {counted(len(items), 'piece')} of work" if inside else ""
    if inside and inside == len(items):
        raise TraceError(f"{info.path} {graphs}", hint=_WITHOUT_GRAPHS)
    items = [item for item in items if not item.in_graph and item.call_id is not None]
    if all(item.operator is None for item in items):
        raise TraceError(f"{info.path} has no operator that starts GPU work", hint="record the CPU's activity too")
    nodes = {
        item.id: Node(
            category=item.category,
            name=item.name,
            learned=False,
            grid=item.grid,
            operator=item.operator,
            shapes=None if item.operator_id is None else shapes.get(item.operator_id),
            number=item.number,
            layer=item.layer,
            frames=inner(origins.chain(item.frame_id)),
        )
        for item in items
    }
    steps = read_steps(engine)
    stretches = tuple(stretches_of(origins, sorted(items, key=order), steps))
    if not stretches:
        what = f"{info.path} marks neither steps nor modules, so no step is found in it"
        raise TraceError(
            what, hint="record with with_stack=True, or with record_function('decode step N') around steps"
        )
    return Run(info.path, stretches, nodes, bool(steps), graphs)


def read_named(engine: TraceProcessor, info: TraceInfo, run: Run) -> tuple[Origins, Opened]:
    """The origins of a trace that was loaded with stacks and all arguments, its graphs named from another run.

    Raises TraceError where it replays no graph, NotComparableError where the run is not one of the same program.
    """
    origins = origins_of(engine, info)
    of_graphs = graph_work(engine)
    if not of_graphs:
        raise TraceError(f"{info.path} replays no graph", hint="leave out --names-from")
    node_ids = {work.id: work.node_id for works in of_graphs.values() for work in works}
    items = [item for item in read_items(engine) if item.call_id is not None]
    items.sort(key=lambda item: (item.asked_ts, node_ids.get(item.id) or 0, item.ts, item.id))
    steps = read_steps(engine) if run.has_steps else {}
    found = [
        _named(stretch, run)
        for stretch in stretches_of(origins, items, steps, launches=True)
        if any(item.in_graph for item in stretch.items)
    ]
    named = [item for item in found if isinstance(item, _Named)]
    if not named:
        why = max(item for item in found if isinstance(item, str))
        if run.graphs:
            raise NotComparableError(f"{run.path} {run.graphs}", hint=_WITHOUT_GRAPHS)
        hint = "record the same model, at the same batch sizes, with graphs off"
        raise NotComparableError(f"{run.path} names no graph of {info.path}: {why}", hint=hint)
    opened = _opened(origins, of_graphs, named, run)
    captured = {number: place.frames for number, place in opened.places.items() if place.frames}
    return replace(origins, captured=captured), opened


def _named(stretch: Stretch, run: Run) -> _Named | str:
    """What the other run tells of a stretch; a text that says why nothing."""
    match, fitting, layers = run.best(stretch)
    other = run.stretches[fitting[0]]
    graph = [place for place, item in enumerate(stretch.items) if item.in_graph]
    expected = [place for place in graph if place in match.pairs or not _COMPILED.match(stretch.items[place].name)]
    ratio = sum(place in match.pairs for place in graph) / max(1, len(expected))
    if ratio < LEAST_FIT:
        what = "" if len(expected) == len(graph) else ", a compiler's left out,"
        return f"at most {percent_text(ratio)} of a graph's kernels{what} are in a step of it"
    if layers:
        return layers
    sure = tuple(_doubts(stretch, other, match))
    key = stretch.names, stretch.size, sure
    if key not in run.places:
        # Without a word on sizes and grids, nothing tells that they are equal.
        grids = all(any(item.grid for item in side.items) for side in (stretch, other))
        equal = not sure and (grids or (stretch.size is not None and stretch.size == other.size))
        run.places[key] = {}
        for place in graph:
            if (pair := match.pairs.get(place)) is not None:
                nodes = [run.nodes[run.stretches[number].items[pair.other].id] for number in fitting]
                found = _place(nodes, pair, sure)
                run.places[key][place] = found if equal else found._replace(shapes=None)
    return _Named(stretch, other, match, run.places[key], sure, _agreeing(stretch, other, match))


def _match(here: Stretch, there: Stretch) -> _Match:
    """Pairs by names in order, then by shortened names and functions, then by class where all between is alike."""
    matches = align_by(list(zip(here.keys, there.keys, strict=True)))
    complete = len(matches) == len(here.items) == len(there.items)
    backwards = set()
    if not complete:
        pairs = align(here.keys[0][::-1], there.keys[0][::-1])
        backwards = {(len(here.items) - 1 - one, len(there.items) - 1 - two) for one, two in pairs}
    found: dict[int, _Pair] = {}
    for one, two, level in matches:
        if level:
            found[one] = _Pair(two, LIKELY, HOW[level])
        elif complete or (one, two) in backwards:
            found[one] = _Pair(two, ALIGNED, HOW[0])
        else:
            found[one] = _Pair(two, LIKELY, f"{HOW[0]}; another place fits equally")
    unlike = []
    for places, others in gaps(matches, len(here.items), len(there.items)):
        for (cls, mine), (other_cls, theirs) in _by_class(here, places, there, others):
            if cls == other_cls and cls in SPECIFIC and len(mine) == len(theirs):
                how = "by its class, between the same neighbours; the names differ"
                found.update((place, _Pair(other, LIKELY, how)) for place, other in zip(mine, theirs, strict=True))
            elif mine or theirs:
                unlike.append((mine, theirs))
    return _Match(found, tuple(unlike))


def _by_class(
    here: Stretch, places: range, there: Stretch, others: range
) -> Iterator[tuple[tuple[str | None, range], tuple[str | None, range]]]:
    """Two gaps cut where their classes change, if they are the same in the same order.

    Else around the only attention, or the only collective, of both; else whole, as of no class.
    """
    runs = [
        [(cls, range(group[0], group[-1] + 1)) for cls, group in _grouped(side, inside)]
        for side, inside in ((here, places), (there, others))
    ]
    if [cls for cls, _ in runs[0]] == [cls for cls, _ in runs[1]]:
        yield from zip(*runs, strict=True)
        return
    for cls in _ALONE:
        both = [[run for name, run in side if name == cls] for side in runs]
        if [len(found) for found in both] == [1, 1]:
            (one,), (two,) = both
            yield (None, range(places.start, one.start)), (None, range(others.start, two.start))
            yield (cls, one), (cls, two)
            yield (None, range(one.stop, places.stop)), (None, range(two.stop, others.stop))
            return
    yield (None, places), (None, others)


def _grouped(stretch: Stretch, places: range) -> Iterator[tuple[str | None, list[int]]]:
    for cls, group in groupby(places, key=lambda place: stretch.items[place].cls):
        yield cls, list(group)


def _other_layers(here: Stretch, there: Stretch) -> str:
    """Why they are of models with other numbers of layers; empty where nothing says so."""
    folded = []
    for stretch in (here, there):
        names = stretch.keys[1]
        block = max(blocks(names), key=lambda block: (block.times - 1) * block.length)
        folded.append((Counter(names[block.start : block.start + block.length]), block.times))
    (one, times), (two, others) = folded
    if one != two or abs(times - others) < _OTHER_LAYERS:
        return ""
    return f"its layer of {counted(one.total(), 'kernel')} runs {others:,} times, here {times:,} times"


def _doubts(here: Stretch, there: Stretch, match: _Match) -> Iterator[str]:
    """Why a match of names does not make the other run one of the same sizes, or operators."""
    if here.step and there.step and None not in (here.size, there.size) and here.size != there.size:
        yield f"another size: the other run has a {there.step.text}, this one a {here.step.text}"
    pairs = [(here.items[one], there.items[pair.other]) for one, pair in match.pairs.items()]
    alike = [
        (one.grid, two.grid)
        for one, two in pairs
        if one.in_graph and one.name == two.name and one.cls not in _BY_CONTEXT and one.grid and two.grid
    ]
    if differ := sum(one != two for one, two in alike):
        what = f"{differ:,} of {counted(len(alike), 'kernel')} of equal name"
        yield f"{what} have another grid or block size: another batch, or another model"
    same, of = _agreeing(here, there, match)
    if same < LEAST_CONSISTENT * of:
        yield f"{of - same:,} of {counted(of, 'pair')} outside graphs have another operator"


def _agreeing(here: Stretch, there: Stretch, match: _Match) -> tuple[int, int]:
    """Of the pairs outside graphs with an operator on both sides, those with the same one, and all."""
    pairs = [(here.items[one], there.items[pair.other]) for one, pair in match.pairs.items()]
    both = [(one.operator, two.operator) for one, two in pairs if not one.in_graph and one.operator and two.operator]
    return sum(one == two for one, two in both), len(both)


def _place(nodes: Sequence[Node], pair: _Pair, doubts: Sequence[str]) -> Place:
    """What the nodes of stretches that fit equally have in common."""
    frames = nodes[0].frames
    module, source = modules_and_source(frames)
    if any(modules_and_source(node.frames) != (module, source) for node in nodes):
        frames, module, source = (), None, None
    return Place(
        operator=common(node.operator for node in nodes),
        shapes=common(node.shapes for node in nodes),
        module=module,
        source=source,
        layer=common(node.layer for node in nodes),
        certainty=LIKELY if doubts else pair.certainty,
        how="; ".join((pair.how, *doubts)),
        frames=frames,
    )


def _opened(origins: Origins, of_graphs: dict[int, list[Work]], named: Sequence[_Named], run: Run) -> Opened:
    places: dict[int, Place] = {}
    by_launch: dict[int, _Named] = {}
    cut: dict[tuple[int, int | None], Place] = {}
    for item in named:
        for number, work in enumerate(item.stretch.items):
            if work.in_graph and work.call_id is not None:
                by_launch[work.call_id] = item
                if number in item.places:
                    places[work.id] = _below(origins, work.frame_id, item.places[number], cut)
    graphs, differences = [], []
    for number, works in of_graphs.items():
        launches = dict.fromkeys(work.launch_id for work in works)
        told = [(launch, by_launch[launch]) for launch in launches if launch in by_launch]
        unlike = Counter(item for each in told for item in _unlike(*each))
        differences += [Difference(number, *item, count) for item, count in unlike.items()]
        graphs.append(
            Graph(
                number,
                len({work.replay for work in works}),
                tuple(works),
                tuple(dict.fromkeys(item.other.name for _, item in told)),
                max((len(item.other.items) for _, item in told), default=0),
                (),
                tuple(dict.fromkeys(doubt for _, item in told for doubt in item.doubts)),
                None,
            )
        )
    nothing = Place(how="the other run has nothing like it at its place")
    places = {work.id: annotated(places.get(work.id, nothing), work) for works in of_graphs.values() for work in works}
    agreeing = sum(item.agreeing[0] for item in named), sum(item.agreeing[1] for item in named)
    return Opened(None, (), tuple(graphs), places, run.path, tuple(differences), agreeing)


def _below(origins: Origins, launch: int | None, place: Place, known: dict[tuple[int, int | None], Place]) -> Place:
    """A place without what stands around the launch of the graph too. Equal ones share their frames."""
    key = id(place.frames), launch
    if key not in known:
        around = {(frame.kind, frame.name) for frame in origins.chain(launch)}
        frames = place.frames
        while frames and (frames[0].kind, frames[0].name) in around:
            frames = frames[1:]
        module, source = modules_and_source(frames)
        known[key] = place._replace(frames=frames, module=module or place.module, source=source or place.source)
    found = known[key]
    return place._replace(frames=found.frames, module=found.module, source=found.source)


def _unlike(launch: int, named: _Named) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Names of what a launch and the other run have between the same neighbours, where that is not alike."""
    items = named.stretch.items
    for here, there in named.match.unlike:
        inside = [items[place].name for place in here if items[place].call_id == launch]
        # What stands before or after all of the graph's work is none of it.
        around = [items[place].call_id for place in (here.start - 1, here.stop) if 0 <= place < len(items)]
        if inside or (not here and around == [launch, launch]):
            yield tuple(inside), tuple(named.other.items[place].name for place in there)
