"""What each collective cost: waiting for its last rank, moving data, hidden or exposed, and its bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from molprof.analysis.figures.union import Union
from molprof.analysis.ranks.clocks import JOINT, Clocks
from molprof.analysis.ranks.match import Exchange, member_count
from molprof.common.values import Range


@dataclass(frozen=True)
class Part:
    """A rank's part of an exchange, ns, on the aligned clock."""

    start_ns: int
    end_ns: int
    waiting_ns: int  # until the last rank began
    hidden_ns: int  # behind other work of the rank

    @property
    def moving_ns(self) -> int:
        return self.end_ns - self.start_ns - self.waiting_ns

    @property
    def exposed_ns(self) -> int:
        return self.end_ns - self.start_ns - self.hidden_ns


@dataclass(frozen=True)
class Cost:
    """An exchange on the aligned clock."""

    exchange: Exchange
    parts: dict[int, Part]
    last_rank: int | None  # which began last; None if not all ranks wait for it
    late_ns: int  # by which it began after the median of the others
    moving_ns: int  # from the last start to the last end
    bus_bytes_per_s: Range | None  # lowest and highest; equal where the size of the group is recorded


def cost_of(item: Exchange, clocks: Clocks, compute: Mapping[int, Union], world_size: int | None) -> Cost:
    """compute: of each rank, when it ran other work, on the clock of its file."""
    offsets = clocks.offsets_ns
    starts = {rank: kernel.start_ns - offsets[rank] for rank, kernel in item.kernels.items()}
    ends = {rank: kernel.end_ns - offsets[rank] for rank, kernel in item.kernels.items()}
    last = max(starts, key=lambda rank: (starts[rank], -rank))
    waits = item.one.operation in JOINT  # so its ranks are aligned with each other
    parts = {
        rank: Part(
            starts[rank],
            ends[rank],
            min(starts[last], ends[rank]) - starts[rank] if waits else 0,
            int(compute[rank].covered(kernel.start_ns, kernel.end_ns)),
        )
        for rank, kernel in item.kernels.items()
    }
    others = [start for rank, start in starts.items() if rank != last]
    late = round(starts[last] - median(others)) if waits else 0
    moving = max(0, max(ends.values()) - (starts[last] if waits else min(starts.values())))
    return Cost(item, parts, last if waits else None, late, moving, _bandwidth(item, moving, world_size))


def _bandwidth(item: Exchange, moving_ns: int, world_size: int | None) -> Range | None:
    """Bytes/s of the busiest link: see github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md, `busbw`."""
    size, operation = item.one.bytes, item.one.operation
    count = member_count(item.one)
    fewest = count or len(item.kernels)
    most = count or max(fewest, world_size or fewest)
    low, high = bus_factor(operation, fewest), bus_factor(operation, most)
    if size is None or not moving_ns or low is None or high is None:
        return None
    return size * low * 1e9 / moving_ns, size * high * 1e9 / moving_ns


def bus_factor(operation: str, ranks: int) -> float | None:
    """Bytes over the busiest link per byte of the collective, after nccl-tests; None for other operations."""
    if operation == "allreduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("allgather", "reducescatter", "alltoall"):
        return (ranks - 1) / ranks
    return 1.0 if operation in ("broadcast", "reduce") else None
