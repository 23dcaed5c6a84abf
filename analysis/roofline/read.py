"""Roofline of a trace: recorded work against its least time, by operator and arguments, and as a sum of losses."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from molprof.analysis.facts.nesting import ancestors
from molprof.analysis.facts.number_types import number_type
from molprof.analysis.facts.work import COMMUNICATION as COMMUNICATION_CLASSES
from molprof.analysis.frame import Frame, read_frame
from molprof.analysis.reader import TraceInfo
from molprof.analysis.roofline.formulas import is_paged, work_of
from molprof.analysis.roofline.operands import Operands, arguments_text, read_operands
from molprof.analysis.roofline.paged import Batch, cache_bytes, read_batches
from molprof.analysis.roofline.peaks import Peaks, peaks_of
from molprof.analysis.roofline.products import ATTENTION, CONVOLUTION, MATMUL, LeastWork
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.union import Union
from molprof.common.errors import TraceError
from molprof.common.values import counted

# What computes so much that its FLOPs count.
HEAVY = (MATMUL, CONVOLUTION, ATTENTION)
COMMUNICATION, TRANSFER, UNKNOWN, GRAPH = "communication", "copy from or to the host", "no formula", "in a graph"
# Bytes of an element, as kernels of aten::cat name it.
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
HOST_COPY = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost")


@dataclass(frozen=True)
class CallGroup:
    """Calls of one operator with the same arguments."""

    operator: str
    family: str
    arguments: str  # shapes, as text
    types: str
    calls: int
    kernels: int
    gpu_ns: int
    work: LeastWork | None  # of each call; None where it is not known
    least_ns: float | None  # of each call: the longer of compute and memory at the device's peaks
    bound: str | None  # which of them it is

    @property
    def reached_ratio(self) -> float | None:
        """The least time as a share of the recorded time; above 1 where a cache or a sparse kernel beats the peaks."""
        return None if self.least_ns is None or not self.gpu_ns else self.least_ns * self.calls / self.gpu_ns

    @property
    def tflops(self) -> float | None:
        """Achieved rate, 10^12 FLOPs per second."""
        flops = self.work.flops if self.work else None
        return None if flops is None or not self.gpu_ns else flops * self.calls / self.gpu_ns / 1e3

    @property
    def tbps(self) -> float | None:
        """Achieved rate, 10^12 bytes per second."""
        return None if self.work is None or not self.gpu_ns else self.work.bytes * self.calls / self.gpu_ns / 1e3


@dataclass(frozen=True)
class RooflinePart:
    """A part of the sum from the least time to the recorded one."""

    name: str
    ns: float
    meaning: str


@dataclass(frozen=True)
class Roofline:
    """A trace against the peaks of its device."""

    info: TraceInfo
    peaks: Peaks
    groups: tuple[CallGroup, ...]  # longest first
    span_ns: int  # of the device, from its first to its last work
    steps: int
    gpu_ns: int = 0
    covered_ns: int = 0  # of it, what the formulas know
    parts: tuple[RooflinePart, ...] = ()  # add up to `span_ns`; empty without the device's peaks
    notes: tuple[str, ...] = field(default=())
    has_shapes: bool = True


# Operators by an id that no operator of the trace has, their names and arguments, the innermost first.
Captured = Sequence[tuple[int, str, Operands]]


def read_roofline(
    engine: TraceProcessor, info: TraceInfo, given: Sequence[str] = (), captured: Mapping[int, Captured] | None = None
) -> Roofline:
    """Return the roofline of the device with most work. given: peaks in place of those known (`peaks_of`).

    captured: by a piece of a graph's work, the operators that made it when the graph was captured.
    The trace must be loaded with Python stacks. Raises TraceError where no GPU work is recorded.
    """
    work = read_frame(engine, "work")
    if not len(work):
        raise TraceError(f"{info.path} records no GPU work", hint="molprof report by operator shows its operators")
    work, others = _busiest(work)
    captured = {item: calls for item, calls in (captured or {}).items() if calls}
    if captured:
        ids = work["id"].tolist()
        owners = [
            captured[item][0][0] if item in captured else owner
            for item, owner in zip(ids, work["operator_id"].tolist(), strict=True)
        ]
        in_graph = np.array([item not in captured for item in ids]) & work["in_graph"].astype(bool)
        work = Frame({**work.columns, "operator_id": np.array(owners, dtype=object), "in_graph": in_graph})
    calls = _read_calls(engine, work, captured)
    peaks = peaks_of(_device_name(info, work["device"][0]), given)
    groups, family = _grouped(work, calls, peaks)
    span_ns = int((work["ts"] + work["dur"]).max() - work["ts"].min())
    steps = len(read_frame(engine, "steps"))
    notes = []
    if others:
        notes.append(f"the work of {counted(others, 'other device')} is left out")
    return Roofline(
        info,
        peaks,
        groups,
        span_ns,
        steps,
        sum(group.gpu_ns for group in groups),
        sum(group.gpu_ns for group in groups if group.work),
        _parts(work, family, groups, span_ns, peaks),
        tuple(notes),
        bool(calls.operands),
    )


def _busiest(work: Frame) -> tuple[Frame, int]:
    """Return the work of the device with most of it, and the number of other devices."""
    devices = work["device"]
    names, index_of = np.unique(devices.astype(str), return_inverse=True)
    total = np.bincount(index_of, weights=work["dur"])
    chosen = index_of == total.argmax()
    return Frame({name: column[chosen] for name, column in work.columns.items()}), len(names) - 1


# What `read_pieces` tells of a piece of work: its time if a formula tells what it must do, its least time, of this what
# memory bounds, FLOPs of products, convolutions and attention, and least bytes.
PIECE_AMOUNTS = ("known_ns", "least_ns", "memory_ns", "flops", "moved_bytes")


def read_pieces(engine: TraceProcessor, info: TraceInfo, given: Sequence[str] = ()) -> np.ndarray | None:
    """Return PIECE_AMOUNTS of each row of the frame `work`, int64; kernels of a call share its amounts by their times.

    given: peaks in place of those known (`peaks_of`). None where the peaks of the device are not known, or devices
    differ and none are given. Loaded as for `read_roofline`.
    """
    work = read_frame(engine, "work", "id dur name category class operator_id in_graph device step_id")
    names = {_device_name(info, number) for number in dict.fromkeys(work["device"].tolist())}
    peaks = peaks_of(names.pop() if len(names) == 1 else None, given)
    if peaks.memory_tbps is None:
        return None
    amounts_of = np.zeros((len(work), len(PIECE_AMOUNTS)), dtype=np.int64)
    for called in _called(work, _read_calls(engine, work, {})):
        least_ns, bound = _least(called.work, peaks)
        if called.work is None or least_ns is None:
            continue
        times = work["dur"][called.places]
        flops = called.work.flops or 0 if called.work.family in HEAVY else 0
        amounts = least_ns, least_ns if bound == "memory" else 0, flops, called.work.bytes
        amounts_of[called.places, 0] = times
        amounts_of[called.places, 1:] = np.rint(np.outer(times / max(1, times.sum()), amounts))
    return amounts_of


@dataclass(frozen=True)
class _OperatorCalls:
    """Operators that started work: the callers of each, the innermost first; names and arguments."""

    chains: Mapping[int, tuple[int, ...]]
    names: Mapping[int, str]
    operands: Mapping[int, Operands]
    batches: Mapping[int, Batch]  # the sequences of steps, where attention over a cache in pages needs them


def _read_calls(engine: TraceProcessor, work: Frame, captured: Mapping[int, Captured]) -> _OperatorCalls:
    operators = read_frame(engine, "operators", "id name caller_id")
    ids = operators["id"].tolist()
    names = dict(zip(ids, operators["name"].tolist(), strict=True))
    callers = dict(zip(ids, operators["caller_id"].tolist(), strict=True))
    operands: dict[int, Operands] = {}
    for calls in captured.values():
        for (at, name, given_operands), around in zip(calls, [*calls[1:], (None,)], strict=True):
            names[at], callers[at], operands[at] = name, around[0], given_operands
    chains = {item: tuple(ancestors(item, callers)) for item in set(work["operator_id"].tolist()) if item is not None}
    operands |= read_operands(engine, {item for chain in chains.values() for item in chain if item >= 0})
    texts = {key: str(name) for key, name in names.items()}
    batches: dict[int, Batch] = {}
    if any(is_paged(texts[at]) for at in operands):
        stored = cache_bytes((texts[at], item) for at, item in operands.items())
        batches = {step: batch._replace(cache_bytes=stored) for step, batch in read_batches(engine).items()}
    return _OperatorCalls(chains, texts, operands, batches)


def _device_name(info: TraceInfo, number: Any) -> str | None:
    devices = [device for device in info.devices if device.get("id") == number] or info.devices[:1]
    return str(devices[0]["name"]) if devices and devices[0].get("name") else None


class _WorkCall(NamedTuple):
    """Work of one call of an operator, or of a name without one."""

    family: str
    owner: int | None  # the operator
    name: str  # of the work, where no formula tells what it must do
    work: LeastWork | None
    places: list[int]  # rows of the work


def _called(work: Frame, calls: _OperatorCalls) -> list[_WorkCall]:
    pieces: defaultdict[tuple[str, int | None, str], list[int]] = defaultdict(list)  # by owner
    columns = [work[name].tolist() for name in ("operator_id", "name", "class", "category", "in_graph")]
    sizes = listed_bytes(work)
    owners = {}
    steps = dict(zip(work["operator_id"].tolist(), work["step_id"].tolist(), strict=True))
    for item, chain in calls.chains.items():
        about = sizes.get(item), calls.batches.get(steps[item])
        each = ((at, work_of(calls.names[at], calls.operands[at], *about)) for at in chain if at in calls.operands)
        owners[item] = next(((at, one) for at, one in each if one is not None), (item, None))
    for row, (item, name, kind, category, in_graph) in enumerate(zip(*columns, strict=True)):
        if kind in COMMUNICATION_CLASSES:
            pieces[COMMUNICATION, item, name].append(row)
        elif category != "kernel" and HOST_COPY.search(name or ""):
            pieces[TRANSFER, None, name].append(row)
        elif in_graph:
            pieces[GRAPH, None, name].append(row)
        elif item is None or owners[item][1] is None:
            pieces[UNKNOWN, item, name].append(row)
        else:
            pieces["", owners[item][0], ""].append(row)
    of_owner = {at: one for at, one in owners.values() if one is not None}
    result = []
    for (other, owner, name), rows in pieces.items():
        one = None if other or owner is None else of_owner[owner]
        is_fp32 = one is not None and one.kind == "fp32" and one.family in (MATMUL, CONVOLUTION)
        if one is not None and is_fp32 and any(number_type(str(work["name"][row])) == "TF32" for row in rows):
            one = replace(one, kind="tf32")
        result.append(_WorkCall(other or (one.family if one else UNKNOWN), owner, name, one, rows))
    return result


def _grouped(work: Frame, calls: _OperatorCalls, peaks: Peaks) -> tuple[tuple[CallGroup, ...], np.ndarray]:
    """Group the work: return groups, the longest first, and the family of each piece of work."""
    families = np.full(len(work), UNKNOWN, dtype=object)
    sums: defaultdict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for family, owner, name, one, rows in _called(work, calls):
        families[rows] = family
        operator = calls.names[owner] if owner is not None else name
        operands = calls.operands.get(owner, ()) if owner is not None else ()
        key = (operator, family, arguments_text(operands), _types(operands), one)
        count = len(rows) if owner is None else 1
        for number, amount in enumerate((count, len(rows), int(work["dur"][rows].sum()))):
            sums[key][number] += amount
    groups = [
        CallGroup(operator, kind, shapes, types, count, kernels, gpu_ns, one, *_least(one, peaks))
        for (operator, kind, shapes, types, one), (count, kernels, gpu_ns) in sums.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.gpu_ns, group.operator, group.arguments))), families


def listed_bytes(work: Frame) -> dict[int, int]:
    """Return bytes per element of tensors in operators' lists, by operator, as their kernels name the type."""
    each = zip(work["operator_id"].tolist(), work["name"].tolist(), strict=True)
    return {item: int(match[1]) for item, name in each if (match := _OPAQUE.search(name or ""))}


