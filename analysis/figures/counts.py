"""Counts and device times of any trace."""

from __future__ import annotations

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import query_row, query_rows
from molprof.analysis.figures.model import Counts, DeviceTime, MemoryOperation

DEVICES = ("devices", "SELECT device, span_ns, busy_ns, idle_ns FROM molprof_device ORDER BY device")


def read_counts(engine: Engine) -> Counts:
    """Launches, kernels and memory operations of the whole trace."""
    row = query_row(
        engine,
        "launches",
        "SELECT launches, graph_launches, kernels, kernel_time_ns, kernel_names, launches_without_gpu_work,"
        " kernels_with_call, kernels_without_call FROM molprof_launch_count",
    )
    _, operations = query_rows(
        engine,
        "memory_operations",
        "SELECT name, count, time_ns, bytes FROM molprof_memory_operation ORDER BY name",
    )
    return Counts(
        **row,
        memory_operations={
            name: MemoryOperation(count, time_ns, size_bytes) for name, count, time_ns, size_bytes in operations
        },
    )


def read_devices(engine: Engine) -> dict[str, DeviceTime]:
    """Busy and idle time by device number as text."""
    _, rows = query_rows(engine, *DEVICES)
    return {device: DeviceTime(span_ns, busy_ns, idle_ns) for device, span_ns, busy_ns, idle_ns in rows}
