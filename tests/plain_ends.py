"""A plain reference for ends of recordings, work that cannot last so long, and syncs that outlast recorded work."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import plain_facts as plain

if TYPE_CHECKING:
    from plain_tables import PlainTrace

HOST = ("cpu_op", "cuda_runtime", "cuda_driver", "user_annotation")
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
FAR_NS = 1_000_000


def profiler(trace: PlainTrace) -> dict[int | None, plain.Interval]:
    """The span of the profiler of each rank, with at least half of its host events."""
    spans = defaultdict(list)
    for one in trace.slices.values():
        if one.category == "Trace":
            spans[trace.ranks.get(one.track)].append((one.ts, one.end))
    found = {}
    for rank, mine in spans.items():
        start, end = min(mine)[0], max(end for _, end in mine)
        host = [one.ts for one in trace.slices.values() if one.category in HOST and trace.ranks.get(one.track) == rank]
        if 2 * sum(start <= ts <= end for ts in host) >= len(host):
            found[rank] = start, end
    return found


def within_profiler(trace: PlainTrace, recorded: dict[int | None, plain.Interval]) -> dict[int | None, plain.Interval]:
    """The recorded spans without what lies before the profiler or after it; work that was launched by then goes on."""
    found = dict(recorded)
    for rank, (start, end) in profiler(trace).items():
        if rank in found:
            running = [piece.end for piece in trace.work if piece.rank == rank and (piece.call or piece).ts <= end]
            first, last = found[rank]
            found[rank] = max(first, start), min(last, max([end, *running]))
    return found


def overruns(trace: PlainTrace) -> dict[int, int]:
    """The latest end of GPU work whose own end is impossible."""
    streams, processes = defaultdict(list), set()
    for number, one in trace.slices.items():
        if one.category in GPU:
            thread = trace.thread_of.get(one.track)
            streams[thread].append((one.ts, number, one.end, trace.ranks.get(one.track)))
            processes.add(thread and thread[0])
    syncs = [
        (one.ts, one.end)
        for one in trace.slices.values()
        if one.category in ("cuda_runtime", "cuda_driver") and (one.name or "").endswith("DeviceSynchronize")
    ]
    spans, found = profiler(trace), {}
    for mine in streams.values():
        mine.sort()
        for place, (ts, number, end, rank) in enumerate(mine):
            following = mine[place + 1][0] if place + 1 < len(mine) else None
            start, last = spans.get(rank, (0, plain.BEHIND))
            if following is None:
                if end > last + FAR_NS and end - ts > last - start:
                    found[number] = last
            elif following < end:
                known = [sync[1] for sync in syncs if sync[0] > ts] if len(processes) == 1 else []
                if end > min([last, *known]) + FAR_NS:
                    found[number] = following
    return found


def with_unknown(trace: PlainTrace, parts: list[dict[str, int]]) -> list[dict[str, int]]:
    """What idle time went to; time in syncs that outlast all recorded work is not recorded."""
    behind_ns = max([0, *(piece.call.ts - piece.ts for piece in trace.work if piece.call)])
    waits = defaultdict(list)
    for number in trace.waiting:
        sync = trace.calls[number]
        rank = trace.ranks.get(trace.slices[number].track)
        ends = [
            piece.end
            for piece in trace.work
            if (piece.rank == rank and (piece.call is None or piece.call.ts < sync.ts))
            or (piece.call is not None and piece.call.id == number)
        ]
        ts = max([sync.ts, *ends])
        if sync.end - ts > 100_000 + behind_ns:
            waits[rank].append((ts, sync.end))
    ranks = {piece.device: piece.rank for piece in reversed(trace.work)}
    found = []
    for idle, part in zip(trace.idle, parts, strict=True):
        unknown = plain.length(plain.common(plain.union(waits[ranks[idle.device]]), idle.ts, idle.end))
        moved = min(unknown, part.get("cpu_waited", 0))
        changed = {**part, "cpu_waited": part.get("cpu_waited", 0) - moved}
        changed["not_recorded"] = part.get("not_recorded", 0) + moved
        found.append({cause: time_ns for cause, time_ns in changed.items() if time_ns})
    return found
