"""Trees of amounts by module, Python function, operator or kernel; as a file of speedscope, a viewer of flame graphs.

Each node has what it did itself, and with all below it; identical layers are folded. A tree holds every launch and
nanosecond of its trace. Format of speedscope (https://www.speedscope.app): file-format-schema.json there.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from molprof.analysis.frame import Frame
from molprof.analysis.origin.paths import ROOT, FramePaths, PathTable
from molprof.analysis.origin.read import NO_CALL, Origins, sums
from molprof.analysis.roofline.read import PIECE_AMOUNTS
from molprof.common.errors import EngineError
from molprof.common.values import class_names, short_name

BYS = ("module", "source", "operator", "kernel")
NO_WORK, GRAPH, OUTSIDE = "(without GPU work)", "(graph)", "(outside phases)"
# Suffix _ns: a time. operators: those that call no other; runs: all calls of operators. operator_ns: time of CPU
# operators without those that they call; python_ns: of phases and Python functions outside operators, without what they
# call. wait_ns: idle time of GPUs with nothing queued, while the thread that they wait for was there. step_: inside
# recorded steps.
AMOUNTS = (
    "gpu_ns",
    "kernels",
    "memory_operations",
    "launches",
    "graph_launches",
    "syncs",
    "sync_ns",
    "operators",
    "runs",
    "operator_ns",
    "step_launches",
    "python_ns",
    "wait_ns",
)
# With those of the roofline, where they are known.
NAMES = (*AMOUNTS, *PIECE_AMOUNTS)
SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_PLACE = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<name>.+)$")

T = TypeVar("T")
Amounts = tuple[int, ...]  # in the order of NAMES
# What decides where work, a call or an operator is in a tree: phase, frame around it, whether its call is recorded,
# if a graph started it the first piece of work of the same capture, -1 without one, class and name of a kernel.
Key = tuple[str | None, int | None, bool, int | None, tuple[str, str] | None]


@dataclass(frozen=True)
class Tree:
    """A frame of the tree, such as a module, with its children in the order of their first event."""

    name: str
    kind: str  # root, phase, module, range, function, library, operator, class, kernel, or none: without origin
    count: int  # identical siblings that are folded into it
    own: Amounts
    inclusive: Amounts  # own and that of all children
    children: tuple[Tree, ...]
    kin: int = field(default=0, compare=False, repr=False)  # equal for siblings that may be folded into one

    def amount(self, name: str, own: bool = False) -> int:
        """Return an amount of the node, with or without what is inside it."""
        return (self.own if own else self.inclusive)[NAMES.index(name)]

    def walk(self) -> Iterator[tuple[int, Tree]]:
        """Yield every node with its depth, parents before their children."""
        left = [(0, self)]
        while left:
            depth, node = left.pop()
            yield depth, node
            left += [(depth + 1, child) for child in reversed(node.children)]

    def to_json(self) -> dict[str, Any]:
        """Return the node and all below it as JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "count": self.count,
            "inclusive": dict(zip(NAMES, self.inclusive, strict=False)),
            "own": dict(zip(NAMES, self.own, strict=False)),
            "children": [child.to_json() for child in self.children],
        }


