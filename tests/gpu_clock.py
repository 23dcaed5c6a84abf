"""A simulated host and device: the operators of a CPU capture run again on a clock that counts, with kernels behind.

Every duration is fixed, so that what a trace of it must show is known without reading it. Times in integer ns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_kernels import FUSED, KERNELS, Kernel, triton

# Own time of an operator before and after what it calls, and of a phase.
OPERATOR_NS, OPERATOR_END_NS, PHASE_NS = 700, 300, 5_000
LAUNCH_NS, GRAPH_LAUNCH_NS, COPY_CALL_NS, SYNC_NS = 4_000, 21_000, 6_000, 2_500
# From a call to the earliest start of its work, and between two pieces of work of one stream.
DELAY_NS, GAP_NS, GRAPH_GAP_NS = 5_200, 900, 400
STREAM, COPY_STREAM = 7, 20
GRAPH = "Torch-Compiled Region: 0/0"
REGION = "## Call CompiledFxGraph fsimulatedsimulatedsimulatedsimulated ##"
_CPU_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
# Operators that move values between host and device: name of the copy, its time, bytes.
COPIES = {
    "aten::_local_scalar_dense": ("Memcpy DtoH (Device -> Pinned)", 1_900, 8),
    "aten::resolve_neg": ("Memcpy DtoH (Device -> Pageable)", 2_100, 32),
    "aten::lift_fresh": ("Memcpy HtoD (Pinned -> Device)", 1_800, 64),
}


@dataclass(repr=False, eq=False)
class Node:
    """An annotation or operator: its event, and what it calls in order. `ts` and `dur` are the simulated ones."""

    event: dict[str, Any]
    children: list[Node] = field(default_factory=list)
    ts: int = 0
    dur: int = 0

    @property
    def name(self) -> str:
        return str(self.event["name"])

    @property
    def annotation(self) -> bool:
        return bool(self.event["cat"] == "user_annotation")

    def within(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.within()


@dataclass(frozen=True, repr=False)
class Place:
    """Where the host is: the innermost operator and annotation, and the phase with its batch and step."""

    operator: Node | None
    annotation: Node | None
    phase: str | None = None
    batch: int | None = None
    step: int | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Call:
    """A call into the CUDA runtime."""

    name: str
    kind: str  # launch, graph_launch, copy or sync
    ts: int
    dur: int
    correlation: int
    place: Place


@dataclass(frozen=True, repr=False)
class Work:
    """A kernel or copy on the device."""

    category: str  # kernel or gpu_memcpy
    name: str
    work_class: str
    ts: int
    dur: int
    stream: int
    call: Call
    bytes: int | None = None
    graph_node: int | None = None


class Clock:
    """Runs nodes one after the other, and keeps every call and all work."""

    def __init__(self, streams: int, graph: bool, processor: tuple[str, ...]) -> None:
        self.now = 0
        self.calls: list[Call] = []
        self.works: list[Work] = []
        self._streams, self._graph, self._processor = streams, graph, processor
        self._free: dict[int, int] = {}
        self._added = 900_000_000  # External ids of what the source lacks

    def run(self, node: Node, place: Place, computed: bool = False) -> None:
        """Runs `node` and all in it; `computed`: an operator around it has launched its kernels."""
        node.ts = self.now
        place = _inside(node, place)
        phase = node.annotation and not node.name.startswith("molprof.step ")
        self.now += 0 if node.annotation and not phase else PHASE_NS if phase else OPERATOR_NS
        computes = not computed and not node.annotation and (node.name in KERNELS or node.name in COPIES)
        for child in self._children(node):
            self.run(child, place, computed or computes)
        if computes:
            self._compute(node, place)
        if node.name == REGION:
            self._replay(node, place)
        self.now += 0 if node.annotation else OPERATOR_END_NS
        node.dur = self.now - node.ts

    def _children(self, node: Node) -> list[Node]:
        """What `node` calls; a compiled forward has one region in place of the model's operators."""
        if node.name.startswith("molprof.processor "):
            self._added += len(self._processor)
            numbers = range(self._added, self._added + len(self._processor))
            added = [Node(_event(node, *pair)) for pair in zip(self._processor, numbers, strict=True)]
            node.children = [*node.children, *added]
        if not (self._graph and node.name.startswith("molprof.forward ")):
            return node.children
        names = [child.name for child in node.children]
        first, last = names.index("aten::embedding"), len(names) - 1 - names[::-1].index("aten::linear")
        model = [part for child in node.children[first : last + 1] for part in child.within()]
        self._added += 2
        region = Node(_event(node, REGION, self._added, "user_annotation"))
        region.event["kernels"] = self._fused(model)
        compiled = Node(_event(node, GRAPH, self._added + 1), [region])
        node.children = [*node.children[:first], compiled, *node.children[last + 1 :]]
        return node.children

    def _fused(self, model: list[Node]) -> list[Kernel]:
        """Kernels of the graph: matrix products and attention, and one for everything between two of them."""
        kernels: list[Kernel] = []
        waiting: list[Kernel] = []
        for node in model:
            for kernel in KERNELS.get(node.name, ()):
                if kernel.work_class in FUSED:
                    waiting.append(kernel)
                    continue
                kernels += [triton(len(kernels), waiting)] if waiting else []
                kernels.append(kernel)
                waiting = []
        return kernels + ([triton(len(kernels), waiting)] if waiting else [])

    def _compute(self, node: Node, place: Place) -> None:
        if node.name in COPIES:
            name, dur, size = COPIES[node.name]
            call = self._call("cudaMemcpyAsync", "copy", COPY_CALL_NS, place)
            stream = self._stream("copy")
            direction = name.split(" (")[0].replace("Memcpy", "memcpy")
            work = Work("gpu_memcpy", name, direction, 0, dur, stream, call, size)
            self._enqueue(work, GAP_NS)
            if name.endswith("Pageable)"):  # the call returns when the copy is done
                waited = max(0, self._free[stream] - self.now)
                self.calls[-1] = call = replace(call, dur=call.dur + waited)
                self.works[-1] = replace(self.works[-1], call=call)
                self.now += waited
            if "HtoD" not in name:  # from pinned memory, the CPU goes on
                waited = max(0, self._free[stream] - self.now - SYNC_NS)
                self._call("cudaStreamSynchronize", "sync", SYNC_NS + waited, place)
            return
        for kernel in KERNELS.get(node.name, ()):
            call = self._call("cudaLaunchKernel", "launch", LAUNCH_NS, place)
            stream = self._stream(kernel.work_class)
            self._enqueue(Work("kernel", kernel.name, kernel.work_class, 0, kernel.dur_ns, stream, call), GAP_NS)

    def _replay(self, region: Node, place: Place) -> None:
        call = self._call("cudaGraphLaunch", "graph_launch", GRAPH_LAUNCH_NS, place)
        for number, kernel in enumerate(region.event["kernels"]):
            work = Work("kernel", kernel.name, kernel.work_class, 0, kernel.dur_ns, STREAM, call, None, number)
            self._enqueue(work, GRAPH_GAP_NS)

    def _call(self, name: str, kind: str, dur: int, place: Place) -> Call:
        call = Call(name, kind, self.now, dur, 1_000 + len(self.calls), place)
        self.calls.append(call)
        self.now += dur
        return call

    def _enqueue(self, work: Work, gap_ns: int) -> None:
        """Starts the work behind its stream's last, at the earliest after its call."""
        ts = max(work.call.ts + DELAY_NS, self._free.get(work.stream, -gap_ns) + gap_ns)
        self._free[work.stream] = ts + work.dur
        self.works.append(replace(work, ts=ts))

    def _stream(self, work_class: str) -> int:
        return COPY_STREAM if self._streams > 1 and work_class == "copy" else STREAM


