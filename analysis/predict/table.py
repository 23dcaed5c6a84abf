"""Costs of operators from recorded GPU traces: kernels, GPU time and host time, also for calls that no trace has.

The GPU time of a call is `floor + least / efficiency`: its least time at the device's peaks, and a floor and an
efficiency for each operator. Both are fitted to the traces; an operator with few calls stays near its family, a family
near the device. What the calls nearest in size deviate from that is added.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from msgspec import Struct, json

from molprof.analysis.predict.run import SCALAR, TO_GPU, TO_HOST, OperatorCall, named
from molprof.analysis.roofline.formulas import FORMULAS, POINTWISE
from molprof.analysis.roofline.peaks import Peaks, peaks_of
from molprof.analysis.roofline.products import CONVOLUTION, LeastWork

# Of all GPUs, before any trace: a kernel takes 2.5 us at least, and reaches half of the peaks.
_FLOOR_NS, _EFFICIENCY = 2500.0, 0.5
_FLOORS, _EFFICIENCIES = np.geomspace(600, 40_000, 40), np.geomspace(0.01, 1.6, 40)
# How much one doubling away from the family counts, beside calls that are off by a doubling.
_PULL = 1.5
# How many calls of one size count, as a call is repeated for each layer.
_REPEATS = 20
# A call that is away by a factor of e in FLOPs or bytes counts for 1/e; without any near, the fit holds.
_DOUBT = 0.3
# torch turns a mask of truth values into numbers before attention: where(mask, 0, -inf), and both numbers as tensors
# (convert_boolean_attn_mask in its transformers/attention.cpp).
_MASK_KERNELS, _WHERE = 3, "aten::where"
# Traces of fewer models show too few operators.
FEW = 3


class CostRow(Struct, frozen=True, array_like=True):
    """Calls of one operator with the same least work; times are medians of a call."""

    operator: str
    kind: str  # class of its longest kernel
    family: str | None  # None where no formula knows what it must do; then the next three say nothing
    number: str  # kind of the numbers that are multiplied
    flops: int
    bytes: int
    kernels: float  # of a call, on average
    gpu_ns: float
    host_ns: float  # without waits for the GPU
    calls: int


class TraceCosts(Struct, frozen=True):
    """The costs that one trace showed.

    Attributes:
        latency_ns, pause_ns: least time from a launch to its work, and between two kernels.
        gap_ns: host time between two operators that no other calls, on average.
        quiet: own time of operators that are no GPU work, median by name, ns.
    """

    model: str
    device: str
    latency_ns: int
    pause_ns: int
    gap_ns: float
    quiet: dict[str, float]
    rows: list[CostRow]


class HeldOutCheck(Struct, frozen=True):
    """A figure of a model whose traces were left out of the fit, as predicted and as recorded.

    Attributes:
        origin: of what it was predicted: a run on a `CPU`, or the name of another GPU.
        shown: whether the table kept other traces of this GPU.
    """

    model: str
    origin: str
    device: str
    figure: str
    predicted: float
    recorded: float
    shown: bool


class Stored(Struct, frozen=True):
    """The content of the package's file of costs."""

    sources: list[TraceCosts]
    checks: list[HeldOutCheck]


class Estimate(NamedTuple):
    """The cost of a call on a GPU. evidence: calls of this operator on this GPU in traces."""

    kind: str
    kernels: int
    gpu_ns: float
    host_ns: float
    evidence: int