class WorkPaths:
    """The path in a tree of each piece of work, call and operator, by keys; `path` gives a path in `table`.

    deep: down to the innermost operator and the kernel, as in a flame graph.
    """

    def __init__(self, origins: Origins, by: str, deep: bool = False) -> None:
        self._origins, self._by, self._deep = origins, by, deep
        self.table = PathTable()
        if by != "kernel":
            self._frames = FramePaths(by, origins.frames, self.table)
            self._operators = FramePaths("operator", origins.frames, self.table) if deep and by != "operator" else None
        # The first piece of work that was captured in the same frames, so that each path is made once.
        same: dict[int, int] = {}
        self._inside = {number: same.setdefault(id(frames), number) for number, frames in origins.captured.items()}
        placed = (origins.calls, origins.operators, origins.host, origins.waits)
        has_phases = any(any(frame["phase"]) for frame in placed)
        self._outside = self.table.inside(ROOT, ("none", OUTSIDE)) if has_phases and not deep else ROOT
        self.path = cache(self._path)
        self._captured = cache(self._of_captured)

    def of_work(self) -> list[Key]:
        """Return the key of each piece of work."""
        names = ("id", "phase", "frame_id", "call_id", "in_graph", "class", "name")
        named = self._deep or self._by == "kernel"
        return [
            (
                phase,
                frame,
                call is not None,
                self._inside.get(number, -1) if in_graph else None,
                (cls, name) if named else None,
            )
            for number, phase, frame, call, in_graph, cls, name in self._origins.work.select(*names).rows()
        ]

    def of_calls(self) -> list[Key]:
        """Return the key of each call: that of its first work; in a graph, that of its own location."""
        started: dict[int, Key] = {}
        if self._deep or self._by == "kernel":
            for call, key in zip(self._origins.work["call_id"].tolist(), self.of_work(), strict=True):
                started.setdefault(call, key)
        nothing: Key = (None, None, True, None, None)
        return [
            (phase, frame, True, None, started.get(call, nothing)[-1])
            for call, phase, frame in self._origins.calls.select("id", "phase", "frame_id").rows()
        ]

    @staticmethod
    def of_frames(items: Frame, frame_id: str = "frame_id") -> list[Key]:
        """Return the keys of what is in a phase and a frame, or is a frame itself, such as operators by their `id`."""
        return [(phase, frame, True, None, None) for phase, frame in items.select("phase", frame_id).rows()]

    def _path(self, key: Key) -> int:
        phase, frame, has_call, in_graph, work = key
        inside, joined = self.table.inside, self.table.joined
        path = inside(ROOT, ("phase", phase)) if phase else self._outside
        if self._by == "kernel":
            if work is None:
                return inside(path, ("none", NO_WORK))
            path = inside(path, ("class", work[0]))
        elif not has_call:
            path = inside(ROOT, ("none", NO_CALL))
        else:
            path = self._with_operator(joined(path, self._frames.of_frame(frame)), FramePaths.of_frame, frame)
            if in_graph is not None:
                path = joined(inside(path, ("none", GRAPH)), self._captured(in_graph))
        return inside(path, ("kernel", work[1])) if work else path

    def _of_captured(self, number: int) -> int:
        """Return the frames of the captured call of some work; none where no such frames are known."""
        chain = self._origins.captured.get(number, ())
        path = self._frames.of_chain(chain)
        path_or_root = ROOT if self.table.node[path][0] == "none" else path
        return self._with_operator(path_or_root, FramePaths.of_chain, chain)

    def _with_operator(self, path: int, of: Callable[[FramePaths, T], int], around: T) -> int:
        """Return a path, with the innermost operator added if the tree shows operators."""
        if self._operators is None:
            return path
        node = self.table.node[of(self._operators, around)]
        return self.table.inside(path, node) if node[0] == "operator" else path


def build_tree(origins: Origins, by: str, fold: bool = True) -> Tree:
    """Return the tree of a trace by one of BYS. Raises EngineError if its sums differ from the trace's.

    fold: siblings of one class that did the same become one node: with equal children and numbers of launches, kernels,
    syncs and so on; times may differ.
    """
    paths = WorkPaths(origins, by)
    path_amounts: list[tuple[int, Amounts]] = []
    names = AMOUNTS if origins.pieces is None else NAMES

    def add(keys: Iterable[Key], **amounts: np.ndarray) -> None:
        for key, values in sums(keys, *amounts.values()).items():
            named = dict(zip(amounts, values, strict=True))
            path_amounts.append((paths.path(key), tuple(named.get(name, 0) for name in names)))

    work, calls, operators = origins.work, origins.calls, origins.operators
    kernels = (work["category"] == "kernel").astype(int)
    pieces = {} if origins.pieces is None else dict(zip(PIECE_AMOUNTS, origins.pieces.T, strict=True))
    add(paths.of_work(), gpu_ns=work["dur"], kernels=kernels, memory_operations=1 - kernels, **pieces)
    launches, syncs = (calls["kind"] == "launch").astype(int), calls["is_sync"]
    add(
        paths.of_calls(),
        launches=launches,
        graph_launches=(calls["kind"] == "graph_launch").astype(int),
        syncs=syncs,
        sync_ns=calls["sync_ns"],
        step_launches=launches * calls.known("step_id"),
    )
    if by != "kernel":
        add(
            paths.of_frames(operators, "id"),
            operators=np.isin(operators["id"], origins.leaves),
            runs=np.ones(len(operators)),
            operator_ns=operators["own_ns"],
        )
        add(paths.of_frames(origins.host), python_ns=origins.host["own_ns"])
        add(paths.of_frames(origins.waits), wait_ns=origins.waits["own_ns"])
    tree = _tree(paths.table, path_amounts, fold, len(names))
    wrong = [
        f"{name} {tree.amount(name)}, not {total}"
        for name, total in origins.totals.items()
        if tree.amount(name) != total and not (by == "kernel" and name in ("operators", "python_ns", "wait_ns"))
    ]
    if wrong:
        raise EngineError(f"{origins.info.path}: the tree by {by} does not add up to the trace: {'; '.join(wrong)}")
    return tree


