"""The origins of a trace, read from the engine: its trees, and a check that they hold every launch and nanosecond."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from molprof.analysis.origin.tree import AMOUNTS, MOST_DEPTH, Node, Tree, finished
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_row, query_rows
from molprof.common.errors import EngineError

BYS = ("module", "source", "operator", "kernel")
_KINDS = {"module": ("module", "range"), "source": ("function",), "operator": ("operator",)}
NO_CALL, NO_WORK, GRAPH, BACKWARD = "(launch not recorded)", "(without GPU work)", "(graph)", "(backward)"
OUTSIDE = "(outside phases)"
WITHOUT = {"module": "(no module)", "source": "(no Python stack)", "operator": "(no operator)"}
_BACKWARD = "autograd::engine::evaluate_function"

_FRAMES = Query(
    "origin",
    """
INCLUDE PERFETTO MODULE molprof.operators;
SELECT frame.id, IFNULL(frame.parent_id, -1) AS parent_id, frame.kind, frame.name,
  frame.ts, frame.ts + frame.dur AS ts_end, leaf.id IS NOT NULL AS is_leaf, operator.own_ns, operator.phase
FROM molprof_frame AS frame
LEFT JOIN molprof_operator_origin AS operator ON operator.id = frame.id
LEFT JOIN molprof_leaf_operator AS leaf ON leaf.id = frame.id
ORDER BY frame.id
""",
)
_CALLS = Query(
    "origin",
    """
SELECT fact.call_id, fact.launches, fact.graph_launches, fact.syncs, fact.sync_ns,
  IIF(origin.step_id IS NULL, 0, fact.launches) AS step_launches, origin.frame_id, origin.phase
FROM molprof_call_fact AS fact
JOIN molprof_call_origin AS origin USING (call_id)
ORDER BY fact.call_id
""",
)
_WORK = Query(
    "origin",
    "SELECT dur, name, category, class, call_id, in_graph, frame_id, phase, id FROM molprof_origin ORDER BY ts, id",
)
# Apart from all that the trees are made of.
_TOTALS = Query(
    "launches",
    """
