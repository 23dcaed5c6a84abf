"""Counters that the profiler sampled on the GPU: power, temperature, activity of its multiprocessors and its memory."""

from __future__ import annotations

from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.tables import TableQuery
from molprof.common.values import Unit, Value, per

_GROUP = "GPU counters"
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


def _mean(report: Report, name: str, unit: str, factor: float = 1.0) -> float | None:
    """Mean of a counter over the devices that have samples while they worked."""
    rows = [row for row in report.table(_SUMMARY.name).to_json() if (row["name"], row["unit"]) == (name, unit)]
    means = [value * factor for row in rows if isinstance(value := row["working_mean"], (int, float))]
    return per(sum(means), len(means))


def _energy(report: Report) -> Value:
    """Energy of all devices per token."""
    values = [row["energy_per_token_j"] for row in report.table(_ENERGY.name).to_json()]
    known = [value for value in values if isinstance(value, (int, float))]
    return sum(known) if known and len(known) == len(values) else None


def _counter(id_: str, label: str, unit: Unit, name: str, of: str) -> Figure:
    factor = 0.01 if of == "%" else 1.0

    def value(report: Report) -> Value:
        return _mean(report, name, of, factor)

    return Figure(id_, _GROUP, label, unit, value, _SUMMARY.sql, once=True, tables=(_SUMMARY,), stands_in=True)


COUNTERS = (
    _counter("sm_active_ratio", "mean SM activity", "ratio", "SM Active", "%"),
    _counter("dram_bandwidth_ratio", "mean DRAM bandwidth, of the most possible", "ratio", "DRAM BW", "%"),
    _counter("power_w", "mean power, W", "number", "Power", "W"),
    _counter("temperature_c", "mean temperature, °C", "number", "Temperature", "C"),
    Figure(
        "energy_per_token_j",
        _GROUP,
        "energy per token, J",
        "number",
        _energy,
        _ENERGY.sql,
        once=True,
        tables=(_ENERGY,),
        stands_in=True,
    ),
)
