"""Counts and device times of any trace."""

from __future__ import annotations

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row, query_rows
from molprof.analysis.figures.model import Counts, DeviceTime, MemoryOperation

_LAUNCHES = Query(
    "launches",
    "SELECT launches, graph_launches, kernels, kernel_time_ns, kernel_names, launches_without_gpu_work,"
    " kernels_with_call, kernels_without_call FROM molprof_launch_count",
)
_OPERATIONS = Query(
    "memory_operations", "SELECT name, count, time_ns, bytes FROM molprof_memory_operation ORDER BY name"
)
DEVICES = Query("devices", "SELECT device, span_ns, busy_ns, idle_ns FROM molprof_device ORDER BY device", "any")


def read_counts(engine: Engine) -> Counts:
    """Launches, kernels and memory operations of the whole trace."""
    operations = {name: MemoryOperation(*figures) for name, *figures in query_rows(engine, _OPERATIONS)[1]}
    return Counts(**query_row(engine, _LAUNCHES), memory_operations=operations)


def read_devices(engine: Engine) -> dict[str, DeviceTime]:
    """Busy and idle time by device number as text."""
    return {device: DeviceTime(*times_ns) for device, *times_ns in query_rows(engine, DEVICES)[1]}