def _event(parent: Node, name: str, number: int, category: str = "cpu_op") -> dict[str, Any]:
    args = {"External id": number, "Record function id": 0, "Ev Idx": number}
    return {**parent.event, "cat": category, "name": name, "args": args}


def _inside(node: Node, place: Place) -> Place:
    if not node.annotation:
        return replace(place, operator=node)
    if not node.name.startswith("molprof.") or node.name.startswith("molprof.step "):
        return replace(place, annotation=node)
    phase, *pairs = node.name.removeprefix("molprof.").split()
    numbers = {key: int(value) for key, value in (pair.split("=") for pair in pairs)}
    return replace(place, annotation=node, phase=phase, **numbers)


def tree(events: list[dict[str, Any]], attention: str) -> list[Node]:
    """Annotations and operators of one thread as they call each other, with `attention` in place of the CPU's."""
    roots: list[Node] = []
    open_: list[tuple[float, Node]] = []
    for event in sorted(events, key=lambda item: (item["ts"], -item["dur"], item["args"]["Ev Idx"])):
        while open_ and open_[-1][0] <= event["ts"]:
            open_.pop()
        node = Node({**event, "name": attention if event["name"] == _CPU_ATTENTION else event["name"]})
        (open_[-1][1].children if open_ else roots).append(node)
        open_.append((event["ts"] + event["dur"], node))
    return roots
