"""Operators of a run that are GPU work on a GPU, in order, with their arguments, and the host time between them."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from packaging.version import InvalidVersion, Version

from molprof.analysis.critical.recorded import ThreadInterval, intervals, time_range
from molprof.analysis.facts.nesting import ancestors
from molprof.analysis.frame import Frame, read_frame
from molprof.analysis.reader import TraceInfo
from molprof.analysis.roofline.formulas import LISTED, work_of
from molprof.analysis.roofline.operands import Operands, read_operands
from molprof.analysis.roofline.peaks import Peaks
from molprof.analysis.roofline.products import LeastWork
from molprof.analysis.roofline.read import HOST_COPY
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.union import Union
from molprof.common.errors import TraceError

# Operators whose inside differs by device, with what decides it there: they are taken whole.
ATTENTION = "aten::scaled_dot_product_attention"
# And those that the traces of GPUs show with tensors of the host alone.
WHOLE = frozenset(
    {ATTENTION, "aten::convolution", "aten::convolution_backward", "aten::batch_norm", "aten::embedding"}
    | {"aten::max", "aten::maximum", "aten::min", "aten::topk"}
)
# Copies between host and GPU that the host waits for. A run on a CPU shows some: lists and tensors of Python's data as
# indices, which torch moves to where the indexed tensor is; tolist() and numpy().
TO_GPU, TO_HOST = "copy to the GPU", "copy to the host"
_MADE, _READ = "aten::lift_fresh", "aten::resolve_neg"
PROCESSOR = "processor"
PICKS = ("aten::unbind", "aten::select", "aten::reshape", "aten::view", "aten::flatten")
_INDEXING = ("aten::index", "aten::index_put_")
SCALAR = "aten::_local_scalar_dense"
# Wait for the GPU on a GPU.
SYNCS = frozenset({SCALAR, "aten::nonzero", "aten::equal", "aten::unique_dim", "aten::_unique2", TO_GPU, TO_HOST})
# The largest head that FlashAttention takes (sdp_utils.cpp of torch).
_LARGEST_HEAD = 256
# From this version of torch on, its wheels bring a cuDNN that is taken first on compute capability 9.0 and 10.0.
_CUDNN_FIRST = Version("2.11")
_CUDNN_DEVICES = re.compile(r"G?[HB][12]00")
_HALVES = ("c10::BFloat16", "c10::Half")
_FLOATS = (*_HALVES, "float", "double")


class OperatorCall(NamedTuple):
    """An operator that is GPU work on a GPU."""

    id: int
    operator: str  # with what decides between kernels of attention
    start_ns: int
    end_ns: int
    work: LeastWork | None
    operands: Operands = ()
    times: int = 1  # calls that it stands for, of a run with other rows


def named(call: OperatorCall) -> tuple[str, LeastWork | None]:
    """Return the operator, for attention without the choice of kernel, and the least work of the call."""
    return call.operator.partition(" ")[0], call.work


class Quiet(NamedTuple):
    """Operators that are no GPU work, in order. own_ns: without the operators that they call."""

    names: list[str]
    starts: np.ndarray
    own_ns: np.ndarray

    def medians(self) -> dict[str, float]:
        """Return the median own time by name, ns."""
        times: defaultdict[str, list[int]] = defaultdict(list)
        for name, own_ns in zip(self.names, self.own_ns.tolist(), strict=True):
            times[name].append(own_ns)
        return {name: float(np.median(each)) for name, each in times.items()}


@dataclass(frozen=True)
class CallSequence:
    """A run as calls in order, with the host time between them. Times: ns since the trace's earliest event.

    Attributes:
        waits: where the host waited for a GPU, outside of calls.
        unknown: operators of which it is not known whether they are GPU work: calls and own time, ns, by name.
        unseen: GPU time that is in no call, as what a graph replays, ns, by the name of the call that started it.
        gpu_ns: all GPU time that calls of the run started; 0 without a GPU.
        known_ns: time in calls, and own time of operators that are no GPU work.
        quiet: all operators that are no calls and not inside one.
        outermost: starts of operators that no other calls.
        on_gpu: whether this is the trace of a GPU.
        torch: its version; None where not recorded.
        picks: starts, names and shapes of what processors take rows or make one dimension of them with.
        listed_bytes: of an element of listed tensors.
        stretched: where the host's time is `stretch` times the run's, of a run with other rows.
    """

    info: TraceInfo
    start_ns: int
    end_ns: int
    steps: int
    calls: tuple[OperatorCall, ...]
    waits: tuple[tuple[int, int], ...]
    unknown: Mapping[str, tuple[int, int]]
    unseen: Mapping[str, int]
    gpu_ns: int
    known_ns: int
    quiet: Quiet
    outermost: np.ndarray
    on_gpu: bool
    torch: Version | None
    phases: tuple[ThreadInterval, ...]
    operators: tuple[ThreadInterval, ...]
    picks: tuple[tuple[int, str, tuple[int, ...]], ...]
    listed_bytes: int | None
    stretched: tuple[ThreadInterval, ...] = ()
    stretch: float = 1.0


def read_run(
    engine: TraceProcessor, info: TraceInfo, launching: Collection[str], quiet: Collection[str]
) -> CallSequence:
    """Return the marked steps of a trace, or all of it. launching: operators of GPU work; quiet: others.

    The trace must be loaded with Python stacks. Raises TraceError where it records no operators or
    no shapes.
    """
    operators, steps, api_calls = (read_frame(engine, name) for name in ("operators", "steps", "calls"))
    if not len(operators):
        raise TraceError(f"{info.path} records no operators", hint="profile with ProfilerActivity.CPU")
    start, end = time_range(steps, operators)
    callers = dict(zip(operators["id"].tolist(), operators["caller_id"].tolist(), strict=True))
    operators = operators.where((operators["ts"] >= start) & (operators["ts"] < end))
    chosen, inside = split(operators, launching)
    across: dict[int, str] = {}
    if len(api_calls):
        on_gpu = _around(api_calls["operator_id"].tolist(), callers)
        chosen = [item for item in chosen if item in on_gpu]  # others compute with tensors of the host
        across = _across(read_frame(engine, "work"), api_calls, callers)
    rows = {item: index for index, item in enumerate(operators["id"].tolist())}
    copies = _copies(operators, {*chosen, *inside}) if len(steps) and not len(api_calls) else []
    phases = read_frame(engine, "phases")
    phases = phases.where((phases["ts"] >= start) & (phases["ts"] < end))
    picked = _picks(operators, phases.where(phases["phase"] == PROCESSOR), {*chosen, *inside})
    operands = read_operands(engine, [*chosen, *copies, *picked])
    chosen += [item for item in copies if (arguments := operands.get(item)) and arguments[0].shape]
    chosen.sort(key=rows.__getitem__)
    if not operands:
        raise TraceError(
            f"{info.path} records no shapes of operators",
            hint="torch.profiler.profile(record_shapes=True) records them; so does molprof capture --shapes",
        )
    listed = _usual_bytes(operands.values())
    names, starts, lengths = (operators[name].tolist() for name in ("name", "ts", "dur"))
    each = (
        call_of(item, names[rows[item]], starts[rows[item]], lengths[rows[item]], operands.get(item, ()), listed)
        for item in chosen
    )
    calls = tuple(call._replace(operator=across[call.id], work=None) if call.id in across else call for call in each)
    unknown: defaultdict[str, list[int]] = defaultdict(list)
    known_ns = sum(call.end_ns - call.start_ns for call in calls)
    taken = {*chosen, *inside}
    others = quiet_of_operators(operators, taken)
    for name, own_ns in zip(others.names, others.own_ns.tolist(), strict=True):
        # On a GPU, an operator without calls there computes with tensors of the host.
        if name in quiet or (len(api_calls) and name in launching):
            known_ns += own_ns
        else:
            unknown[name].append(own_ns)
    outermost = operators.where(~operators.known("caller_id"))
    api_calls = api_calls.where((api_calls["ts"] >= start) & (api_calls["ts"] < end) & api_calls.known("gpu_ns"))
    unseen: Counter[str] = Counter()
    started = zip(*(api_calls[column].tolist() for column in ("name", "operator_id", "gpu_ns")), strict=True)
    for name, item, gpu_ns in started:
        if item not in taken:
            unseen[name] += gpu_ns
    return CallSequence(
        info,
        start,
        end,
        len(steps),
        calls,
        _waits(read_frame(engine, "syncs"), calls),
        {name: (len(times), sum(times)) for name, times in unknown.items()},
        unseen,
        int(api_calls["gpu_ns"].sum()),
        known_ns,
        others,
        outermost["ts"],
        bool(len(api_calls)),
        torch_of(info),
        intervals(phases, "phase"),
        intervals(outermost, "name"),
        tuple((starts[rows[item]], names[rows[item]], operands[item][0].shape) for item in picked if item in operands),
        listed,
    )


def torch_of(info: TraceInfo) -> Version | None:
    """Return the version of torch in a trace of molprof."""
    environment = (info.manifest or {}).get("environment")
    try:
        return Version(str(environment["torch"])) if isinstance(environment, dict) else None
    except (InvalidVersion, KeyError):
        return None


def split(operators: Frame, launching: Collection[str]) -> tuple[list[int], list[int]]:
    """Return ids of the outermost operators that are GPU work, and of those inside."""
    callers = dict(zip(operators["id"].tolist(), operators["caller_id"].tolist(), strict=True))
    chosen: list[int] = []
    inside: list[int] = []
    taken: set[int] = set()
    for item, name in zip(operators["id"].tolist(), operators["name"].tolist(), strict=True):
        if callers[item] in taken:
            taken.add(item)
            inside.append(item)
        elif name in WHOLE or name in launching:
            taken.add(item)
            chosen.append(item)
    return chosen, inside


def _copies(operators: Frame, others: Collection[int]) -> list[int]:
    """Return the ids of operators that surely copy between host and GPU where tensors are on a GPU."""
    copies: list[int] = []
    from_python: list[int] = []  # tensors of Python's data since which nothing was computed
    each = zip(*(operators[name].tolist() for name in ("id", "name", "caller_id")), strict=True)
    for item, name, caller in each:
        if name == _MADE:
            from_python.append(item)
        elif name == _READ and caller is None:
            copies.append(item)
        elif item in others:
            if name in _INDEXING:
                copies += from_python
            from_python = []
    return copies


def _across(work: Frame, calls: Frame, callers: Mapping[int, int | None]) -> dict[int, str]:
    """Return the direction of operators that copy between host and GPU and wait, and of their callers."""
    waiting = _around(calls["operator_id"][calls["is_sync"].astype(bool)].tolist(), callers)
    ways: dict[int, str] = {}
    each = zip(work["category"].tolist(), work["name"].tolist(), work["operator_id"].tolist(), strict=True)
    for category, name, item in each:
        if category == "gpu_memcpy" and HOST_COPY.search(name):
            way = TO_HOST if "DtoH" in name or "DeviceToHost" in name else TO_GPU
            ways |= dict.fromkeys(_around([item], callers) & waiting, way)
    return ways


def _picks(operators: Frame, phases: Frame, others: Collection[int]) -> list[int]:
    """Return ids of operators of `PICKS` in some phases, and in no operator of others."""
    inside = Union(phases["ts"], phases["ts"] + phases["dur"]).holds(operators["ts"])
    rows = operators.where(inside & ~operators.known("caller_id")).select("id", "name").rows()
    return [item for item, name in rows if name in PICKS and item not in others]


def _around(items: Sequence[int | None], callers: Mapping[int, int | None]) -> set[int]:
    """Return these operators and all that call them."""
    reached: set[int] = set()
    for item in items:
        for caller in ancestors(item, callers):
            if caller in reached:
                break
            reached.add(caller)
    return reached


def call_of(
    item: int, name: str, start_ns: int, dur_ns: int, operands: Operands, listed_bytes: int | None
) -> OperatorCall:
    """Return the call of an operator. listed_bytes: of an element of listed tensors."""
    work = work_of(name, operands, listed_bytes if name in LISTED else None)
    if name in (_MADE, _READ):
        name = TO_GPU if name == _MADE else TO_HOST
    elif name == ATTENTION:
        name = f"{ATTENTION} ({_attention(operands)})"
    elif name == "aten::copy_" and _is_memcpy(operands):
        name += " (memcpy)"
    elif name == "aten::copy_" and _is_permuted(operands):
        name += " (permuted)"
    return OperatorCall(item, name, start_ns, start_ns + dur_ns, work, operands)


def called(call: OperatorCall, operands: Operands, listed_bytes: int | None) -> OperatorCall:
    """Return a call with other operands."""
    name = call.operator.partition(" (")[0]
    return call_of(call.id, name, call.start_ns, call.end_ns - call.start_ns, operands, listed_bytes)


def _is_memcpy(operands: Operands) -> bool:
    """Return True if torch lets the driver do copy_(out, from): one type, both dense in one order (its Copy.cu)."""
    out, source = operands[:2]
    if out.type != source.type or out.shape != source.shape or len(out.strides) != len(out.shape):
        return False
    each = sorted((stride, size) for stride, size in zip(out.strides, out.shape, strict=True) if size > 1)
    shared = zip(out.strides, source.strides, out.shape, strict=False)
    same = [first == second or size < 2 for first, second, size in shared]
    dense = [stride == math.prod(size for _, size in each[:index]) for index, (stride, _) in enumerate(each)]
    return len(source.strides) == len(out.strides) and all(same) and all(dense)


def _is_permuted(operands: Operands) -> bool:
    """Return True if copy_(out, from) reads in another order than it writes."""
    orders = []
    for item in operands[:2]:
        if len(item.strides) != len(item.shape):
            return False
        long = [index for index, size in enumerate(item.shape) if size > 1 and item.strides[index]]
        orders.append(sorted(long, key=lambda index: -item.strides[index]))
    first, second = orders
    return [index for index in first if index in second] != second


def _attention(operands: Operands) -> str:
    """Return the properties that decide the GPU kernel of an attention.

    operands: of scaled_dot_product_attention(query, key, value, mask, dropout, is_causal).
    """
    if len(operands) < 6 or len(operands[0].shape) != 4:
        return "math"
    query, *_, mask = operands[:4]
    number = "half" if query.type in _HALVES and query.shape[-1] <= _LARGEST_HEAD else query.type
    if mask.is_tensor:
        return f"{number}, bool mask" if mask.type == "bool" else f"{number}, mask"
    return f"{number}, causal" if operands[5].value.lower() == "true" else number


def attention_on(operator: str, device: Peaks, torch: Version | None) -> str:
    """Return the name of an operator; for attention with the kernel that torch uses on a device, by its sdp_utils.

    torch: the run's version; None where not recorded, and then an older one is meant.
    """
    if not operator.startswith(f"{ATTENTION} ("):
        return operator
    number, _, rest = operator.removeprefix(f"{ATTENTION} (").removesuffix(")").partition(", ")
    kernel = "efficient" if number in ("half", *_HALVES, "float") else "math"
    if number == "half":
        if torch is not None and torch >= _CUDNN_FIRST and _CUDNN_DEVICES.search(device.source):
            kernel = "cudnn"
        elif "mask" not in rest:
            kernel = "flash"
    return f"{ATTENTION} ({kernel}{', ' if rest else ''}{rest})"


def _usual_bytes(operands: Collection[Operands]) -> int | None:
    """Return the bytes of the most frequent floating-point type of tensors."""
    kinds = Counter(
        item for each in operands for item in each if item.is_tensor and item.type in _FLOATS and item.shape
    )
    counted: Counter[int] = Counter()
    for item, count in kinds.items():
        counted[item.element_bytes] += count
    return counted.most_common(1)[0][0] if counted else None


def quiet_of_operators(operators: Frame, others: Collection[int]) -> Quiet:
    """Return the operators other than those with these ids."""
    rest = operators.where(np.array([item not in others for item in operators["id"].tolist()], dtype=bool))
    return Quiet(rest["name"].tolist(), rest["ts"], rest["own_ns"])


def _waits(syncs: Frame, calls: Sequence[OperatorCall]) -> tuple[tuple[int, int], ...]:
    """Return the syncs that are not inside the call that began last."""
    starts, ends = syncs["ts"].astype(np.int64), (syncs["ts"] + syncs["dur"]).astype(np.int64)
    call_ends = np.append(np.array([call.end_ns for call in calls], dtype=np.int64), np.iinfo(np.int64).min)
    last = np.searchsorted(np.array([call.start_ns for call in calls], dtype=np.int64), starts, side="right") - 1
    outside = call_ends[last] < ends
    return tuple(zip(starts[outside].tolist(), ends[outside].tolist(), strict=True))
