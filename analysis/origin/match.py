"""Kernels of graphs, named by work whose origin is known: a capture of the graph, or a step of another run.

`name_kernels` takes the candidate that fits best, pairs both in order, and says how sure each name is. A capture holds a
graph node by node. Another run may fuse, split or leave out: what differs there between two pairs gets no name.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from molprof.analysis.figures.sequence import SPECIFIC, align, align_by, blocks, functions_in, gaps
from molprof.analysis.figures.shapes import Shapes
from molprof.analysis.origin.read import StackFrame, modules_and_source
from molprof.analysis.roofline.operands import Operands
from molprof.common.values import counted, percent_text, short_name

EXACT, ALIGNED, LIKELY = "exact", "aligned", "likely"
# A candidate with less of a graph's work is not the one that it is. Of a run's, this share of the best one's: libraries
# have names of their own for half of it, not for more.
LEAST_FIT = 0.5
# Neighbours are known on both sides: so many kernels with other names between them are told by their place.
MOST_RENAMED = 3
# Share of equal operators with equal shapes that must meet equal kernels, where nothing but the order tells. Also share
# of pairs outside graphs that must have one operator.
LEAST_CONSISTENT = 0.9
# How a pair by each of the keys of a segment was found.
_HOW = (
    "by names in order",
    "by its name without namespaces and template arguments, in order",
    "by its class and the function in its name, in order",
)
# The grids of these follow the contexts, which differ between runs of one batch size.
_BY_CONTEXT = frozenset({"attention", "cache-write"})
# What is fused into nothing else: one of each between the same neighbours is the same, whatever is around it.
_ALONE = ("attention", "collective")
# Names that a compiler makes, which a run without it does not have.
_COMPILED = re.compile(r"triton_[a-z]+_fused_")
# So many repeats more or less of the block that repeats most are another number of layers. One may be hidden at an end.
_OTHER_LAYERS = 2
# Of so many segments of a run that fit equally, what they have in common is told.
_MOST_ALIKE = 4
_NUMBER = re.compile(r"\d+")
# What captures that fit equally may differ in.
_ORIGIN = attrgetter("grid", "operator", "shapes", "number", "layer", "frames")


class CapturedCall(NamedTuple):
    """An operator that was called while a graph was captured."""

    id: int
    name: str
    operands: Operands


class Node(NamedTuple):
    """A piece of GPU work: one that a graph replays, one that was captured as its node, or one of another run."""

    id: int  # its slice; of a captured one its call
    category: str  # kernel, gpu_memcpy or gpu_memset
    name: str | None  # of the kernel; None where neither the captured call nor a run outside the capture tells it
    grid: str | None  # grid and block size, as the name is known; None where not recorded, or of a copy or set
    cls: str | None = None  # class of kernels or copies; None in a capture
    operator: str | None = None
    operator_id: int | None = None
    number: int = 0  # of the work, or captured call, among those of its operator
    layer: int | None = None
    frame_id: int | None = None
    call_id: int | None = None
    in_graph: int = 1
    learned: bool = False  # the name is the one of an equal operator outside the capture
    shapes: Shapes | None = None  # of the operator's inputs; None where not recorded
    frames: tuple[StackFrame, ...] = ()  # what is around it, and not around the launch of the graph, outermost first
    calls: tuple[CapturedCall, ...] = ()  # the operator with recorded arguments, and those around it in the capture


@dataclass(frozen=True)
class Segment:
    """GPU work in order: a capture, or what a step, call of a module or graph launch did on one device."""

    name: str
    nodes: tuple[Node, ...]
    sizes: frozenset[Hashable] = frozenset()  # segments of one batch size have one in common; empty: not known
    size_text: str = ""

    @cached_property
    def keys(self) -> tuple[tuple[Hashable | None, ...], ...]:
        """What it is paired by, level by level as in _HOW; None for a kernel without a name."""
        names = [
            None if node.name is None and node.category == "kernel"
            else (node.category, node.name if node.category == "kernel" else node.cls or "")
            for node in self.nodes
        ]  # fmt: skip
        short = [key and (key[0], plain_name(key[1] or "")) for key in names]
        if not any(node.cls for node in self.nodes):
            return tuple(names), tuple(short)
        functions = [functions_in(key[1] or "") if key else () for key in names]
        of_class = [(node.cls, found) if found else None for node, found in zip(self.nodes, functions, strict=True)]
        return tuple(names), tuple(short), tuple(of_class)


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


class Pair(NamedTuple):
    """The node of a candidate that a piece of work is, and how sure that is."""

    node: int
    certainty: str
    how: str


@dataclass(frozen=True)
class Match:
    pairs: dict[int, Pair] = field(default_factory=dict)  # by index of the work
    unused: tuple[int, ...] = ()  # nodes of a capture that are no work
    consistent_ratio: float | None = None  # of pairs by order alone: equal operators that met equal kernels
    unlike: tuple[tuple[range, range], ...] = ()  # work and nodes of a run between two pairs, which are not alike

    @property
    def weight(self) -> tuple[int, int, int]:
        """The more, the better it fits."""
        sure = sum(pair.certainty == ALIGNED for pair in self.pairs.values())
        return sure, len(self.pairs), -len(self.unused)


class Fit(NamedTuple):
    """The candidates that fit equally, none without one that fits; how the first does; and why none fits."""

    segments: tuple[Segment, ...] = ()
    match: Match = Match()
    why_not: str = ""


@dataclass(frozen=True)
class Candidates:
    """Segments of one trace, all of them captures or none."""

    segments: tuple[Segment, ...]
    captured: bool
    # What is found once for equal work.
    fits: dict[Hashable, Fit] = field(default_factory=dict)
    places: dict[Hashable, tuple[dict[int, Place], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Named:
    """What candidates tell of a segment with graphs."""

    work: Segment
    fit: Fit
    places: tuple[dict[int, Place], ...] = ({},)  # by index of the work; of each replay in turn
    doubts: tuple[str, ...] = ()  # why nothing is sure, whatever matches
    agreeing: tuple[int, int] = (0, 0)  # pairs outside graphs with an operator on both sides: the same one, and all


def name_kernels(work: Segment, candidates: Candidates, replays: int = 1) -> Named:
    """What the kernels of graphs in a segment are, as far as the candidates tell.

    replays: of the work, in which captures of equal pieces of a model follow each other.
    """
    key = work.keys[0], work.sizes, tuple(node.in_graph for node in work.nodes)
    if key not in candidates.fits:
        candidates.fits[key] = _fit(work, candidates)
    fit = candidates.fits[key]
    if not fit.segments:
        return Named(work, fit)
    first, captured = fit.segments[0], candidates.captured
    pairs = [(work.nodes[index], first.nodes[pair.node]) for index, pair in fit.match.pairs.items()]
    both = [(one.operator, two.operator) for one, two in pairs if not one.in_graph and one.operator and two.operator]
    agreeing = sum(one == two for one, two in both), len(both)
    same_size = bool(work.sizes & first.sizes)
    other_size = not same_size and bool(work.sizes) and all(segment.sizes for segment in fit.segments)
    doubts = tuple(_doubts(work, fit, pairs, captured, other_size, agreeing))
    # Equal pieces of one model are captured in one range.
    in_turns = len({id(item) for item in fit.segments}) > 1 and len({item.name for item in fit.segments}) == 1
    turns = len(fit.segments) if in_turns and replays % len(fit.segments) == 0 else 1
    if (key, doubts, turns) not in candidates.places:
        grids = all(any(node.grid for node in side.nodes) for side in (work, first))
        # Without a word on sizes and grids, nothing tells that a run's are equal.
        is_equal = not other_size if captured else not doubts and (grids or same_size)
        candidates.places[key, doubts, turns] = tuple(
            {
                index: _place([item.nodes[pair.node] for item in segments], pair, doubts, captured, is_equal, turns)
                for index, pair in fit.match.pairs.items()
                if work.nodes[index].in_graph
            }
            for segments in ([fit.segments] if turns == 1 else zip(fit.segments, strict=True))
        )
    return Named(work, fit, candidates.places[key, doubts, turns], doubts, agreeing)


def _fit(work: Segment, candidates: Candidates) -> Fit:
    """The best match of the work, and the candidates that it fits equally."""
    segments, captured, total = candidates.segments, candidates.captured, len(work.nodes)
    names = Counter(work.keys[1])
    shared = [min(total, (names & Counter(item.keys[1])).total() + item.keys[0].count(None)) for item in segments]
    least = LEAST_FIT * (total if captured else max(shared))
    ranks: dict[int, tuple[Any, ...]] = {}
    matches: dict[Hashable, Match] = {}
    found: dict[int, Match] = {}
    for number in sorted(range(len(segments)), key=lambda number: -shared[number]):
        other = segments[number]
        same_size = bool(work.sizes & other.sizes)

        def rank(weight: tuple[int, int, int], same_size: bool = same_size) -> tuple[Any, ...]:
            # Sizes of a capture are numbers in names, of which some may mean something else.
            return (weight, same_size) if captured else (same_size, weight)

        if shared[number] < least or rank((shared[number], total, 0)) < max(ranks.values(), default=()):
            continue
        alike = other.keys[0], tuple((node.operator, node.number) for node in other.nodes if node.name is None)
        found[number] = matches[alike] = matches.get(alike) or _match(work, other, captured)
        ranks[number] = rank(found[number].weight)
    if not ranks:
        return Fit()
    most = max(ranks.values())
    equal = [segments[number] for number in sorted(ranks) if ranks[number] == most]
    match = found[min(number for number in ranks if ranks[number] == most)]
    if not captured:
        equal = [item for item in equal if item.keys[0] == equal[0].keys[0]][:_MOST_ALIKE]
    graph = [index for index, node in enumerate(work.nodes) if node.in_graph]
    expected = [
        index for index in graph
        if captured or index in match.pairs or not _COMPILED.match(work.nodes[index].name or "")
    ]  # fmt: skip
    ratio = sum(index in match.pairs for index in graph) / max(1, len(expected))
    if ratio < LEAST_FIT:
        what = "" if len(expected) == len(graph) else ", a compiler's left out,"
        return Fit(why_not=f"at most {percent_text(ratio)} of a graph's kernels{what} are in a step of it")
    if not captured and (why := _other_layers(work, equal[0])):
        return Fit(why_not=why)
    return Fit(tuple(equal), match)


def _match(here: Segment, there: Segment, captured: bool) -> Match:
    """Pairs by keys in order, level by level, then of what is left between them."""
    total, other_total = len(here.nodes), len(there.nodes)
    matches = align_by(list(zip(here.keys, there.keys, strict=False)))
    complete = len(matches) == total == other_total
    backwards = set()
    if not complete:
        pairs = align(here.keys[0][::-1], there.keys[0][::-1])
        backwards = {(total - 1 - one, other_total - 1 - two) for one, two in pairs}
    found: dict[int, Pair] = {}
    for one, two, level in matches:
        if level:
            found[one] = Pair(two, LIKELY, _HOW[level])
        elif complete or (one, two) in backwards:
            learned = ", that of the same operator outside the capture" if there.nodes[two].learned else ""
            found[one] = Pair(two, ALIGNED, _HOW[0] + learned)
        else:
            found[one] = Pair(two, LIKELY, f"{_HOW[0]}; another place fits equally")
    rest = list(gaps(matches, total, other_total))
    return _by_order(here, there, found, rest) if captured else _by_class(here, there, found, rest)


def _by_order(here: Segment, there: Segment, found: dict[int, Pair], rest: Sequence[tuple[range, range]]) -> Match:
    """With as many pieces of work as nodes between two pairs, unless equal operators would be different kernels."""
    by_place: dict[int, int] = {}
    enclosed: set[int] = set()  # between neighbours that are sure, as many as nodes: no other place is left
    for places, others in rest:
        work, nodes = here.nodes[places.start : places.stop], there.nodes[others.start : others.stop]
        alike = [node.category for node in work] == [node.category for node in nodes]
        if alike and sum(node.name is not None for node in nodes) <= MOST_RENAMED:
            by_place.update(zip(places, others, strict=True))
            ends = [place for place in (places.start - 1, places.stop) if 0 <= place < len(here.nodes)]
            if ends and all(found[place].certainty == ALIGNED for place in ends):
                enclosed.update(places)
    ratio = _consistent(here, there, by_place)
    for place, number in by_place.items() if ratio is None or ratio >= LEAST_CONSISTENT else ():
        if there.nodes[number].name is not None:
            found[place] = Pair(number, LIKELY, "by its place; the names differ")
        elif place in enclosed:
            how = "by order between neighbours whose names are in order: the capture has no name of it"
            found[place] = Pair(number, ALIGNED, how)
        else:
            found[place] = Pair(number, LIKELY, "by order: the capture has no name of it")
    used = {pair.node for pair in found.values()}
    return Match(found, tuple(number for number in range(len(there.nodes)) if number not in used), ratio)


def _consistent(here: Segment, there: Segment, pairs: dict[int, int]) -> float | None:
    """Share of equal operators with equal shapes that meet the same kernel as most of them do; None without any."""
    met: defaultdict[object, Counter[str | None]] = defaultdict(Counter)
    for place, number in pairs.items():
        node = there.nodes[number]
        if node.name is None and node.operator is not None:
            met[node.operator, node.shapes, node.number][here.nodes[place].name] += 1
    several = [names for names in met.values() if names.total() > 1]
    total = sum(names.total() for names in several)
    return sum(max(names.values()) for names in several) / total if total else None


def _by_class(here: Segment, there: Segment, found: dict[int, Pair], rest: Sequence[tuple[range, range]]) -> Match:
    """With runs of one class between two pairs, of which both sides have as many."""
    unlike = []
    for gap in rest:
        for (cls, mine), (other_cls, theirs) in _runs(here, there, *gap):
            if cls == other_cls and cls in SPECIFIC and len(mine) == len(theirs):
                how = "by its class, between the same neighbours; the names differ"
                found.update((place, Pair(other, LIKELY, how)) for place, other in zip(mine, theirs, strict=True))
            elif mine or theirs:
                unlike.append((mine, theirs))
    return Match(found, unlike=tuple(unlike))


def _runs(
    here: Segment, there: Segment, places: range, others: range
) -> Iterator[tuple[tuple[str | None, range], tuple[str | None, range]]]:
    """Two gaps cut where their classes change, if they are the same in the same order.

    Else around the only attention, or the only collective, of both; else whole, as of no class.
    """
    both: list[list[tuple[str | None, range]]] = []
    for side, inside in ((here, places), (there, others)):
        groups = [(cls, list(group)) for cls, group in groupby(inside, key=lambda place: side.nodes[place].cls)]  # noqa: B023
        both.append([(cls, range(group[0], group[-1] + 1)) for cls, group in groups])
    if [cls for cls, _ in both[0]] == [cls for cls, _ in both[1]]:
        yield from zip(*both, strict=True)
        return
    for cls in _ALONE:
        alone = [[run for name, run in side if name == cls] for side in both]
        if [len(runs) for runs in alone] == [1, 1]:
            (one,), (two,) = alone
            yield (None, range(places.start, one.start)), (None, range(others.start, two.start))
            yield (cls, one), (cls, two)
            yield (None, range(one.stop, places.stop)), (None, range(two.stop, others.stop))
            return
    yield (None, places), (None, others)


def _other_layers(here: Segment, there: Segment) -> str:
    """Why they are of models with other numbers of layers; empty where nothing says so."""
    folded = []
    for names in (here.keys[1], there.keys[1]):
        block = max(blocks(names), key=lambda block: (block.times - 1) * block.length)
        folded.append((Counter(names[block.start : block.start + block.length]), block.times))
    (one, times), (two, others) = folded
    if one != two or abs(times - others) < _OTHER_LAYERS:
        return ""
    return f"its layer of {counted(one.total(), 'kernel')} runs {others:,} times, here {times:,} times"


def _doubts(
    work: Segment,
    fit: Fit,
    pairs: Sequence[tuple[Node, Node]],
    captured: bool,
    other_size: bool,
    agreeing: tuple[int, int],
) -> Iterator[str]:
    """Why a match of names does not make the candidate the one that is replayed, or one of the same sizes."""
    first = fit.segments[0]
    if other_size and captured:
        yield f"{first.name} is of another size than the replay ({work.size_text})"
    elif other_size:
        yield f"another size: the other run has a {first.size_text}, this one a {work.size_text}"
    alike = [
        one.grid == two.grid
        for one, two in pairs
        if None not in (one.grid, two.grid)
        and (captured or (one.in_graph and one.name == two.name and one.cls not in _BY_CONTEXT))
    ]
    if (differ := alike.count(False)) and captured:
        yield f"{counted(differ, 'kernel')} of another grid or block size than captured"
    elif differ:
        what = f"{differ:,} of {counted(len(alike), 'kernel')} of equal name"
        yield f"{what} have another grid or block size: another batch, or another model"
    if fit.match.unused:
        yield f"{counted(len(fit.match.unused), 'captured node')} without a match: not recorded, or of another graph"
    same, of = agreeing
    if same < LEAST_CONSISTENT * of:
        yield f"{of - same:,} of {counted(of, 'pair')} outside graphs have another operator"


def _place(
    nodes: Sequence[Node], pair: Pair, doubts: Sequence[str], captured: bool, is_equal: bool, turns: int
) -> Place:
    """What the nodes of candidates that fit equally have in common. is_equal: shapes are those of the replay too."""
    frames, how = nodes[0].frames, [pair.how, *doubts]
    if turns > 1:
        how.append(f"{turns} captures fit equally, taken in turns")
    if captured and len(nodes) > 1:
        columns = zip(*(node.frames for node in nodes), strict=False)
        same = takewhile(lambda column: len({(frame.kind, frame.name) for frame in column}) == 1, columns)
        frames = frames[: sum(1 for _ in same)]
        if any(_ORIGIN(node) != _ORIGIN(nodes[0]) for node in nodes):  # ids of calls differ
            how.append(f"{len(nodes)} captures fit equally, and this is what they have in common")
    elif any(modules_and_source(node.frames) != modules_and_source(frames) for node in nodes[1:]):
        frames = ()
    module, source = modules_and_source(frames)
    has_calls = is_equal and _common(tuple(call[1:] for call in node.calls) for node in nodes)
    return Place(
        operator=_common(node.operator for node in nodes),
        shapes=_common(node.shapes for node in nodes) if is_equal else None,
        module=module,
        source=source,
        layer=_common(node.layer for node in nodes),
        certainty=pair.certainty if len(how) == 1 else LIKELY,
        how="; ".join(how),
        frames=frames,
        calls=nodes[0].calls if has_calls else (),
    )


def _common(values: Iterable[Any]) -> Any:
    """The value, if all are equal; else None."""
    first, *rest = values
    return first if all(value == first for value in rest) else None


def plain_name(name: str) -> str:
    """The name without namespaces, arguments and template arguments: mangled or not, the same."""
    if not name.startswith("_ZN"):
        return short_name(name).partition("<")[0].partition("(")[0].rpartition("::")[2].split(" ")[-1]
    found, place = "", len("_ZN")
    while digits := _NUMBER.match(name, place):
        place = digits.end() + int(digits[0])
        found = name[digits.end() : place]
    return found or name
