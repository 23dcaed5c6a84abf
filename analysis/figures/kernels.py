"""Figures of GPU work: launches, kernels and work by kind, of the trace and per token, step and molecule; counters.

Leaf operators stand in for launches where no GPU calls are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from molprof.analysis.figures.figure import STEPS_SQL, CountedEvents, Figure, TableQuery, of_gpu, without_gpu
from molprof.analysis.figures.model import Group, Report
from molprof.analysis.figures.run_model import RunTotal
from molprof.analysis.figures.tables import STEPS
from molprof.common.values import Unit, Value, per

_KINDS = TableQuery(
    "work_kinds",
    "Copies, cats, attention, kernels named elementwise or as masks are, and memory copies (kinds overlap)",
    "SELECT kind, count, time_ns, step_count, step_time_ns FROM molprof_work_kind"
    " WHERE (SELECT SUM(count) FROM molprof_work_kind) > 0 ORDER BY kind",
)
_SUMMARY = TableQuery(
    "counters",
    "GPU counters (working: samples from the start of the device's first work to the end of its last)",
    "SELECT device, name, unit, count, least, mean, most, working_count, working_mean"
    " FROM molprof_counter_summary ORDER BY device, name, unit",
)
_ENERGY = TableQuery(
    "energy",
    "Energy of the recorded steps, from samples of power",
    "SELECT device, span_ns, count, mean_w, energy_j, tokens, energy_per_token_j FROM molprof_energy ORDER BY device",
    "counters",
)
# Ids and labels of kinds of work, as of molprof_work_kind.
_KERNEL_KINDS = ("copy", "cat", "attention")
_MEMORY_KINDS = {"memcpy_htod": "memcpy HtoD", "memcpy_dtoh": "memcpy DtoH", "memcpy_dtod": "memcpy DtoD"}
_TOKENS_SQL = STEPS_SQL.replace("steps", "tokens", 1)


def _count(name: str, label: str, group: str, rests_on: Group, unit: Unit = "count", **fields: Any) -> Figure:
    """Return the figure of the field of `Counts` with the figure's name."""
    value = of_gpu(lambda report: getattr(report.counts, name))
    sql = f"SELECT {name} FROM molprof_launch_count"
    counted = CountedEvents({"kernel_time_ns": "kernels"}.get(name, name))
    return Figure(name, group, label, unit, value, sql, (rests_on,), counted=counted, **fields)


def _device(name: str, label: str, unit: Unit, value: Callable[[Report], Value], sql: str, rests_on: Group) -> Figure:
    sql = f"SELECT {sql} AS {name} FROM molprof_device"
    return Figure(name, "Kernels", label, unit, of_gpu(value), sql, (rests_on,), once=True)


def _run_total(column: str, label: str, group: str, gpu: bool = True) -> Figure:
    """Return a count over all steps of a run, estimated unless all are recorded."""

    def total(report: Report) -> RunTotal | None:
        return None if report.run is None else (report.run.totals or {}).get(column)

    def value(report: Report) -> Value:
        return None if (estimate := total(report)) is None else estimate.value

    read = of_gpu(value) if gpu else without_gpu(value)
    sql = (
        f"SELECT batch, step, SUM({column}) AS count FROM molprof_phase_work WHERE step IS NOT NULL"
        " GROUP BY batch, step ORDER BY batch, step"
    )
    return Figure(f"run_{column}", group, f"{label} of all steps (estimate)", "count", read, sql,
                  ("steps", "gpu_work", "launches"), once=True, counted=CountedEvents(column, in_steps=True),
                  stands_in=not gpu, total=total)  # fmt: skip


def _marked(report: Report, column: str) -> int | None:
    """Return the sum of a column over the steps that a foreign trace marks.

    None without marks, or where a step does not tell.
    """
    rows = [row for row in report.table(STEPS.name).to_json() if row["steps"]]
    if report.run is not None or len({row["source"] for row in rows}) != 1:
        return None  # marks of two programs may lie in each other
    values = [row.get(column) for row in rows]
    numbers = [value for value in values if isinstance(value, int)]
    return sum(numbers) if len(numbers) == len(values) else None


def _gpu_ns(report: Report) -> int:
    """Return the time of all kernels, copies and sets of the trace."""
    return report.counts.kernel_time_ns + sum(item.time_ns for item in report.counts.memory_operations.values())


# In a foreign trace, the count of the whole trace that is divided by the tokens or molecules that the user gives.
_OF_TRACE: dict[str, Callable[[Report], int]] = {
    "launches": lambda report: report.counts.launches,
    "kernels": lambda report: report.counts.kernels,
    "gpu_ns": _gpu_ns,
}


