"""Kernels of the trace, and of the recorded steps by class."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.figures.figure import Figure, of_gpu, of_run
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run
from molprof.common.values import Unit, per

_GROUP = "Kernels"


def _of_trace(
    name: str,
    label: str,
    value: Callable[[Report], float | None],
    unit: Unit = "count",
    once: bool = False,
    compared: bool = True,
) -> Figure:
    return Figure(name, _GROUP, label, unit, of_gpu(value), once=once, compared=compared)


def _per_step(name: str, label: str, *classes: str) -> Figure:
    """Kernels of these classes per recorded step."""
    return Figure(name, _GROUP, label, "number", of_run(lambda run: per(_of_class(run, *classes), run.window.steps)))


def _of_class(run: Run, *names: str) -> int | None:
    """Kernels of these classes in the recorded steps; None where no GPU work is recorded."""
    classes = run.window.classes
    return None if classes is None else sum(classes[name].count for name in names if name in classes)


def _busy_ratio(report: Report) -> float | None:
    devices = report.devices.values()
    return per(sum(device.busy_ns for device in devices), sum(device.span_ns for device in devices))


def _gpu_ns_per_step(run: Run) -> float | None:
    return per(run.window.gpu_ns, run.window.steps)


def _elementwise_to_attention(run: Run) -> float | None:
    return per(_of_class(run, "elementwise"), _of_class(run, "attention"))


KERNELS = (
    _of_trace("kernels", "kernels in the trace", lambda report: report.counts.kernels),
    _of_trace(
        "kernels_without_call",
        "kernels without a recorded call",
        lambda report: report.counts.kernels_without_call,
        compared=False,
    ),
    _of_trace("kernel_names", "distinct kernels", lambda report: report.counts.kernel_names, compared=False),
    _of_trace("kernel_time_ns", "kernel time", lambda report: report.counts.kernel_time_ns, "ns", once=True),
    _of_trace("busy_ratio", "device busy", _busy_ratio, "ratio", once=True),
    Figure("gpu_ns_per_step", _GROUP, "GPU time per step", "ns", of_run(_gpu_ns_per_step), once=True),
    _per_step("copy_kernels_per_step", "copy kernels per step", "copy", "cat"),
    _per_step("attention_kernels_per_step", "attention kernels per step", "attention"),
    Figure(
        "elementwise_to_attention",
        _GROUP,
        "elementwise kernels per attention kernel",
        "number",
        of_run(_elementwise_to_attention),
    ),
)
