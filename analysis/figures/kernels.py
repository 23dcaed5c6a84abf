"""Launches, leaf operators and kernels: of the trace, and per token, step and molecule of the recorded steps."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.figures.figure import Figure, of_gpu, of_run
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run
from molprof.analysis.figures.tables import STEPS
from molprof.common.values import Unit, Value, per


def _count(name: str, label: str, group: str, compared: bool = True) -> Figure:
    """The count of the trace that is called as the figure."""
    return Figure(name, group, label, "count", of_gpu(lambda report: getattr(report.counts, name)), compared=compared)


def _mean(name: str, label: str) -> Figure:
    """The mean of the run that is called as the figure."""
    return Figure(name, "Launches", label, "number", of_run(lambda run: getattr(run, name)))


def _of_kernels(name: str, label: str, value: Callable[[Run], float | None]) -> Figure:
    return Figure(name, "Kernels", label, "number", of_run(value))


def _once(name: str, label: str, value: Callable[[Report], Value], unit: Unit = "ns") -> Figure:
    return Figure(name, "Kernels", label, unit, value, once=True)


def _of_steps(name: str, label: str, value: Callable[[Run], float | None], column: str) -> Figure:
    """Launches by steps or tokens: of the run, else of all steps that the engine of a foreign trace marked."""

    def figure(report: Report) -> Value:
        if report.run is not None:
            return value(report.run)
        marked = [row for row in report.table(STEPS.name).to_json() if row["steps"]]
        if len({row["source"] for row in marked}) > 1:
            return None  # marks of two programs may lie in each other
        launches, parts = ([row[key] for row in marked] for key in ("launches", column))
        return None if None in launches or None in parts else per(_sum(launches), _sum(parts))

    return Figure(name, "Launches", label, "number", figure, tables=(STEPS,))


def _sum(values: list[Value]) -> int:
    return sum(value for value in values if isinstance(value, int))


def _of_class(run: Run, *names: str) -> int | None:
    """Kernels of these classes in the recorded steps; None where no GPU work is recorded."""
    classes = run.window.classes
    return None if classes is None else sum(classes[name].count for name in names if name in classes)


def _per_step(name: str, label: str, *classes: str) -> Figure:
    """Kernels of these classes per recorded step."""
    return _of_kernels(name, label, lambda run: per(_of_class(run, *classes), run.window.steps))


def _busy_ratio(report: Report) -> float | None:
    devices = report.devices.values()
    return per(sum(device.busy_ns for device in devices), sum(device.span_ns for device in devices))


def _elementwise(run: Run) -> float | None:
    return per(_of_class(run, "elementwise"), _of_class(run, "attention"))


LAUNCHES = (
    _count("launches", "launches in the trace", "Launches"),
    _count("launches_without_gpu_work", "launches without GPU work", "Launches", compared=False),
    _of_steps("launches_per_token", "launches per token", lambda run: run.launches_per_token, "tokens"),
    _of_steps("launches_per_step", "launches per step", lambda run: run.launches_per_step, "steps"),
    _mean("launches_per_molecule", "launches per molecule"),
    _count("graph_launches", "graph launches in the trace", "Launches"),
    _mean("leaf_operators_per_token", "leaf operators per token"),
    _mean("leaf_operators_per_step", "leaf operators per step"),
)
KERNELS = (
    _count("kernels", "kernels in the trace", "Kernels"),
    _count("kernels_without_call", "kernels without a recorded call", "Kernels", compared=False),
    _count("kernel_names", "distinct kernels", "Kernels", compared=False),
    _once("kernel_time_ns", "kernel time", of_gpu(lambda report: report.counts.kernel_time_ns)),
    _once("busy_ratio", "device busy", of_gpu(_busy_ratio), "ratio"),
    _once("gpu_ns_per_step", "GPU time per step", of_run(lambda run: per(run.window.gpu_ns, run.window.steps))),
    _per_step("copy_kernels_per_step", "copy kernels per step", "copy", "cat"),
    _per_step("attention_kernels_per_step", "attention kernels per step", "attention"),
    _of_kernels("elementwise_to_attention", "elementwise kernels per attention kernel", _elementwise),
)
