"""Matching of graph kernels with work of known origin: a capture of the graph, or a step of another run.

`name_kernels` takes the candidate that fits best, pairs both in order, and says how sure each name is. A capture holds
a graph node by node. Another run may fuse, split or leave out: what differs there between two pairs gets no name.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from molprof.analysis.facts.compiled import INDUCTOR_KERNEL
from molprof.analysis.figures.sequence import SPECIFIC, align, align_by, blocks, functions_in, gaps
from molprof.analysis.figures.shapes import Shapes
from molprof.analysis.origin.paths import StackFrame, modules_and_source
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
# So many repeats more or less of the block that repeats most are another number of layers. One may be hidden at an end.
_OTHER_LAYERS = 2
# Of so many segments of a run that fit equally, what they have in common is told.
_MOST_ALIKE = 4
_NUMBER = re.compile(r"\d+")
# What captures that fit equally may differ in.
_ORIGIN = attrgetter("grid", "operator", "shapes", "number", "layer", "frames")


class CapturedCall(NamedTuple):
    """An operator call during the capture of a graph."""

    id: int
    name: str
    operands: Operands


class Node(NamedTuple):
    """A piece of GPU work: replayed by a graph, captured as its node, or run by another run."""

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
    device: str | None = None
    step_id: int | None = None
    learned: bool = False  # the name is the one of an equal operator outside the capture
    shapes: Shapes | None = None  # of the operator's inputs; None where not recorded
    frames: tuple[StackFrame, ...] = ()  # inside the capture or the model, and the function around, outermost first
    calls: tuple[CapturedCall, ...] = ()  # the operator with recorded arguments, and those around it in the capture


@dataclass(frozen=True)
class Segment:
    """GPU work in order: of a capture, or of a step, module call or graph launch on one device."""

    name: str
    nodes: tuple[Node, ...]
    sizes: frozenset[Hashable] = frozenset()  # segments of one batch size have one in common; empty: not known
    size_text: str = ""
    captured: bool = False
    host_before: tuple[int, ...] = ()  # indices of the nodes that follow a host function in a capture
    replays: int = 1  # of the work, in which captures of equal pieces of a model may follow each other

    @cached_property
    def keys(self) -> tuple[Sequence[Hashable | None], ...]:
        """The keys by which the segment is paired, one per level as in _HOW; None for a kernel without a name."""
        names = [(node.category, node.name if node.category == "kernel" else node.cls or "") for node in self.nodes]
        named = [(kind, name) if name is not None else None for kind, name in names]
        short = [(kind, plain_name(name)) if name is not None else None for kind, name in names]
        if not any(node.cls for node in self.nodes):
            return tuple(named), short
        functions = [functions_in(name or "") for _, name in names]
        of_class = [(node.cls, called) if called else None for node, called in zip(self.nodes, functions, strict=True)]
        return tuple(named), short, of_class


class KnownOrigin(NamedTuple):
    """The known origin of a piece of work; None: not known."""

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
    """The candidate's node that matches a piece of work, and how sure the match is."""

    node: int
    certainty: str
    how: str


@dataclass(frozen=True)
class Named:
    """The origins that candidates give to a segment with graphs."""

    work: Segment
    segments: tuple[Segment, ...] = ()  # candidates that fit equally, of one kind; empty if none fits
    pairs: dict[int, Pair] = field(default_factory=dict)  # by index of the work, with nodes of the first candidate
    unused: tuple[int, ...] = ()  # nodes of a capture that are no work
    consistent_ratio: float | None = None  # of pairs by order alone: equal operators that met equal kernels
    unlike: tuple[tuple[range, range], ...] = ()  # work and nodes of a run between two pairs, which are not alike
    why_not: str = ""  # none fits
    doubts: tuple[str, ...] = ()  # why nothing is sure, whatever matches
    places: tuple[dict[int, KnownOrigin], ...] = ({},)  # by index of the work; of each replay in turn

    @property
    def weight(self) -> tuple[int, int, int]:
        """The weight of a match; the largest fits best."""
        sure = sum(pair.certainty == ALIGNED for pair in self.pairs.values())
        return sure, len(self.pairs), -len(self.unused)

    @property
    def both(self) -> list[tuple[Node, Node]]:
        """Each piece of work with its node."""
        return [(self.work.nodes[index], self.segments[0].nodes[pair.node]) for index, pair in self.pairs.items()]

    @property
    def agreeing(self) -> tuple[int, int]:
        """Pairs outside graphs with an operator on both sides: those with the same one, and all."""
        outside = [(one, two) for one, two in self.both if not one.in_graph and one.operator and two.operator]
        return sum(one.operator == two.operator for one, two in outside), len(outside)

    @property
    def same_size(self) -> bool | None:
        """True if equal kernels have equal sizes; None: not known of both."""
        if self.work.sizes & self.segments[0].sizes:
            return True
        return False if self.work.sizes and all(segment.sizes for segment in self.segments) else None


