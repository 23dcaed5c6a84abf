"""Files of a small job's ranks: each computes, then takes part in an allreduce, twice; times in µs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tiny_trace import slice_

ALLREDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SIZES = {
    "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "Group size": 2,
    "dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
}  # fmt: skip


def gpu(name: str, ts: float, dur: float, correlation: int, stream: int = 7, **args: Any) -> dict[str, Any]:
    """A kernel on device 0."""
    return slice_("kernel", name, ts, dur, 0, stream, device=0, stream=stream, correlation=correlation, **args)


def launch(ts: float, correlation: int, pid: int | str = 100) -> dict[str, Any]:
    return slice_("cuda_runtime", "cudaLaunchKernel", ts, 1, pid, 100, correlation=correlation)


def events(late: float = 0, clock: float = 0) -> list[dict[str, Any]]:
    """One rank of two that exchange twice. late: µs by which its first kernel is longer; clock: added to all times.

    The other rank has late=0; the first allreduce of both ends at 200, the second at 400.
    """
    made = [
        slice_("user_annotation", "ProfilerStep#1", 0, 210),
        launch(1, 1),
        gpu("gemm", 10, 90 + late, 1),
        launch(5, 2),
        gpu(ALLREDUCE, 100 + late, 100 - late, 2, 20, **SIZES),
        slice_("user_annotation", "ProfilerStep#2", 210, 190),
        launch(211, 3),
        gpu("gemm", 220, 100, 3),
        launch(215, 4),
        gpu(ALLREDUCE, 310, 90, 4, 20, **SIZES),
    ]
    return [{**event, "ts": event["ts"] + clock} for event in made]


def write_rank(path: Path, rank: int, content: list[dict[str, Any]] | None = None, world_size: Any = 2) -> Path:
    """A file of `rank`, packed where the name ends so."""
    info = {"backend": "nccl", "rank": rank, "world_size": world_size}
    document = {"distributedInfo": info, "traceEvents": events() if content is None else content}
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
