"""The origins of a trace, read from the engine: its trees, and a check that they hold every launch and nanosecond."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from molprof.analysis.frame import Frame, read_frame
from molprof.analysis.origin.tree import MOST_DEPTH, Node, Tree, finished
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_row
from molprof.common.errors import EngineError

BYS = ("module", "source", "operator", "kernel")
_KINDS = {"module": ("module", "range"), "source": ("function",), "operator": ("operator",)}
NO_CALL, NO_WORK, GRAPH, BACKWARD = "(launch not recorded)", "(without GPU work)", "(graph)", "(backward)"
OUTSIDE = "(outside phases)"
WITHOUT = {"module": "(no module)", "source": "(no Python stack)", "operator": "(no operator)"}
_BACKWARD = "autograd::engine::evaluate_function"

_KNOWN = ("module", "range", "function")
Path = tuple[tuple[str, str], ...]  # kinds and names of nodes, the outermost first
# What decides where work, a call or an operator is in a tree: phase, frame around it, whether its call is recorded,
# if a graph started it the first piece of work of the same capture, -1 without one, class and name of a kernel.
Key = tuple[str | None, int | None, bool, int | None, tuple[str, str] | None]
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
_LEAVES = Query("operators", "SELECT id FROM molprof_leaf_operator")
T = TypeVar("T")


class StackFrame(NamedTuple):
    """What stands around calls."""

    id: int
    parent_id: int | None
    kind: str
    name: str
    ts: int
    dur: int = 0

    @property
    def ts_end(self) -> int:
        return self.ts + self.dur


@dataclass(frozen=True)
class Origins:
    """What a trace did, with the frames around it."""

    info: TraceInfo
    frames: dict[int, StackFrame]
    work: Frame
    calls: Frame  # that are launches or host syncs, or start GPU work
    operators: Frame
    leaves: np.ndarray  # operators that call no other
    totals: dict[str, int]  # what each tree must add up to
    steps: int
    tokens: int | None  # generated in the steps; None where not known
    # Of work of a graph: what stood around the call that was captured for it, as far as known.
    captured: Mapping[int, tuple[StackFrame, ...]] = field(default_factory=dict)

    @property
    def has_gpu(self) -> bool:
        """The trace holds GPU work or calls that launch it."""
        return bool(len(self.work) or len(self.calls))

    @property
    def has_stacks(self) -> bool:
        """Modules, ranges or Python functions are recorded."""
        return any(frame.kind in _KNOWN for frame in self.frames.values())

    @property
    def without_call(self) -> tuple[int, int]:
        """Pieces of work whose call is not recorded, and their time, ns."""
        alone = self.work.where(~self.work.known("call_id"))
        return len(alone), int(alone["dur"].sum())

    def chain(self, frame_id: int | None) -> list[StackFrame]:
        """The frames around a call, the outermost first."""
        found = []
        while frame_id is not None:
            frame = self.frames[frame_id]
            found.append(frame)
            frame_id = frame.parent_id
        return found[::-1]

    def path(self, by: str, frame_id: int | None) -> Path:
        """The nodes to a frame in the tree by module, source or operator."""
        return path_of(by, self.chain(frame_id))


def path_of(by: str, chain: Sequence[StackFrame]) -> Path:
    """The nodes of frames, the outermost first."""
    path = [(frame.kind, frame.name) for frame in chain if frame.kind in _KINDS[by]]
    if not path and by == "source":
        path = [(frame.kind, frame.name) for frame in chain if frame.kind == "library"]
    if not path:
        first = next((frame.name for frame in chain if frame.kind == "operator"), "")
        path = [("none", BACKWARD if first.startswith(_BACKWARD) and by != "operator" else WITHOUT[by])]
    return tuple(path[:MOST_DEPTH])


def origins_of(engine: TraceProcessor, info: TraceInfo) -> Origins:
    """The origins of the trace that the engine holds, Python stacks included."""
    around = read_frame(engine, "functions", "id parent_id kind name ts dur", where="TRUE")
    work = read_frame(engine, "work", "id dur name category class call_id in_graph frame_id phase")
    calls = read_frame(engine, "calls", "id dur kind gpu_ns is_sync frame_id phase step_id")
    # Copies that are captured into a graph start no work.
    starts = np.isin(calls["id"], work["call_id"][work.known("call_id")].astype(np.int64))
    steps = read_frame(engine, "steps", "tokens")["tokens"].tolist()
    return Origins(
        info=info,
        frames={row[0]: StackFrame(*row) for row in around.rows()},
        work=work,
        calls=calls.where(calls.known("kind") | (calls["is_sync"] == 1) | starts),
        operators=read_frame(engine, "operators", "id own_ns phase"),
        leaves=engine.query(_LEAVES.text)["id"],
        totals=query_row(engine, _TOTALS),
        steps=len(steps),
        tokens=sum(steps) if steps and None not in steps else None,
    )


class Paths:
    """Where each piece of work, call and operator is in a tree, by keys; `Paths.path` gives the nodes of one.

    deep: down to the innermost operator and the kernel, as in a flame graph.
    """

    def __init__(self, origins: Origins, by: str, deep: bool = False) -> None:
        self._origins, self._by, self._deep = origins, by, deep
        # The first piece of work that was captured in the same frames, so that each path is made once.
        same: dict[int, int] = {}
        self._inside = {number: same.setdefault(id(frames), number) for number, frames in origins.captured.items()}
        self._found: dict[Key, Path] = {}
        self._around: dict[tuple[str | None, int | None], Path] = {}
        has_phases = any(any(frame["phase"]) for frame in (origins.calls, origins.operators))
        self._outside: Path = (("none", OUTSIDE),) if has_phases and not deep else ()

    def of_work(self) -> list[Key]:
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
        """A call counts where its first work does; in a graph, where it was called."""
        started: dict[int, Key] = {}
        if self._deep or self._by == "kernel":
            for call, key in zip(self._origins.work["call_id"].tolist(), self.of_work(), strict=True):
                started.setdefault(call, key)
        nothing: Key = (None, None, True, None, None)
        return [
            (phase, frame, True, None, started.get(call, nothing)[-1])
            for call, phase, frame in self._origins.calls.select("id", "phase", "frame_id").rows()
        ]

    def of_operators(self) -> list[Key]:
        operators = self._origins.operators
        return [(phase, frame, True, None, None) for frame, phase in operators.select("id", "phase").rows()]

    def path(self, key: Key) -> Path:
        if key not in self._found:
            self._found[key] = self._made(*key)
        return self._found[key]

    def _made(
        self, phase: str | None, frame: int | None, known: bool, in_graph: int | None, work: tuple[str, str] | None
    ) -> Path:
        kernel: Path = (("kernel", work[1]),) if work else ()
        if self._by == "kernel":
            return (*self._phase(phase), *((("class", work[0]), *kernel) if work else (("none", NO_WORK),)))
        if not known:
            return (("none", NO_CALL), *kernel)
        inside: Path = ()
        if in_graph is not None:
            chain = self._origins.captured.get(in_graph, ())
            # Nothing where nothing of that kind is known.
            inside = (("none", GRAPH), *(node for node in self._nodes(chain) if node[0] != "none"))
        if (phase, frame) not in self._around:
            self._around[phase, frame] = (*self._phase(phase), *self._nodes(self._origins.chain(frame)))
        return (*self._around[phase, frame], *inside, *kernel)

    def _phase(self, phase: str | None) -> Path:
        return (("phase", phase),) if phase else self._outside

    def _nodes(self, chain: Sequence[StackFrame]) -> Path:
        path = path_of(self._by, chain)
        operators = path_of("operator", chain)[-1:] if self._deep and self._by != "operator" else ()
        return (*path, *(node for node in operators if node[0] == "operator"))


def sums(keys: Iterable[T], *amounts: np.ndarray) -> dict[T, tuple[int, ...]]:
    """The sum of each column over the rows of each key, in order of the first."""
    places: dict[T, int] = {}
    place_of = np.array([places.setdefault(key, len(places)) for key in keys], dtype=np.intp)
    found = np.zeros((len(places), len(amounts)), dtype=np.int64)
    for number, column in enumerate(amounts):
        np.add.at(found[:, number], place_of, column.astype(np.int64))
    return dict(zip(places, map(tuple, found.tolist()), strict=True))


def build_tree(origins: Origins, by: str, fold: bool = True) -> Tree:
    """The tree of a trace by one of BYS. Raises EngineError if it does not hold all that the trace does."""
    root = Node("all", "root")
    paths = Paths(origins, by)

    def add(keys: Iterable[Key], **amounts: np.ndarray) -> None:
        for key, values in sums(keys, *amounts.values()).items():
            node = root
            for kind, name in paths.path(key):
                node = node.child(kind, name)
            node.add(dict(zip(amounts, values, strict=True)))

    work, calls, operators = origins.work, origins.calls, origins.operators
    kernels = (work["category"] == "kernel").astype(int)
    add(paths.of_work(), gpu_ns=work["dur"], kernels=kernels, memory_operations=1 - kernels)
    launches, syncs = (calls["kind"] == "launch").astype(int), calls["is_sync"]
    add(
        paths.of_calls(),
        launches=launches,
        graph_launches=(calls["kind"] == "graph_launch").astype(int),
        syncs=syncs,
        sync_ns=syncs * calls["dur"],
        step_launches=launches * calls.known("step_id"),
    )
    if by != "kernel":
        add(paths.of_operators(), operators=np.isin(operators["id"], origins.leaves), operator_ns=operators["own_ns"])
    tree = finished(root, fold)
    wrong = [
        f"{name} {tree.amount(name)}, not {total}"
        for name, total in origins.totals.items()
        if tree.amount(name) != total and not (by == "kernel" and name == "operators")
    ]
    if wrong:
        raise EngineError(f"{origins.info.path}: the tree by {by} does not add up to the trace: {'; '.join(wrong)}")
    return tree
