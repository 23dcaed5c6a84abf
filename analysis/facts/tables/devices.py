"""Tables about devices: busy time, idle time and its causes, streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from molprof.analysis.facts import coverage, gaps, intervals
from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.gaps import CAUSES, NONE, POSITIONS
from molprof.analysis.facts.tables.table import Column, FactTable, ids, names


def _devices(facts: Facts) -> Sequence[Column]:
    span, idle, count = gaps.busy_time(facts.work, facts.gaps, len(facts.devices))
    return facts.devices, span, span - idle, idle, count


def _device_gaps(facts: Facts) -> Sequence[Column]:
    gaps = facts.gaps
    return names(facts.devices, facts.work.device[gaps.next]), gaps.ts, gaps.ts_end


def _device_work(facts: Facts) -> Sequence[Column]:
    work = facts.work
    before = intervals.ends_before(work.device, work.ts, work.ts_end)
    return work.id, [None if last == NONE else int(work.ts_end[last]) for last in before.tolist()]


def _idle_sums(facts: Facts) -> Sequence[Column]:
    idle, parts = facts.idle, facts.parts
    of = parts.idle
    keys = idle.device[of], idle.position[of], idle.is_long[of].astype(np.int64), parts.cause
    rows, counts, times, longest = gaps.summed(keys, parts.time_ns)
    return (
        [facts.devices[row[0]] for row in rows],
        [POSITIONS[row[1]] for row in rows],
        [row[2] for row in rows],
        [CAUSES[row[3]] for row in rows],
        counts,
        times,
        longest,
    )


def _idle_gaps(facts: Facts) -> Sequence[Column]:
    idle, size = facts.idle, len(facts.idle.ts)
    return (
        np.arange(size),
        names(facts.devices, idle.device),
        names(POSITIONS, idle.position),
        idle.ts,
        idle.ts_end,
        ids(facts.work.id, idle.next),
        names(CAUSES, gaps.largest_part(facts.parts, size)),
    )


def _concurrency(facts: Facts) -> Sequence[Column]:
    device, running, time_ns = coverage.concurrency(facts.work)
    return names(facts.devices, device), running, time_ns


def _streams(facts: Facts) -> Sequence[Column]:
    work = facts.work
    order = np.lexsort((work.id, work.ts, work.stream, work.device))
    device, stream, ts, ts_end = (x[order] for x in (work.device, work.stream, work.ts, work.ts_end))
    new = np.append(True, (device[1:] != device[:-1]) | (stream[1:] != stream[:-1]))[: len(order)]
    key = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    before = intervals.ends_before(key, ts, ts_end)
    overlap = np.where(before >= 0, np.maximum(np.minimum(ts_end, ts_end[before]) - ts, 0), 0)
    sums = np.zeros((3, len(first)), dtype=np.int64)
    for row, amounts in enumerate((facts.is_kernel[order], ts_end - ts, overlap)):
        np.add.at(sums[row], key, amounts)
    if not len(first):
        return [()] * 9
    return (
        names(facts.devices, device[first]),
        [None if number == gaps.NO_STREAM else number for number in stream[first].tolist()],
        np.bincount(key),
        sums[0],
        sums[1],
        np.maximum.reduceat(ts_end, first) - ts[first],
        np.bincount(key, overlap > 0).astype(np.int64),
        sums[2],
        np.maximum.reduceat(overlap, first),
    )


def _rank_devices(facts: Facts) -> Sequence[Column]:
    work, size = facts.work, len(facts.devices)
    span, idle, _ = gaps.busy_time(work, facts.gaps, size)
    is_collective, is_kernel = facts.is_collective, facts.is_kernel
    of_kind = coverage.exposure(work, is_collective.astype(np.int64) + 2 * work.device, 2 * size).busy.reshape(size, 2)
    counts = [
        np.bincount(work.device, weights, minlength=size).astype(np.int64)
        for weights in (is_kernel, is_kernel & (work.call == NONE), is_collective)
    ]
    kernel_ns = np.zeros(size, dtype=np.int64)
    np.add.at(kernel_ns, work.device[is_kernel], (work.ts_end - work.ts)[is_kernel])
    rank = np.full(size, NONE)
    rank[work.device] = facts.ranks
    return (
        [None if number == NONE else number for number in rank.tolist()], facts.devices, span, span - idle,
        of_kind[:, 0], of_kind[:, 1], counts[0], kernel_ns, counts[1], counts[2],
    )  # fmt: skip


def _recorded(facts: Facts) -> Sequence[Column]:
    ranks, starts, ends = facts.recorded
    return [None if rank == NONE else rank for rank in ranks.tolist()], starts, ends


TABLES = {
    "recorded": FactTable(("rank LONG", "ts TIMESTAMP", "ts_end TIMESTAMP"), _recorded),
    "device": FactTable(
        ("device STRING", "span_ns DURATION", "busy_ns DURATION", "idle_ns DURATION", "count LONG"), _devices
    ),
    "device_gap": FactTable(("device STRING", "ts TIMESTAMP", "ts_end TIMESTAMP"), _device_gaps),
    "device_work": FactTable(("id JOINID(slice.id)", "busy_until TIMESTAMP"), _device_work),
    "idle_sum": FactTable(
        (
            "device STRING", "position STRING", "is_long LONG", "cause STRING", "count LONG", "time_ns DURATION",
            "longest_ns DURATION",
        ),
        _idle_sums,
    ),
    "idle_gap": FactTable(
        (
            "id LONG", "device STRING", "position STRING", "ts TIMESTAMP", "ts_end TIMESTAMP",
            "next_id JOINID(slice.id)", "cause STRING",
        ),
        _idle_gaps,
    ),
    "concurrency": FactTable(("device STRING", "running LONG", "time_ns DURATION"), _concurrency),
    "stream": FactTable(
        (
            "device STRING", "stream LONG", "count LONG", "kernels LONG", "time_ns DURATION", "span_ns DURATION",
            "overlaps LONG", "overlap_ns DURATION", "longest_ns DURATION",
        ),
        _streams,
    ),
    "rank_device": FactTable(
        (
            "rank LONG", "device STRING", "span_ns DURATION", "busy_ns DURATION", "compute_ns DURATION",
            "communication_ns DURATION", "kernels LONG", "kernel_time_ns DURATION", "kernels_without_call LONG",
            "collectives LONG",
        ),
        _rank_devices,
    ),
    "phase_bound": FactTable(
        ("phase_id JOINID(slice.id)", "idle_ns DURATION", "sync_idle_ns DURATION"), lambda facts: facts.phase_bound
    ),
}  # fmt: skip
