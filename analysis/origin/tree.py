"""A tree of amounts: what each node did itself, and with all below it; identical layers folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from molprof.common.values import class_names

# Suffix _ns: a time. operator_ns: time of CPU operators without those that they call. step_: inside recorded steps.
AMOUNTS = (
    "gpu_ns",
    "kernels",
    "memory_operations",
    "launches",
    "graph_launches",
    "syncs",
    "sync_ns",
    "operators",
    "operator_ns",
    "step_launches",
)
# Deeper frames count for the one at this depth.
MOST_DEPTH = 300

Amounts = tuple[int, ...]  # in the order of AMOUNTS
NOTHING: Amounts = (0,) * len(AMOUNTS)


@dataclass
class Node:
    """A frame of the tree, such as a module, with its children in the order of their first event."""

    name: str
    kind: str  # root, phase, module, range, function, library, operator, class, kernel, or none: without origin
    own: list[int] = field(default_factory=lambda: list(NOTHING))
    children: dict[tuple[str, str], Node] = field(default_factory=dict)
    count: int = 1  # nodes that are folded into this one

    def child(self, kind: str, name: str) -> Node:
        """The child of that name, which is made if it is not there."""
        found = self.children.get((kind, name))
        if found is None:
            found = self.children[kind, name] = Node(name, kind)
        return found

    def add(self, amounts: dict[str, int]) -> None:
        for name, amount in amounts.items():
            self.own[_PLACES[name]] += amount


@dataclass(frozen=True)
class Tree:
    """A node that is finished: its amounts do not change any more."""

    name: str
    kind: str
    count: int  # identical siblings that are folded into it
    own: Amounts
    inclusive: Amounts  # own and that of all children
    children: tuple[Tree, ...]

    def amount(self, name: str, own: bool = False) -> int:
        return (self.own if own else self.inclusive)[_PLACES[name]]

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Tree]]:
        """Every node with its depth, parents before their children."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "count": self.count,
            "inclusive": dict(zip(AMOUNTS, self.inclusive, strict=True)),
            "own": dict(zip(AMOUNTS, self.own, strict=True)),
            "children": [child.to_json() for child in self.children],
        }


_PLACES = {name: place for place, name in enumerate(AMOUNTS)}


def finished(node: Node, fold: bool) -> Tree:
    """The tree below the node. With `fold`, siblings of one class that did the same become one node.

    They did the same if they have equal children and numbers of launches, kernels, syncs and so on; times may differ.
    """
    children = tuple(finished(child, fold) for child in node.children.values())
    if fold:
        alike: dict[Any, list[Tree]] = {}
        for child in children:
            alike.setdefault(_signature(child), []).append(child)
        children = tuple(_merged(same) for same in alike.values())
    own = tuple(node.own)
    return Tree(node.name, node.kind, node.count, own, _sum([own, *(child.inclusive for child in children)]), children)


def _merged(same: Sequence[Tree]) -> Tree:
    """Trees of one signature as one."""
    first = same[0]
    if len(same) == 1:
        return first
    inner = (_merged(column) for column in zip(*(item.children for item in same), strict=True))
    return Tree(
        name=class_names(first.name),
        kind=first.kind,
        count=sum(item.count for item in same),
        own=_sum([item.own for item in same]),
        inclusive=_sum([item.inclusive for item in same]),
        children=tuple(inner),
    )


def _signature(tree: Tree) -> Any:
    """Equal for nodes that differ by their number and times alone. Other nodes than modules never equal a sibling."""
    name = class_names(tree.name) if tree.kind == "module" else tree.name
    counts = tuple(0 if key.endswith("_ns") else amount for key, amount in zip(AMOUNTS, tree.own, strict=True))
    return name, tree.kind, tree.count, counts, tuple(map(_signature, tree.children))


def _sum(amounts: Sequence[Amounts]) -> Amounts:
    return tuple(map(sum, zip(*amounts, strict=True)))
