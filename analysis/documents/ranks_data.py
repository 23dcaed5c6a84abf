"""The ranks of a job as JSON: names are documented in docs/ranks.md."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from molprof.analysis.ranks import Job
from molprof.analysis.ranks.clocks import Spread
from molprof.analysis.ranks.exchanges import Cost

SCHEMA = 1
PARTS = ("compute_ns", "exposed_ns", "waiting_ns", "idle_ns")
_OF_STEP = ("rank", "start_ns", "wall_ns", *PARTS, "hidden_ns")


def ranks_data(job: Job) -> dict[str, Any]:
    stragglers = {(item.step, item.number): item for item in job.stragglers}
    return {
        "schema": SCHEMA,
        "world_size": job.world_size,
        "remarks": list(job.remarks),
        "left_out": list(job.left_out),
        "clocks": {
            "recorded": _spread(job.clocks.recorded),
            "aligned": _spread(job.clocks.aligned),
            "unaligned_ranks": list(job.clocks.unaligned),
        },
        "ranks": [
            {
                "rank": rank.rank,
                "path": rank.path,
                "backend": rank.backend,
                "complete": rank.problem is None,
                "clock_offset_ns": None if rank.rank in job.clocks.unaligned else job.clocks.offsets_ns[rank.rank],
                **totals(job, rank.rank),
                "devices": {times.device: _without(to_builtins(times), "device") for times in rank.times},
            }
            for rank in job.ranks
        ],
        "steps": [
            {
                "name": name,
                "number": number,
                "straggler": (
                    _without(to_builtins(stragglers[name, number]), "step", "number")
                    if (name, number) in stragglers
                    else None
                ),
                "ranks": [{name: getattr(step, name) for name in _OF_STEP} for step in steps],
            }
            for (name, number), steps in job.steps.items()
        ],
        "collectives": [_cost(cost) for cost in job.costs],
        "checks": [{**to_builtins(check), "holds": check.holds} for check in job.checks],
    }


def totals(job: Job, rank: int) -> dict[str, int]:
    """Return the times of a rank over all steps: `wall_ns` is the sum of PARTS."""
    steps = [step for found in job.steps.values() for step in found if step.rank == rank]
    return {name: sum(getattr(step, name) for step in steps) for name in ("wall_ns", *PARTS, "hidden_ns")}


def _cost(cost: Cost) -> dict[str, Any]:
    one = cost.exchange.one
    parts = cost.parts.values()
    return {
        "group": cost.exchange.group,
        "operation": one.operation,
        "dtype": one.dtype,
        "bytes": one.bytes,
        "ranks": sorted(cost.parts),
        "start_ns": min(part.start_ns for part in parts),
        "end_ns": max(part.end_ns for part in parts),
        "last_rank": cost.last_rank,
        "late_ns": cost.late_ns,
        "data_ns": cost.moving_ns,
        "waiting_ns": sum(part.waiting_ns for part in parts),
        "moving_ns": sum(part.moving_ns for part in parts),
        "exposed_ns": sum(part.exposed_ns for part in parts),
        "hidden_ns": sum(part.hidden_ns for part in parts),
        "bus_bytes_per_s": None if cost.bus_bytes_per_s is None else list(cost.bus_bytes_per_s),
    }


def _spread(spread: Spread | None) -> dict[str, int] | None:
    return None if spread is None else to_builtins(spread)


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
