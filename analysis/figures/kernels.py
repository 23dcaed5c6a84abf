"""Launches, leaf operators and kernels: of the trace, and per token, step and molecule of the recorded steps."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.figures.figure import Figure, of_gpu, of_run, without_gpu
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run
from molprof.analysis.figures.tables import STEPS
from molprof.common.values import Unit, Value, per


def _count(name: str, label: str, group: str, compared: bool = True) -> Figure:
    """The count of the trace that is called as the figure."""
    return Figure(name, group, label, "count", of_gpu(lambda report: getattr(report.counts, name)), compared=compared)


def _mean(name: str, label: str, value: Callable[[Run], float | None]) -> Figure:
    return Figure(name, "Launches", label, "number", of_run(value))


def _operators(name: str, label: str, value: Callable[[Run], float | None]) -> Figure:
    """Leaf operators, in place of launches."""
    return Figure(name, "Launches", label, "number", without_gpu(of_run(value)), if_recorded=True)


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


def _in_steps(run: Run, count: int | None) -> float | None:
    return per(count, run.window.steps)


def _of_class(run: Run, *names: str) -> int | None:
    """Kernels of these classes in the recorded steps; None where no GPU work is recorded."""
    classes = run.window.classes
    return None if classes is None else sum(classes[name].count for name in names if name in classes)


def _per_step(name: str, label: str, *classes: str) -> Figure:
    """Kernels of these classes per recorded step."""
    return _of_kernels(name, label, lambda run: _in_steps(run, _of_class(run, *classes)))


def _busy_ratio(report: Report) -> float | None:
    devices = report.devices.values()
    return per(sum(device.busy_ns for device in devices), sum(device.span_ns for device in devices))


def _elementwise(run: Run) -> float | None:
    """Direct copies and fills are elementwise kernels by name."""
    return per(_of_class(run, "elementwise", "copy", "fill"), _of_class(run, "attention"))


LAUNCHES = (
    _count("launches", "launches in the trace", "Launches"),
    _count("launches_without_gpu_work", "launches without GPU work", "Launches", compared=False),
    _of_steps("launches_per_token", "launches per token", lambda run: run.launches_per_token, "tokens"),
    _of_steps("launches_per_step", "launches per step", lambda run: run.launches_per_step, "steps"),
    _mean("launches_per_molecule", "launches per molecule", lambda run: run.launches_per_molecule),
    _count("graph_launches", "graph launches in the trace", "Launches"),
    _mean("graph_launches_per_step", "graph launches per step", lambda run: _in_steps(run, run.window.graph_launches)),
    _mean("syncs_per_step", "host syncs per step", lambda run: _in_steps(run, run.window.syncs)),
    _operators("leaf_operators_per_token", "leaf operators per token", lambda run: run.leaf_operators_per_token),
    _operators("leaf_operators_per_step", "leaf operators per step", lambda run: run.leaf_operators_per_step),
)
KERNELS = (
    _count("kernels", "kernels in the trace", "Kernels"),
    _count("kernels_without_call", "kernels without a recorded call", "Kernels", compared=False),
    _count("kernel_names", "distinct kernels", "Kernels", compared=False),
    _once("kernel_time_ns", "kernel time", of_gpu(lambda report: report.counts.kernel_time_ns)),
    _once("busy_ratio", "device busy", of_gpu(_busy_ratio), "ratio"),
    _once("gpu_ns_per_step", "GPU time per step", of_run(lambda run: per(run.window.gpu_ns, run.window.steps))),
    _of_kernels("kernels_per_step", "kernels per step", lambda run: _in_steps(run, run.window.kernels)),
    _per_step("copy_kernels_per_step", "copy kernels per step", "copy"),
    _per_step("cat_kernels_per_step", "cat kernels per step", "cat"),
    _per_step("attention_kernels_per_step", "attention kernels per step", "attention"),
    _of_kernels("elementwise_to_attention", "elementwise kernels per attention kernel", _elementwise),
)