def _least(work: LeastWork | None, peaks: Peaks) -> tuple[float | None, str | None]:
    if work is None:
        return None, None
    compute = 0.0 if work.flops is None else peaks.flops_ns(work.kind, work.flops)
    memory = peaks.bytes_ns(work.bytes)
    if compute is None or memory is None:
        return None, None
    return max(compute, memory), "compute" if compute > memory else "memory"


def _types(operands: Operands) -> str:
    return ", ".join(dict.fromkeys(item.type.removeprefix("c10::") for item in operands if item.is_tensor))


def _parts(
    work: Frame, family: np.ndarray, groups: Iterable[CallGroup], span_ns: int, peaks: Peaks
) -> tuple[RooflinePart, ...]:
    """Return the parts of the recorded span, from the least time on; they add up to it.

    What runs at the same time counts once, for the family that stands first.
    """
    with_work = [(group, group.work) for group in groups if group.work is not None]
    unknown = any(group.least_ns is None for group, one in with_work if one.family in HEAVY)
    if not with_work or unknown or peaks.memory_tbps is None:
        return ()
    heavy = [(group.calls, one) for group, one in with_work if one.family in HEAVY]
    compute = sum((peaks.flops_ns(one.kind, one.flops or 0) or 0) * calls for calls, one in heavy)
    moved = peaks.bytes_ns(sum(one.must_bytes * group.calls for group, one in with_work)) or 0
    least = max(compute, moved)
    exposed: dict[str, int] = {}
    order = [*HEAVY, *(name for name in dict.fromkeys(group.family for group in groups) if name not in HEAVY)]
    covered, chosen = 0, np.zeros(len(work), dtype=bool)
    for name in order:
        chosen |= family == name
        total = Union(work["ts"][chosen], (work["ts"] + work["dur"])[chosen]).length_ns
        exposed[name], covered = total - covered, total
    light = "all products and attention at the peaks, or their second operands, cache and rows read once"
    parts = [RooflinePart("Speed of light", least, light)]
    alone = dict.fromkeys(HEAVY, 0.0)
    for group, one in with_work:
        if one.family in alone:
            alone[one.family] += (group.least_ns or 0) * group.calls
    apart = "inputs and outputs of each product and attention go through memory"
    parts.append(RooflinePart("Each on its own", sum(alone.values()) - least, apart))
    for name in HEAVY:
        if exposed.get(name):
            part = RooflinePart(
                f"{name}: below peak".capitalize(), exposed[name] - alone[name], "recorded time less its least"
            )
            parts.append(part)
    for name in order[3:]:
        if exposed.get(name):
            parts.append(
                RooflinePart(name.capitalize(), exposed[name], _MEANINGS.get(name, "which fusion would spare in part"))
            )
    parts.append(RooflinePart("GPU idle", span_ns - covered, "launches, syncs and host work that the GPU waits for"))
    return tuple(parts)


_MEANINGS = {
    COMMUNICATION: "that nothing else hides",
    TRANSFER: "that nothing else hides",
    UNKNOWN: "what it must do is not known",
    GRAPH: "kernels of graphs have no operator",
}