INCLUDE PERFETTO MODULE molprof.host_syncs;
INCLUDE PERFETTO MODULE molprof.operators;
SELECT
  (SELECT IFNULL(SUM(dur), 0) FROM slice WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset')) AS gpu_ns,
  (SELECT COUNT() FROM slice WHERE category = 'kernel') AS kernels,
  (SELECT COUNT() FROM slice WHERE category IN ('gpu_memcpy', 'gpu_memset')) AS memory_operations,
  (SELECT launches FROM molprof_launch_count) AS launches,
  (SELECT graph_launches FROM molprof_launch_count) AS graph_launches,
  (SELECT COUNT() FROM molprof_host_sync) AS syncs,
  (SELECT IFNULL(SUM(dur), 0) FROM molprof_host_sync) AS sync_ns,
  (SELECT COUNT() FROM molprof_leaf_operator) AS operators
""",
)
_STEPS = Query("steps", "SELECT COUNT() AS steps, SUM(tokens) AS tokens, COUNT(tokens) AS known FROM molprof_any_step")


class Frame(NamedTuple):
    """What stands around calls."""

    id: int
    parent_id: int  # -1: none
    kind: str
    name: str
    ts: int
    ts_end: int
    is_leaf: bool = False  # an operator that calls no other
    own_ns: int | None = None  # of operators: time without the operators that they call
    phase: str | None = None  # of operators


class Call(NamedTuple):
    """A call that is a launch or a host sync, or starts GPU work."""

    id: int
    launches: int
    graph_launches: int
    syncs: int
    sync_ns: int
    step_launches: int
    frame_id: int | None
    phase: str | None


class Work(NamedTuple):
    """A kernel, copy or set."""

    dur: int
    name: str
    category: str
    cls: str
    call_id: int | None
    in_graph: bool
    frame_id: int | None
    phase: str | None
    id: int
    # Of work of a graph: what stood around the call that was captured for it, as far as known.
    captured: tuple[Frame, ...] = ()

    @property
    def amounts(self) -> dict[str, int]:
        return {"gpu_ns": self.dur, "kernels" if self.category == "kernel" else "memory_operations": 1}


@dataclass(frozen=True)
class Origins:
    """What a trace did, with the frames around it."""

    info: TraceInfo
    frames: dict[int, Frame]
    calls: tuple[Call, ...]
    work: tuple[Work, ...]  # in order of start
    totals: dict[str, int]  # what each tree must add up to
    steps: int
    tokens: int | None  # generated in the steps; None where not known

    @property
    def has_gpu(self) -> bool:
        """The trace holds GPU work or calls that launch it."""
        return bool(self.work or self.calls)

    @property
    def operators(self) -> Iterator[tuple[Frame, int]]:
        """Each operator and its time without the operators that it calls, ns."""
        return ((frame, frame.own_ns) for frame in self.frames.values() if frame.own_ns is not None)

    def chain(self, frame_id: int | None) -> list[Frame]:
        """The frames around a call, the outermost first."""
        found = []
        while frame_id is not None and frame_id != -1:
            frame = self.frames[frame_id]
            found.append(frame)
            frame_id = frame.parent_id
        return found[::-1]

    def path(self, by: str, frame_id: int | None) -> tuple[tuple[str, str], ...]:
        """Kinds and names of the nodes to a frame in the tree by module, source or operator."""
        return path_of(by, self.chain(frame_id))

    def captured_path(self, by: str, work: Work) -> tuple[tuple[str, str], ...]:
        """The same for what was captured; without any node where nothing of that kind is known."""
        path = path_of(by, work.captured) if work.captured else ()
        return path if path and path[0][0] != "none" else ()


def path_of(by: str, chain: Sequence[Frame]) -> tuple[tuple[str, str], ...]:
    """Kinds and names of the nodes of frames, the outermost first."""
    path = [(frame.kind, frame.name) for frame in chain if frame.kind in _KINDS[by]]
    if not path and by == "source":
        path = [(frame.kind, frame.name) for frame in chain if frame.kind == "library"]
    if not path:
        first = next((frame.name for frame in chain if frame.kind == "operator"), "")
        path = [("none", BACKWARD if first.startswith(_BACKWARD) and by != "operator" else WITHOUT[by])]
    return tuple(path[:MOST_DEPTH])


def origins_of(engine: TraceProcessor, info: TraceInfo) -> Origins:
    """The origins of the trace that the engine holds, Python stacks included."""
    frames = {row[0]: Frame(*row) for row in query_rows(engine, _FRAMES)[1]}
    step = query_row(engine, _STEPS)
    totals = query_row(engine, _TOTALS)
    return Origins(
        info=info,
        frames=frames,
        calls=tuple(Call(*row) for row in query_rows(engine, _CALLS)[1]),
        work=tuple(Work(*row) for row in query_rows(engine, _WORK)[1]),
        totals=totals,
        steps=step["steps"],
        tokens=step["tokens"] if step["steps"] and step["known"] == step["steps"] else None,
    )


def build_tree(origins: Origins, by: str, fold: bool = True) -> Tree:
    """The tree of a trace by one of BYS. Raises EngineError if it does not hold all that the trace does."""
    builder = _Builder(origins, by)
    first_work: dict[int, Node] = {}
    for work in origins.work:
        node = builder.work(work)
        node.add(work.amounts)
        if work.call_id is not None:
            first_work.setdefault(work.call_id, node)
    for call in origins.calls:
        amounts = {name: amount for name in _OF_CALLS if (amount := getattr(call, name))}
        builder.call(call, first_work).add(amounts)
    if by != "kernel":
        for frame, own_ns in origins.operators:
            node = builder.frame(frame.id, frame.phase)
            node.add({"operators": int(frame.is_leaf), "operator_ns": own_ns})
    tree = finished(builder.root, fold)
    wrong = [
        f"{name} {tree.amount(name)}, not {origins.totals[name]}"
        for name in AMOUNTS
        if name in origins.totals
        and tree.amount(name) != origins.totals[name]
        and not (by == "kernel" and name == "operators")
    ]
    if wrong:
        raise EngineError(f"{origins.info.path}: the tree by {by} does not add up to the trace: {'; '.join(wrong)}")
    return tree


_OF_CALLS = ("launches", "graph_launches", "syncs", "sync_ns", "step_launches")


class _Builder:
    """Finds the node of each piece of work, call and operator."""

    def __init__(self, origins: Origins, by: str) -> None:
        self.root = Node("all", "root")
        self._origins, self._by = origins, by
        self._phases = any(call.phase for call in origins.calls) or any(
            frame.phase for frame in origins.frames.values()
        )
        self._nodes: dict[tuple[int | None, str | None], Node] = {}

    def _phase(self, phase: str | None) -> Node:
        if not self._phases:
            return self.root
        return self.root.child("phase", phase) if phase else self.root.child("none", OUTSIDE)

    def frame(self, frame_id: int | None, phase: str | None) -> Node:
        key = frame_id, phase
        node = self._nodes.get(key)
        if node is None:
            node = self._phase(phase)
            for kind, name in self._origins.path(self._by, frame_id):
                node = node.child(kind, name)
            self._nodes[key] = node
        return node

    def work(self, work: Work) -> Node:
        if self._by == "kernel":
            return self._phase(work.phase).child("class", work.cls).child("kernel", work.name)
        if work.call_id is None:
            return self.root.child("none", NO_CALL)
        node = self.frame(work.frame_id, work.phase)
        if work.in_graph:
            node = node.child("none", GRAPH)
            for kind, name in self._origins.captured_path(self._by, work):
                node = node.child(kind, name)
        return node

    def call(self, call: Call, first_work: dict[int, Node]) -> Node:
        """A call counts where its first work does; in a graph, where it was called."""
        if self._by == "kernel":
            return first_work.get(call.id) or self._phase(call.phase).child("none", NO_WORK)
        return self.frame(call.frame_id, call.phase)