def _mean(column: str, per_what: str, label: str, group: str, rests_on: Group, **fields: Any) -> Figure:
    """Return a column of `WindowFigures`, and of the table of steps, per step, token or molecule."""
    name, divisor = f"{column}_per_{per_what}", f"{per_what}s"

    def value(report: Report) -> Value:
        run = report.run
        if run is not None and per_what == "molecule":
            return run.per_molecule(column)
        if run is not None:
            return per(getattr(run.window, column), getattr(run.window, divisor))
        count = getattr(report.given, divisor, None)
        if count is None and per_what != "molecule":
            return per(_marked(report, column), _marked(report, divisor))
        return per(_OF_TRACE[column](report) if column in _OF_TRACE else None, count)

    table = "step_launch_summary WHERE steps > 0" if column != "leaf_operators" else "phase_work WHERE step IS NOT NULL"
    divided_by = _TOKENS_SQL if per_what == "token" else STEPS_SQL
    sql = f"SELECT SUM({column}) * 1.0 / {divided_by} AS {name} FROM molprof_{table}"
    read = without_gpu(value) if fields.get("stands_in") else of_gpu(value)
    fields["counted"] = CountedEvents({"gpu_ns": "work"}.get(column, column), in_steps=True)
    return Figure(name, group, label, fields.pop("unit", "number"), read, sql, (rests_on, "links", "steps"), **fields)


def _kind(report: Report, name: str, column: str = "count") -> int | None:
    """Return a column of _KINDS; 0 for a kind that the trace lacks.

    None where steps lack parts, or in a stored report that lacks the table.
    """
    if column == "step_count" and not report.trace.whole_steps:
        return None
    rows = report.table(_KINDS.name).to_json()
    value: Value = next((row[column] for row in rows if row["kind"] == name), 0 if rows else None)
    return value if isinstance(value, int) else None


def _of_kind(id_: str, label: str, unit: Unit, kind: str, column: str, *rests_on: Group) -> Figure:
    """Return the figure of one kind of work: a column of _KINDS; `step_count` per step."""

    def value(report: Report) -> Value:
        amount = _kind(report, kind, column)
        if column != "step_count":
            return amount
        return per(amount, _marked(report, "steps") if report.run is None else report.run.window.steps)

    divided = f" * 1.0 / {STEPS_SQL}" if column == "step_count" else ""
    sql = f"SELECT {column}{divided} AS {id_} FROM molprof_work_kind WHERE kind = '{kind}'"
    counted = CountedEvents(kind, in_steps=column == "step_count")
    return Figure(id_, "Work by kind", label, unit, of_gpu(value), sql, rests_on, once=unit == "ns", counted=counted,
                  tables=(_KINDS,))  # fmt: skip


def _of_kinds(name: str, label: str, kind: str) -> tuple[Figure, ...]:
    return (
        _of_kind(name, f"{label} in the trace", "count", kind, "count", "gpu_work"),
        _of_kind(f"{name}_per_step", f"{label} per step", "number", kind, "step_count", "gpu_work", "links", "steps"),
        _of_kind(f"{name}_ns", f"time of {label} in the trace", "ns", kind, "time_ns", "gpu_time"),
    )


def _kind_column(report: Report) -> str:
    """Return the column that counts work of the recorded steps; of a foreign trace without steps, all work."""
    return "count" if report.run is None and _marked(report, "steps") is None else "step_count"


def _elementwise_to_attention(report: Report) -> float | None:
    column = _kind_column(report)
    return per(_kind(report, "elementwise", column), _kind(report, "attention", column))


def _elementwise_sql(report: Report) -> str:
    column, table = _kind_column(report), "FROM molprof_work_kind WHERE kind ="
    return (
        f"SELECT {column} * 1.0 / (SELECT {column} {table} 'attention') AS elementwise_to_attention"
        f" {table} 'elementwise'"
    )


def _busy_ratio(report: Report) -> float | None:
    devices = report.devices.values()
    return per(sum(device.busy_ns for device in devices), sum(device.span_ns for device in devices))


def _longest_span_ns(report: Report) -> int | None:
    return max((device.span_ns for device in report.devices.values()), default=None)


def _energy(report: Report) -> Value:
    """Return the energy of all devices per token."""
    values = [row["energy_per_token_j"] for row in report.table(_ENERGY.name).to_json()]
    recorded = [value for value in values if isinstance(value, (int, float))]
    return sum(recorded) if recorded and len(recorded) == len(values) else None


