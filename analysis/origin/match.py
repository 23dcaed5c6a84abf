"""A replayed graph and the capture that it came from: which captured node each position of the graph is."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from molprof.analysis.figures.sequence import align, align_by, gaps
from molprof.analysis.origin.capture import Node, Segment
from molprof.common.values import short_name

_DIGITS = re.compile(r"\d+")
# A capture with less of a graph's work is not the one it came from.
LEAST_FIT = 0.5
# Neighbours are known on both sides: so many kernels with other names between them are told by their place.
MOST_RENAMED = 3
# Share of equal operators with equal shapes that must meet equal kernels, where nothing but the order tells.
LEAST_CONSISTENT = 0.9

ALIGNED, LIKELY = "aligned", "likely"


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


def best(work: Sequence[tuple[str, str]], segments: Sequence[Segment]) -> tuple[Match, list[int]] | None:
    """The best match of categories and names, and the numbers of the segments that it fits; None if none does."""
    names: Counter[tuple[str, str] | None] = Counter(_work_key(*item) for item in work)
    bounds = {}
    for number, segment in enumerate(segments):
        unnamed = sum(node.name is None and node.category == "kernel" for node in segment.nodes)
        common = (Counter(map(_node_key, segment.nodes)) & names).total()
        bounds[number] = min(len(work), common + unnamed)
    found: list[tuple[tuple[int, int, int], int, Match]] = []
    seen: dict[tuple[object, ...], Match] = {}
    for number in sorted(bounds, key=lambda item: (-bounds[item], item)):
        if bounds[number] < LEAST_FIT * len(work) or (found and bounds[number] < max(found)[0][0]):
            break
        nodes = segments[number].nodes
        alike = tuple((node.category, node.name, node.operator, node.number) for node in nodes)
        match = seen[alike] = seen.get(alike) or match_nodes(work, nodes)
        found.append((match.weight, -number, match))
    if not found:
        return None
    most = max(weight for weight, _, _ in found)
    equal = sorted(-number for weight, number, _ in found if weight == most)
    match = next(match for weight, number, match in found if -number == equal[0])
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
    for places, numbers in gaps(matches, len(work), len(nodes)):
        if [work[place][0] for place in places] == [nodes[number].category for number in numbers]:
            named = [number for number in numbers if nodes[number].name is not None]
            if len(named) <= MOST_RENAMED:
                by_place.update(zip(places, numbers, strict=True))
    ratio = _consistent(work, nodes, by_place)
    if ratio is None or ratio >= LEAST_CONSISTENT:
        for place, node in by_place.items():
            how = (
                "by order: the capture has no name of it"
                if nodes[node].name is None
                else "by its place; the names differ"
            )
            found[place] = Pair(node, LIKELY, how)
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
    while digits := _DIGITS.match(name, place):
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
