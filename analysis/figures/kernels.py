"""Launches, leaf operators and kernels: of the trace, and per token, step and molecule."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.figures import work
from molprof.analysis.figures.figure import Figure, of_gpu, without_gpu
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.tables import STEPS
from molprof.common.values import Unit, Value, per

# Ids and labels of kinds of work, as of molprof_work_kind.
_KERNEL_KINDS = ("copy", "cat", "attention", "elementwise")
_MEMORY_KINDS = {"memcpy_htod": "memcpy HtoD", "memcpy_dtoh": "memcpy DtoH", "memcpy_dtod": "memcpy DtoD"}


def _count(name: str, label: str, group: str, compared: bool = True) -> Figure:
    """The count of the trace that is called as the figure."""
    return Figure(name, group, label, "count", of_gpu(lambda report: getattr(report.counts, name)), compared=compared)


def _mean(name: str, label: str, value: Callable[[Report], Value], group: str = "Launches") -> Figure:
    return Figure(name, group, label, "number", of_gpu(value), tables=(STEPS,))


def _operators(name: str, label: str, value: Callable[[Report], Value]) -> Figure:
    """Leaf operators, in place of launches."""
    return Figure(name, "Launches", label, "number", without_gpu(value), tables=(STEPS,), stands_in=True)


def _once(name: str, label: str, value: Callable[[Report], Value], unit: Unit = "ns", group: str = "Kernels") -> Figure:
    return Figure(name, group, label, unit, of_gpu(value), once=True, tables=(STEPS,))


def _busy_ratio(report: Report) -> float | None:
    devices = report.devices.values()
    return per(sum(device.busy_ns for device in devices), sum(device.span_ns for device in devices))


def _gpu_ns(report: Report) -> int:
    """Time of all kernels, copies and sets of the trace."""
    return report.counts.kernel_time_ns + sum(item.time_ns for item in report.counts.memory_operations.values())


def _of_kind(name: str, label: str, kind: str) -> tuple[Figure, ...]:
    """Work of one kind: of the trace, per step, its time."""
    group, tables = "Work by kind", (STEPS, work.KINDS)
    return (
        Figure(name, group, f"{label} in the trace", "count", of_gpu(lambda report: work.kind(report, kind)),
               tables=tables),
        Figure(f"{name}_per_step", group, f"{label} per step", "number",
               of_gpu(lambda report: work.kind_per_step(report, kind)), tables=tables),
        Figure(f"{name}_ns", group, f"time of {label} in the trace", "ns",
               of_gpu(lambda report: work.kind(report, kind, "time_ns")), once=True, tables=tables),
    )  # fmt: skip


def _of_run_total(name: str, label: str, group: str, gpu: bool = True) -> Figure:
    """A count over all steps of a run, estimated unless all are recorded."""

    def value(report: Report) -> Value:
        total = None if report.run is None else (report.run.totals or {}).get(name)
        return None if total is None else total.value

    read = of_gpu(value) if gpu else without_gpu(value)
    return Figure(f"run_{name}", group, f"{label} of all steps (estimate)", "count", read,
                  once=True, stands_in=not gpu)  # fmt: skip


LAUNCHES = (
    _count("launches", "launches in the trace", "Launches"),
    _count("launches_without_gpu_work", "launches without GPU work", "Launches", compared=False),
    _mean("launches_per_token", "launches per token", lambda it: work.per_token(it, "launches", it.counts.launches)),
    _mean("launches_per_step", "launches per step", lambda it: work.per_step(it, "launches")),
    _mean(
        "launches_per_molecule",
        "launches per molecule",
        lambda it: work.per_molecule(it, "launches", it.counts.launches),
    ),
    _of_run_total("launches", "launches", "Launches"),
    _count("graph_launches", "graph launches in the trace", "Launches"),
    _mean("graph_launches_per_step", "graph launches per step", lambda it: work.per_step(it, "graph_launches")),
    _mean("syncs_per_step", "host syncs per step", lambda it: work.per_step(it, "syncs")),
    _operators(
        "leaf_operators_per_token", "leaf operators per token", lambda it: work.per_token(it, "leaf_operators", None)
    ),
    _of_run_total("leaf_operators", "leaf operators", "Launches", gpu=False),
    _operators("leaf_operators_per_step", "leaf operators per step", lambda it: work.per_step(it, "leaf_operators")),
)
KERNELS = (
    _count("kernels", "kernels in the trace", "Kernels"),
    _count("kernels_without_call", "kernels without a recorded call", "Kernels", compared=False),
    _count("kernel_names", "distinct kernels", "Kernels", compared=False),
    _of_run_total("kernels", "kernels", "Kernels"),
    _once("kernel_time_ns", "kernel time", lambda it: it.counts.kernel_time_ns),
    _once(
        "device_span_ns",
        "device span, profiled",
        lambda it: max((item.span_ns for item in it.devices.values()), default=None),
    ),
    _once("busy_ratio", "device busy", _busy_ratio, "ratio"),
    _once("gpu_ns_per_step", "GPU time per step", lambda it: work.per_step(it, "gpu_ns")),
    _once("gpu_ns_per_token", "GPU time per token", lambda it: work.per_token(it, "gpu_ns", _gpu_ns(it))),
    _mean("kernels_per_step", "kernels per step", lambda it: work.per_step(it, "kernels"), "Kernels"),
    _mean(
        "kernels_per_token",
        "kernels per token",
        lambda it: work.per_token(it, "kernels", it.counts.kernels),
        "Kernels",
    ),
    _mean(
        "kernels_per_molecule",
        "kernels per molecule",
        lambda it: work.per_molecule(it, "kernels", it.counts.kernels),
        "Kernels",
    ),
)
WORK = (
    *(figure for kind in _KERNEL_KINDS for figure in _of_kind(f"{kind}_kernels", f"{kind} kernels", kind)),
    Figure(
        "elementwise_to_attention",
        "Work by kind",
        "elementwise kernels per attention kernel",
        "number",
        of_gpu(lambda it: work.kind_ratio(it, "elementwise", "attention")),
        tables=(STEPS, work.KINDS),
    ),
    *_of_kind("masking_candidates", "masking candidates", "masking"),
    *(figure for name, label in _MEMORY_KINDS.items() for figure in _of_kind(name, label, label)),
)