def _counter(id_: str, label: str, unit: Unit, name: str, of: str) -> Figure:
    """Return the mean of a counter over the devices that have samples while they worked."""
    factor = 0.01 if of == "%" else 1.0

    def value(report: Report) -> Value:
        rows = [row for row in report.table(_SUMMARY.name).to_json() if (row["name"], row["unit"]) == (name, of)]
        means = [value * factor for row in rows if isinstance(value := row["working_mean"], (int, float))]
        return per(sum(means), len(means))

    return Figure(id_, "GPU counters", label, unit, value, _SUMMARY.sql, once=True, tables=(_SUMMARY,), stands_in=True)


LAUNCHES = (
    _count("launches", "launches in the trace", "Launches", "launches"),
    _count("launches_without_gpu_work", "launches without GPU work", "Launches", "links", compared=False),
    _mean("launches", "token", "launches per token", "Launches", "launches"),
    _mean("launches", "step", "launches per step", "Launches", "launches"),
    _mean("launches", "molecule", "launches per molecule", "Launches", "launches"),
    _run_total("launches", "launches", "Launches"),
    _count("graph_launches", "graph launches in the trace", "Launches", "graphs"),
    _mean("graph_launches", "step", "graph launches per step", "Launches", "launches"),
    _mean("syncs", "step", "host syncs per step", "Launches", "launches"),
    _mean("leaf_operators", "token", "leaf operators per token", "Launches", "launches", stands_in=True),
    _run_total("leaf_operators", "leaf operators", "Launches", gpu=False),
    _mean("leaf_operators", "step", "leaf operators per step", "Launches", "launches", stands_in=True),
)
KERNELS = (
    _count("kernels", "kernels in the trace", "Kernels", "gpu_work"),
    _count("kernels_without_call", "kernels without a recorded call", "Kernels", "links", compared=False),
    _count("kernel_names", "distinct kernels", "Kernels", "gpu_work", compared=False),
    _run_total("kernels", "kernels", "Kernels"),
    _count("kernel_time_ns", "kernel time", "Kernels", "gpu_time", unit="ns", once=True),
    _device("device_span_ns", "device span, profiled", "ns", _longest_span_ns, "MAX(span_ns)", "gpu_time"),
    _device("busy_ratio", "device busy", "ratio", _busy_ratio, "SUM(busy_ns) * 1.0 / SUM(span_ns)", "gpu_idle"),
    _mean("gpu_ns", "step", "GPU time per step", "Kernels", "gpu_time", unit="ns", once=True),
    _mean("gpu_ns", "token", "GPU time per token", "Kernels", "gpu_time", unit="ns", once=True),
    _mean("kernels", "step", "kernels per step", "Kernels", "gpu_work"),
    _mean("kernels", "token", "kernels per token", "Kernels", "gpu_work"),
    _mean("kernels", "molecule", "kernels per molecule", "Kernels", "gpu_work"),
)
WORK = (
    *(figure for kind in _KERNEL_KINDS for figure in _of_kinds(f"{kind}_kernels", f"{kind} kernels", kind)),
    # Not what is of the class elementwise: copies, fills and more are made with kernels of that name.
    *_of_kinds("elementwise_kernels", "kernels named elementwise", "elementwise"),
    Figure(
        "elementwise_to_attention",
        "Work by kind",
        "elementwise by name per attention kernel",
        "number",
        of_gpu(_elementwise_to_attention),
        _elementwise_sql,
        ("gpu_work",),
        tables=(_KINDS,),
        counted=CountedEvents("elementwise", in_steps=True),
    ),
    *_of_kinds("masking_candidates", "masking candidates", "masking"),
    *(figure for name, label in _MEMORY_KINDS.items() for figure in _of_kinds(name, label, label)),
)
COUNTERS = (
    _counter("sm_active_ratio", "mean SM activity", "ratio", "SM Active", "%"),
    _counter("dram_bandwidth_ratio", "mean DRAM bandwidth, of the most possible", "ratio", "DRAM BW", "%"),
    _counter("power_w", "mean power, W", "number", "Power", "W"),
    _counter("temperature_c", "mean temperature, °C", "number", "Temperature", "C"),
    Figure(
        "energy_per_token_j",
        "GPU counters",
        "energy per token, J",
        "number",
        _energy,
        _ENERGY.sql,
        once=True,
        tables=(_ENERGY,),
        stands_in=True,
    ),
)