def name_kernels(works: Iterable[Segment], candidates: Sequence[Segment]) -> Iterator[Named]:
    """Yield the origins of graph kernels in each segment, from candidates: captures, or parts of a run."""
    # Found once for equal work.
    fits: dict[Hashable, Named] = {}
    origins: dict[Hashable, tuple[dict[int, KnownOrigin], ...]] = {}
    for work in works:
        key = work.keys[0], work.sizes, work.replays, tuple(node.in_graph for node in work.nodes)
        if key not in fits:
            fits[key] = _fit(work, candidates)
        named = replace(fits[key], work=work)
        if named.segments:
            named = replace(named, doubts=tuple(_doubts(named)))
            if (key, named.doubts) not in origins:
                origins[key, named.doubts] = tuple(_places(named))
            named = replace(named, places=origins[key, named.doubts])
        yield named


def _fit(work: Segment, candidates: Sequence[Segment]) -> Named:
    """Return the best match of the work, and the candidates that match it equally well."""
    total, names = len(work.nodes), Counter(work.keys[1])
    shared = [min(total, (names & Counter(item.keys[1])).total() + item.keys[1].count(None)) for item in candidates]
    ranked: dict[int, tuple[tuple[int, ...], Named]] = {}
    match_of: dict[Hashable, Named] = {}
    most: tuple[int, ...] = ()
    for number in sorted(range(len(candidates)), key=lambda number: -shared[number]):
        other = candidates[number]
        same_size = bool(work.sizes & other.sizes)
        # Steps of one size go first; numbers in the name of a capture may mean something else, and only break a tie.
        before, after = ((), (same_size,)) if other.captured else ((same_size,), ())
        least = LEAST_FIT * (total if other.captured else max(shared))
        if shared[number] < least or (*before, shared[number], total, 0, *after) < most:
            continue  # it cannot be better: a sure pair is of a name that both have, or of a node without one
        alike = other.keys[0], tuple((node.operator, node.number) for node in other.nodes if node.name is None)
        match = match_of[alike] = match_of.get(alike) or _match(work, other)
        rank = *before, *match.weight, *after
        ranked[number] = rank, match
        most = max(most, rank)
    equal = [candidates[number] for number in sorted(ranked) if ranked[number][0] == most]
    if not equal:
        return Named(work)
    first, match = equal[0], next(ranked[number][1] for number in sorted(ranked) if ranked[number][0] == most)
    graph = [index for index, node in enumerate(work.nodes) if node.in_graph]
    left_out = [] if first.captured else [
        index for index in graph if index not in match.pairs and INDUCTOR_KERNEL.match(work.nodes[index].name or "")
    ]  # fmt: skip
    ratio = sum(index in match.pairs for index in graph) / max(1, len(graph) - len(left_out))
    if ratio < LEAST_FIT:
        what = ", a compiler's left out," if left_out else ""
        return Named(work, why_not=f"at most {percent_text(ratio)} of a graph's kernels{what} are in a step of it")
    if first.captured:
        return replace(match, segments=tuple(equal))
    if why_not := _other_layers(work, first):
        return Named(work, why_not=why_not)
    same_names = [item for item in equal if item.keys[0] == first.keys[0]]
    return replace(match, segments=tuple(same_names[:_MOST_ALIKE]))


def _match(here: Segment, there: Segment) -> Named:
    """Pair work by keys in order, level by level, then pair the rest between."""
    total, other_total = len(here.nodes), len(there.nodes)
    matches = align_by(list(zip(here.keys, there.keys, strict=False)))
    complete = len(matches) == total == other_total
    backwards = set()
    if not complete:
        pairs = align(here.keys[0][::-1], there.keys[0][::-1])
        backwards = {(total - 1 - one, other_total - 1 - two) for one, two in pairs}
    pairs_of: dict[int, Pair] = {}
    for one, two, level in matches:
        if level:
            pairs_of[one] = Pair(two, LIKELY, _HOW[level])
        elif complete or (one, two) in backwards:
            learned = ", that of the same operator outside the capture" if there.nodes[two].learned else ""
            pairs_of[one] = Pair(two, ALIGNED, _HOW[0] + learned)
        else:
            pairs_of[one] = Pair(two, LIKELY, f"{_HOW[0]}; another position fits equally")
    rest = list(gaps(matches, total, other_total))
    return (_by_order if there.captured else _by_class)(here, there, pairs_of, rest)