class CostTable:
    """Costs for one GPU: from its own traces, else from those of its vendor if they are of a few models.

    measured: GPU times of calls on the device (`read_measured`), in place of those of traces.
    """

    def __init__(
        self,
        sources: Sequence[TraceCosts],
        device: Peaks,
        measured: Mapping[tuple[str, LeastWork], float] | None = None,
    ) -> None:
        self.device, self.measured = device, measured or {}
        each = [source for source in sources if peaks_of(source.device).source == device.source]
        vendor = device.source.split()[0]
        related = [source for source in sources if peaks_of(source.device).source.startswith(vendor)]
        self.shown = len({source.model for source in each}) >= FEW
        self.sources = each if self.shown else related if len({one.model for one in related}) >= FEW else sources
        self.models = sorted({source.model for source in self.sources})
        self._rows: defaultdict[str, list[tuple[CostRow, float | None]]] = defaultdict(list)
        self._family: defaultdict[str, list[tuple[CostRow, float]]] = defaultdict(list)
        for source in self.sources:
            peaks = peaks_of(source.device)
            for row in source.rows:
                least = None if row.family is None else _least(row.family, row.number, row.flops, row.bytes, peaks)
                self._rows[row.operator].append((row, least))
                if row.family is not None and least:
                    self._family[row.family].append((row, least))
        for name in (TO_GPU, TO_HOST):  # small ones, which wait as the reading of one number does
            self._rows[name] = self._rows[SCALAR]
        self._fits: dict[str, tuple[float, float]] = {}
        self._estimates: dict[tuple[str, LeastWork | None], Estimate | None] = {}

    @cached_property
    def latency_ns(self) -> int:
        """The median time from a launch to the start of its work, ns."""
        return int(np.median([source.latency_ns for source in self.sources]))

    @cached_property
    def pause_ns(self) -> int:
        """The median pause between queued work, ns."""
        return int(np.median([source.pause_ns for source in self.sources]))

    @cached_property
    def gap_ns(self) -> float:
        """The median time between two kernels of a graph, ns."""
        return float(np.median([source.gap_ns for source in self.sources]))

    @cached_property
    def quiet(self) -> dict[str, float]:
        """Host time of operators that are no GPU work, median of the traces, ns."""
        times: defaultdict[str, list[float]] = defaultdict(list)
        for source in self.sources:
            for name, time in source.quiet.items():
                times[name].append(time)
        return {name: float(np.median(each)) for name, each in times.items()}

    def estimate(self, call: OperatorCall) -> Estimate | None:
        """Return the cost of a call; None where neither traces nor a formula know the operator."""
        key = call.operator, call.work
        if key not in self._estimates:
            self._estimates[key] = self._estimate(call)
        one, times = self._estimates[key], call.times
        if one is None or times == 1:
            return one
        return one._replace(kernels=one.kernels * times, gpu_ns=one.gpu_ns * times, host_ns=one.host_ns * times)

    def _estimate(self, call: OperatorCall) -> Estimate | None:
        work, rows = call.work, [row for row, _ in self._rows.get(call.operator, [])]
        if work is None:
            if not rows:
                return None
            near, gpu_ns = rows, float(np.median([row.gpu_ns for row in rows]))
        else:
            near = rows or [row for row, _ in self._family[work.family]]
            if not near:
                return None
            gpu_ns = self._time(call.operator, work)
        weights = [_weight(row, work) * row.calls for row in near]
        kinds = Counter[str]()
        for row, weight in zip(near, weights, strict=True):
            kinds[row.kind] += weight  # type: ignore[assignment]
        kernels = round(float(np.average([row.kernels for row in near], weights=weights)))
        host_ns = float(np.median([row.host_ns for row in near]))
        if not rows and call.operator.endswith("bool mask)"):
            kernels += _MASK_KERNELS
            gpu_ns += _MASK_KERNELS * self._fit(_WHERE, POINTWISE)[0]
            host_ns += _MASK_KERNELS * float(np.median([row.host_ns for row, _ in self._rows.get(_WHERE, [])] or [0.0]))
        if work is not None:
            gpu_ns = self.measured.get((named(call)[0], work), gpu_ns)
        return Estimate(kinds.most_common(1)[0][0], kernels, gpu_ns, host_ns, sum(row.calls for row in rows))

    def fused_ns(self, count: int) -> float:
        """Return the GPU time of a kernel of several fused elementwise operators that moves so many bytes."""
        floor, efficiency = self._fit("", POINTWISE)
        return floor + (self.device.bytes_ns(count) or 0.0) / efficiency

    def _time(self, operator: str, work: LeastWork) -> float:
        least = _least(work.family, work.kind, work.flops or 0, work.bytes, self.device)
        floor, efficiency = self._fit(operator, work.family)
        fitted = math.log(floor + least / efficiency)
        weights = doubt = 0.0
        for row, least_ns in self._rows.get(operator, []):
            if least_ns and row.family == work.family:
                weight = _weight(row, work)
                weights += weight
                doubt += weight * (math.log(row.gpu_ns) - math.log(floor + least_ns / efficiency))
        return math.exp(fitted + doubt / (weights + _DOUBT))

    def _fit(self, operator: str, family: str) -> tuple[float, float]:
        """Return the fitted floor, ns, and the efficiency."""
        if family not in self._fits:
            self._fits[family] = _fitted(self._family[family], (_FLOOR_NS, _EFFICIENCY))
        if operator not in self._fits:
            least_rows = [(row, least) for row, least in self._rows.get(operator, []) if least and row.family == family]
            self._fits[operator] = _fitted(least_rows, self._fits[family])
        return self._fits[operator]


def _fitted(rows: Sequence[tuple[CostRow, float]], near: tuple[float, float]) -> tuple[float, float]:
    if not rows:
        return near
    least = np.array([least_ns for _, least_ns in rows])
    recorded = np.log([row.gpu_ns for row, _ in rows])
    weight = np.sqrt([min(row.calls, _REPEATS) for row, _ in rows])
    tried = np.log(_FLOORS[:, None, None] + least / _EFFICIENCIES[None, :, None])
    cost = (np.abs(tried - recorded) * weight).sum(-1)
    cost += _PULL * (np.abs(np.log(_FLOORS / near[0]))[:, None] + np.abs(np.log(_EFFICIENCIES / near[1]))[None, :])
    floor, efficiency = np.unravel_index(int(cost.argmin()), cost.shape)
    return float(_FLOORS[floor]), float(_EFFICIENCIES[efficiency])


def _weight(row: CostRow, work: LeastWork | None) -> float:
    """Return the distance in size: by how many factors of e a call is larger or smaller."""
    if work is None:
        return 1.0
    flops = math.log((1e3 + row.flops) / (1e3 + (work.flops or 0)))
    return math.exp(-abs(flops) - abs(math.log((1 + row.bytes) / (1 + work.bytes)))) + 1e-9


def _least(family: str, number: str, flops: int, count: int, peaks: Peaks) -> float:
    """Return the time at the peaks, ns. torch lets FP32 convolutions use TF32 where there is such, products not."""
    if family == CONVOLUTION and number == "fp32" and "tf32" in peaks.tflops:
        number = "tf32"
    compute = peaks.flops_ns(number, flops) or 0.0
    return max(compute, peaks.bytes_ns(count) or 0.0)


def launching_of(sources: Sequence[TraceCosts]) -> set[str]:
    """Return the operators of GPU work: those in traces, and those with a formula that no trace has."""
    shown = {row.operator.partition(" ")[0] for source in sources for row in source.rows}
    return shown | {name for name in FORMULAS if not any(name in source.quiet for source in sources)}


def quiet_of(sources: Sequence[TraceCosts]) -> set[str]:
    """Return the operators in traces that are never GPU work."""
    return {name for source in sources for name in source.quiet} - launching_of(sources)


@cache
def stored() -> Stored:
    """Return the table that comes with the package."""
    return json.decode(files(__package__).joinpath("table.json").read_bytes(), type=Stored)
