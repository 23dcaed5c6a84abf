"""Counts of any trace, and the times of its devices."""

from __future__ import annotations

from msgspec import Struct

from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_row, query_rows

DEVICES = Query("devices", "SELECT device, span_ns, busy_ns, idle_ns FROM molprof_device ORDER BY device")
_LAUNCHES = Query(
    "launches",
    "SELECT launches, graph_launches, kernels, kernel_time_ns, kernel_names, launches_without_gpu_work,"
    " kernels_with_call, kernels_without_call FROM molprof_launch_count",
)
OPERATIONS = Query(
    "memory_operations", "SELECT name, count, time_ns, bytes FROM molprof_memory_operation ORDER BY name"
)
QUERIES = (DEVICES, _LAUNCHES, OPERATIONS)


class MemoryOperation(Struct, frozen=True):
    """Copies or sets of one name, all together."""

    count: int
    time_ns: int
    bytes: int


class Counts(Struct, frozen=True):
    """Counts of the whole trace; 0 where it records none."""

    launches: int
    graph_launches: int
    kernels: int
    kernel_time_ns: int
    kernel_names: int
    memory_operations: dict[str, MemoryOperation]
    launches_without_gpu_work: int
    kernels_with_call: int
    kernels_without_call: int


class DeviceTime(Struct, frozen=True):
    """From the first work of a device to the end of its last: busy is the union of its work, idle the rest."""

    span_ns: int
    busy_ns: int
    idle_ns: int


def read_counts(engine: TraceProcessor) -> Counts:
    """Launches, kernels and memory operations of the whole trace."""
    operations = {name: MemoryOperation(*figures) for name, *figures in query_rows(engine, OPERATIONS)[1]}
    return Counts(**query_row(engine, _LAUNCHES), memory_operations=operations)


def read_devices(engine: TraceProcessor) -> dict[str, DeviceTime]:
    """Busy and idle time by device number as text."""
    return {device: DeviceTime(*times_ns) for device, *times_ns in query_rows(engine, DEVICES)[1]}