def _by_order(here: Segment, there: Segment, pairs: dict[int, Pair], rest: Sequence[tuple[range, range]]) -> Named:
    """Pair the work and nodes between two pairs if equally many, unless equal operators would get unequal kernels."""
    node_of: dict[int, int] = {}
    enclosed: set[int] = set()  # between neighbours that are sure, as many as nodes: no other position is left
    for indices, others in rest:
        work, nodes = here.nodes[indices.start : indices.stop], there.nodes[others.start : others.stop]
        alike = [node.category for node in work] == [node.category for node in nodes]
        if alike and sum(node.name is not None for node in nodes) <= MOST_RENAMED:
            node_of.update(zip(indices, others, strict=True))
            ends = [index for index in (indices.start - 1, indices.stop) if 0 <= index < len(here.nodes)]
            if ends and all(pairs[index].certainty == ALIGNED for index in ends):
                enclosed.update(indices)
    ratio = _consistent(here, there, node_of)
    for index, number in node_of.items() if ratio is None or ratio >= LEAST_CONSISTENT else ():
        if there.nodes[number].name is not None:
            pairs[index] = Pair(number, LIKELY, "by its place; the names differ")
        elif index in enclosed:
            how = "by order between neighbours whose names are in order: the capture has no name of it"
            pairs[index] = Pair(number, ALIGNED, how)
        else:
            pairs[index] = Pair(number, LIKELY, "by order: the capture has no name of it")
    unused = sorted(set(range(len(there.nodes))) - {pair.node for pair in pairs.values()})
    return Named(here, (there,), pairs, tuple(unused), ratio)


def _consistent(here: Segment, there: Segment, pairs: dict[int, int]) -> float | None:
    """Return the share of equal operators with equal shapes that have the most common kernel; None without any."""
    met: defaultdict[object, Counter[str | None]] = defaultdict(Counter)
    for index, number in pairs.items():
        node = there.nodes[number]
        if node.name is None and node.operator is not None:
            met[node.operator, node.shapes, node.number][here.nodes[index].name] += 1
    several = [names for names in met.values() if names.total() > 1]
    total = sum(names.total() for names in several)
    return sum(max(names.values()) for names in several) / total if total else None


def _by_class(here: Segment, there: Segment, pairs: dict[int, Pair], rest: Sequence[tuple[range, range]]) -> Named:
    """Pair runs of one class between two pairs if they are as long on both sides."""
    unlike = []
    for gap in rest:
        for (cls, mine), (other_cls, theirs) in _runs(here, there, *gap):
            if cls == other_cls and cls in SPECIFIC and len(mine) == len(theirs):
                how = "by its class, between the same neighbours; the names differ"
                pairs.update((index, Pair(other, LIKELY, how)) for index, other in zip(mine, theirs, strict=True))
            elif mine or theirs:
                unlike.append((mine, theirs))
    return Named(here, (there,), pairs, unlike=tuple(unlike))


def _runs(
    here: Segment, there: Segment, indices: range, others: range
) -> Iterator[tuple[tuple[str | None, range], tuple[str | None, range]]]:
    """Yield the parts of two gaps, cut where their classes change, if they are the same in the same order.

    Else around the only attention, or the only collective, of both; else whole, as of no class.
    """
    both: list[list[tuple[str | None, range]]] = []
    for side, inside in ((here, indices), (there, others)):
        groups = [(cls, list(group)) for cls, group in groupby(inside, key=lambda index: side.nodes[index].cls)]
        both.append([(cls, range(group[0], group[-1] + 1)) for cls, group in groups])
    if [cls for cls, _ in both[0]] == [cls for cls, _ in both[1]]:
        yield from zip(*both, strict=True)
        return
    for cls in _ALONE:
        alone = [[run for name, run in side if name == cls] for side in both]
        if [len(runs) for runs in alone] == [1, 1]:
            (one,), (two,) = alone
            yield (None, range(indices.start, one.start)), (None, range(others.start, two.start))
            yield (cls, one), (cls, two)
            yield (None, range(one.stop, indices.stop)), (None, range(two.stop, others.stop))
            return
    yield (None, indices), (None, others)


