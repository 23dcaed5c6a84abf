"""Paths of frames: the nodes from the root of a tree to a call; each is its parent path and one more node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from molprof.analysis.facts.modules import MOST_DEPTH

BACKWARD = "(backward)"
WITHOUT = {"module": "(no module)", "source": "(no Python stack)", "operator": "(no operator)"}
_KINDS = {"module": ("module", "range"), "source": ("function",), "operator": ("operator",)}
_BACKWARD = "autograd::engine::evaluate_function"
# The path without nodes.
ROOT = 0

Node = tuple[str, str]  # kind and name
Path = tuple[Node, ...]  # the outermost first


class StackFrame(NamedTuple):
    """A frame that encloses calls."""

    id: int
    parent_id: int | None
    kind: str
    name: str
    ts: int
    dur: int = 0

    @property
    def ts_end(self) -> int:
        """The end of the frame, ns."""
        return self.ts + self.dur


class PathTable:
    """Distinct paths by number: `outer` is the path without the last node, `node` is that node."""

    def __init__(self) -> None:
        self.outer, self.node, self._depth = [ROOT], [("root", "all")], [0]
        self._numbers: dict[tuple[int, Node], int] = {}
        self._joined: dict[tuple[int, int], int] = {}

    def inside(self, path: int, node: Node) -> int:
        """Return the path of a node below a path."""
        number = self._numbers.setdefault((path, node), len(self.outer))
        if number == len(self.outer):
            self.outer.append(path)
            self.node.append(node)
            self._depth.append(self._depth[path] + 1)
        return number

    def capped(self, path: int, node: Node) -> int:
        """Return the same, but the path itself where it has MOST_DEPTH nodes."""
        return self.inside(path, node) if self._depth[path] < MOST_DEPTH else path

    def joined(self, path: int, other: int) -> int:
        """Return the path with the nodes of one, then of the other."""
        if path == ROOT or other == ROOT:
            return path or other
        if (path, other) not in self._joined:
            outer = self.joined(path, self.outer[other])
            self._joined[path, other] = self.inside(outer, self.node[other])
        return self._joined[path, other]

    def nodes(self, path: int) -> Path:
        """Return the nodes of a path."""
        nodes = []
        while path != ROOT:
            nodes.append(self.node[path])
            path = self.outer[path]
        return tuple(reversed(nodes))


class _Around(NamedTuple):
    """The enclosing frames of something."""

    path: int = ROOT
    libraries: int = ROOT  # functions of libraries
    operator: str | None = None  # name of the outermost


class FramePaths:
    """The paths to frames in the tree by module, source or operator. Shared parents are computed once."""

    def __init__(self, by: str, frames: Mapping[int, StackFrame] | None = None, table: PathTable | None = None) -> None:
        """Set the frames. table: receives the paths."""
        self._by, self._frames, self.table = by, frames or {}, table or PathTable()
        self._known: dict[int | None, _Around] = {None: _Around()}
        self._same: dict[_Around, _Around] = {}

    def of_frame(self, frame_id: int | None) -> int:
        """Return the path to a frame; the empty one for None. Raises KeyError for an unknown frame."""
        unknown = []
        while frame_id not in self._known:
            assert frame_id is not None
            unknown.append(frame_id)
            frame_id = self._frames[frame_id].parent_id
        around = self._known[frame_id]
        for item in reversed(unknown):
            around = self._within(around, self._frames[item])
            self._known[item] = around = self._same.setdefault(around, around)
        return self._path(around)

    def of_chain(self, chain: Iterable[StackFrame]) -> int:
        """Return the path of frames, the outermost first."""
        around = _Around()
        for frame in chain:
            around = self._within(around, frame)
        return self._path(around)

    def _within(self, around: _Around, frame: StackFrame) -> _Around:
        path, libraries, operator = around
        node = frame.kind, frame.name
        if frame.kind in _KINDS[self._by]:
            path = self.table.capped(path, node)
        elif frame.kind == "library" and self._by == "source":
            libraries = self.table.capped(libraries, node)
        if frame.kind == "operator" and operator is None:
            operator = frame.name
        return _Around(path, libraries, operator)

    def _path(self, around: _Around) -> int:
        """Return the path itself; if empty, the path of libraries, or one node that says what is missing."""
        if path := around.path or around.libraries:
            return path
        is_backward = self._by != "operator" and (around.operator or "").startswith(_BACKWARD)
        return self.table.inside(ROOT, ("none", BACKWARD if is_backward else WITHOUT[self._by]))


def modules_and_source(chain: Iterable[StackFrame]) -> tuple[str | None, str | None]:
    """Return modules and ranges of frames with / between them, and the innermost function; None where there is none."""
    paths = [FramePaths(by) for by in ("module", "source")]
    chain = list(chain)
    modules, functions = (one.table.nodes(one.of_chain(chain)) for one in paths)
    return (
        None if modules[0][0] == "none" else "/".join(name for _, name in modules),
        None if functions[0][0] == "none" else functions[-1][1],
    )