def _tree(table: PathTable, path_amounts: Iterable[tuple[int, Amounts]], fold: bool, size: int) -> Tree:
    """Return the tree of paths with their amounts. size: the number of amounts."""
    own: defaultdict[int, list[Amounts]] = defaultdict(list)
    inner: dict[int, list[int]] = {ROOT: []}  # of each path those inside it, in the order of their first amounts
    for path, amounts in path_amounts:
        own[path].append(amounts)
        missing = []
        while path not in inner:
            missing.append(path)
            path = table.outer[path]
        for item in reversed(missing):
            inner[path].append(item)
            inner[item] = []
            path = item
    families = _Families()
    trees: dict[int, Tree] = {}
    for path in reversed(inner):  # each stands behind the one around it
        children = [trees.pop(item) for item in inner[path]]
        if fold:
            alike: dict[int, list[Tree]] = {}
            for child in children:
                alike.setdefault(child.kin, []).append(child)
            children = [families.merged(same) for same in alike.values()]
        kind, name = table.node[path]
        mine = _sum([(0,) * size, *own[path]])
        inclusive = _sum([mine, *(child.inclusive for child in children)])
        trees[path] = families.placed(Tree(name, kind, 1, mine, inclusive, tuple(children)))
    return trees[ROOT]


class _Families:
    """Shared numbers for nodes that differ only in the number of their module and in times.

    Other nodes than modules never equal a sibling.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def placed(self, tree: Tree) -> Tree:
        """Return the node with its number; its children have theirs already."""
        name = class_names(tree.name) if tree.kind == "module" else tree.name
        counts = tuple(0 if key.endswith("_ns") else amount for key, amount in zip(AMOUNTS, tree.own, strict=False))
        key = name, tree.kind, tree.count, counts, tuple(child.kin for child in tree.children)
        return replace(tree, kin=self._numbers.setdefault(key, len(self._numbers)))

    def merged(self, same: Sequence[Tree]) -> Tree:
        """Merge nodes of one number into one."""
        first = same[0]
        if len(same) == 1:
            return first
        return self.placed(
            Tree(
                name=class_names(first.name),
                kind=first.kind,
                count=sum(item.count for item in same),
                own=_sum([item.own for item in same]),
                inclusive=_sum([item.inclusive for item in same]),
                children=tuple(self.merged(column) for column in zip(*(item.children for item in same), strict=True)),
            )
        )


def _sum(amounts: Sequence[Amounts]) -> Amounts:
    return tuple(map(sum, zip(*amounts, strict=True)))


def speedscope_text(origins: Origins, by: str, exporter: str) -> str:
    """Return the JSON text of a trace's speedscope file.

    A stack is a path of the tree by one of BYS, then the operator and the kernel.

    Profiles: GPU work in order of start, one sample each, with the layers of one class together and each alone;
    launches, time of CPU operators and Python, and waits of GPUs for the host, with layers together.
    """
    frames: dict[str, int] = {}
    profiles: list[dict[str, Any]] = []
    paths = WorkPaths(origins, by, deep=True)

    def profile(name: str, unit: str, keys: Iterable[Key], weights: list[int], fold: bool = True) -> None:
        """Add a profile; with `fold`, modules have no numbers."""

        @cache
        def stack(path: int) -> list[int]:
            return [frames.setdefault(_shown(*node, fold), len(frames)) for node in paths.table.nodes(path)]

        if weights:
            profiles.append(
                {
                    "type": "sampled",
                    "name": name,
                    "unit": unit,
                    "startValue": 0,
                    "endValue": sum(weights),
                    "samples": [stack(paths.path(key)) for key in keys],
                    "weights": weights,
                }
            )

    work, launches, operators = origins.work, origins.calls.known("kind"), origins.operators
    for fold in (True, False):
        title = "layers together" if fold else "each layer"
        profile(f"GPU time, {title}", "nanoseconds", paths.of_work(), work["dur"].tolist(), fold)
    profile("launches", "none", itertools.compress(paths.of_calls(), launches), [1] * int(launches.sum()))
    if by != "kernel":
        for title, keys, items in (
            ("CPU time of operators", paths.of_frames(operators, "id"), operators),
            ("host time of Python", paths.of_frames(origins.host), origins.host),
            ("GPU waits for the host", paths.of_frames(origins.waits), origins.waits),
        ):
            profile(title, "nanoseconds", keys, items["own_ns"].tolist())
    content = {
        "$schema": SCHEMA,
        "name": f"{origins.info.path} by {by}",
        "exporter": exporter,
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(name) for name in frames]},
        "profiles": profiles,
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=True)


def _frame(name: str) -> dict[str, Any]:
    """Return a frame with its file and line, where its name has them."""
    match = _PLACE.match(name)
    if match is None:
        return {"name": name}
    return {"name": name, "file": match["file"], "line": int(match["line"])}


def _shown(kind: str, name: str, fold: bool) -> str:
    return short_name(name) if kind == "kernel" else class_names(name) if fold and kind == "module" else name
