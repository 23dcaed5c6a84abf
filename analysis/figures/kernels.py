"""Kernels of the trace, and of the recorded steps by class."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.figures.figure import Figure, of_gpu, of_run
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run
from molprof.common.values import Cell, per

_GROUP = "Kernels"


def _of_class(run: Run, *names: str) -> int | None:
    """Kernels of these classes in the recorded steps; None where no GPU work is recorded."""
    classes = run.window.classes
    return None if classes is None else sum(classes[name].count for name in names if name in classes)


def _per_step(*names: str) -> Callable[[Report], Cell]:
    return of_run(lambda run: per(_of_class(run, *names), run.window.steps))


def _busy_ratio(report: Report) -> float | None:
    devices = report.devices.values()
    return per(sum(device.busy_ns for device in devices), sum(device.span_ns for device in devices))


KERNELS = (
    Figure("kernels", _GROUP, "in the trace", "count", of_gpu(lambda report: report.counts.kernels)),
    Figure(
        "kernels_without_call",
        _GROUP,
        "kernels without a recorded call",
        "count",
        of_gpu(lambda report: report.counts.kernels_without_call),
        compared=False,
    ),
    Figure(
        "kernel_names",
        _GROUP,
        "different kernels",
        "count",
        of_gpu(lambda report: report.counts.kernel_names),
        compared=False,
    ),
    Figure(
        "kernel_time_ns",
        _GROUP,
        "time in the trace",
        "ns",
        of_gpu(lambda report: report.counts.kernel_time_ns),
        once=True,
    ),
    Figure("busy_ratio", _GROUP, "device busy", "ratio", of_gpu(_busy_ratio), once=True),
    Figure(
        "gpu_ns_per_step",
        _GROUP,
        "GPU time per step",
        "ns",
        of_run(lambda run: per(run.window.gpu_ns, run.window.steps)),
        once=True,
    ),
    Figure("copy_kernels_per_step", _GROUP, "elementwise copies per step", "number", _per_step("copy", "cat")),
    Figure("attention_kernels_per_step", _GROUP, "attention kernels per step", "number", _per_step("attention")),
    Figure(
        "elementwise_to_attention",
        _GROUP,
        "elementwise per attention kernel",
        "number",
        of_run(lambda run: per(_of_class(run, "elementwise"), _of_class(run, "attention"))),
    ),
)