def _other_layers(here: Segment, there: Segment) -> str:
    """Return the reason why they are of models with different numbers of layers; empty if nothing shows that."""
    folded = []
    for names in (here.keys[1], there.keys[1]):
        block = max(blocks(names), key=lambda block: (block.times - 1) * block.length)
        folded.append((Counter(names[block.start : block.start + block.length]), block.times))
    (one, times), (two, others) = folded
    if one != two or abs(times - others) < _OTHER_LAYERS:
        return ""
    return f"its layer of {counted(one.total(), 'kernel')} runs {others:,} times, here {times:,} times"


def _doubts(named: Named) -> Iterator[str]:
    """Yield reasons why a match of names may be of another graph, or of other sizes."""
    work, first, unused = named.work, named.segments[0], len(named.unused)
    if named.same_size is False:
        yield (
            f"{first.name} is of another size than the replay ({work.size_text})" if first.captured
            else f"another size: the other run has a {first.size_text}, this one a {work.size_text}"
        )  # fmt: skip
    alike = [
        one.grid == two.grid
        for one, two in named.both
        if None not in (one.grid, two.grid)
        and (first.captured or (one.in_graph and one.name == two.name and one.cls not in _BY_CONTEXT))
    ]
    if (differ := alike.count(False)) and first.captured:
        yield f"{counted(differ, 'kernel')} of another grid or block size than captured"
    elif differ:
        what = f"{differ:,} of {counted(len(alike), 'kernel')} of equal name"
        yield f"{what} have another grid or block size: another batch, or another model"
    if unused:
        yield f"{counted(unused, 'captured node')} without a match: not recorded, or of another graph"
    same, of = named.agreeing
    if same < LEAST_CONSISTENT * of:
        yield f"{of - same:,} of {counted(of, 'pair')} outside graphs have another operator"


def _places(named: Named) -> Iterator[dict[int, KnownOrigin]]:
    """Yield the known origins by index of the work; several where the candidates alternate in the replays."""
    work, segments, doubts = named.work, named.segments, named.doubts
    if segments[0].captured:
        is_equal = named.same_size is not False
    else:
        # Without a word on sizes and grids, nothing tells that they are equal.
        grids = all(any(node.grid for node in side.nodes) for side in (work, segments[0]))
        is_equal = not doubts and (grids or named.same_size is True)
    turns: Sequence[Sequence[Segment]] = [segments]
    # Equal pieces of one model are captured in one range.
    if len(segments) > 1 and len({item.name for item in segments}) == 1 and work.replays % len(segments) == 0:
        turns = [[item] for item in segments]
        doubts = (*doubts, f"{len(segments)} captures fit equally, taken in turns")
    for turn in turns:
        yield {
            index: _place([item.nodes[pair.node] for item in turn], pair, doubts, segments[0].captured, is_equal)
            for index, pair in named.pairs.items()
            if work.nodes[index].in_graph
        }


def _place(nodes: Sequence[Node], pair: Pair, doubts: Sequence[str], captured: bool, is_equal: bool) -> KnownOrigin:
    """Return the common origin of candidates that match equally. is_equal: shapes are those of the replay too."""
    frames, how = nodes[0].frames, [pair.how, *doubts]
    if captured and len(nodes) > 1:
        columns = zip(*(node.frames for node in nodes), strict=False)
        same = takewhile(lambda column: len({(frame.kind, frame.name) for frame in column}) == 1, columns)
        frames = frames[: sum(1 for _ in same)]
        if _common(map(_ORIGIN, nodes)) is None:
            how.append(f"{len(nodes)} captures fit equally, and this is what they have in common")
    elif _common(modules_and_source(node.frames) for node in nodes) is None:
        frames = ()
    module, source = modules_and_source(frames)
    has_calls = is_equal and _common(tuple(call[1:] for call in node.calls) for node in nodes)
    return KnownOrigin(
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
    """Return the value, if all are equal; else None."""
    first, *rest = values
    return first if all(value == first for value in rest) else None


def plain_name(name: str) -> str:
    """Return the name without namespaces, arguments and template arguments, also for mangled names."""
    if not name.startswith("_ZN"):
        return short_name(name).partition("<")[0].partition("(")[0].rpartition("::")[2].split(" ")[-1]
    last, end = "", len("_ZN")
    while digits := _NUMBER.match(name, end):
        end = digits.end() + int(digits[0])
        last = name[digits.end() : end]
    return last or name
