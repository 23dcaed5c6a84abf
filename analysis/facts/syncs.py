"""Host syncs that last longer than all recorded work before them: what ran until their end is not recorded."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import CAUSES, LATE_NS, NONE, Array, GpuWork, Idle, Parts
from molprof.analysis.facts.intervals import Coverage


class LongSyncs(Struct, frozen=True):
    """Such syncs in order of start: arrays of int64."""

    call: Array  # index of the call
    ts: Array  # when all recorded work that was queued by then had ended, or the sync began
    ts_end: Array
    rank: Array

    def windows(self, keys: Array, ranks: Array) -> Coverage:
        """Return the time in which syncs of each key's rank last beyond the recorded work."""
        key, sync = np.nonzero(ranks[:, None] == self.rank[None, :])
        return Coverage(keys[key], self.ts[sync], self.ts_end[sync])


def long_syncs(work: GpuWork, work_ranks: Array, sync: Array, ranks: Array, spans: tuple[Array, Array]) -> LongSyncs:
    """Return the host syncs that last beyond the last work queued at their start, and their own copy, if any.

    Until its end such a sync waits for work that is not recorded: further rounds of a loop in a graph (kineto#1062),
    work that a kernel launched, or that of another process. Work without a recorded call was queued before. Where work
    begins before its call, the GPU's clock is behind, and syncs seem to last longer than their work by as much.

    sync: indices of the calls that are host syncs, in order; ranks, spans: rank, start and end of each.
    """
    begins, ends = spans
    ended = np.full(int(max(sync.max(initial=0), work.call.max(initial=0))) + 2, NONE)  # the last is that of no call
    np.maximum.at(ended, work.call, work.ts_end)
    ended[-1] = NONE
    last = ended[sync]
    queued = np.where(work.call == NONE, np.iinfo(np.int64).min, work.call_ts)
    for rank in np.unique(ranks).tolist():
        mine, its_work = ranks == rank, np.flatnonzero(work_ranks == rank)
        order = its_work[np.argsort(queued[its_work], kind="stable")]
        reached = np.append(NONE, np.maximum.accumulate(work.ts_end[order]))
        last[mine] = np.maximum(last[mine], reached[np.searchsorted(queued[order], begins[mine])])
    ts = np.maximum(last, begins)
    behind_ns = max(0, int((work.call_ts - work.ts).max(initial=0)))
    is_long = ends - ts > LATE_NS + behind_ns
    return LongSyncs(sync[is_long], ts[is_long], ends[is_long], ranks[is_long])


def not_recorded(parts: Parts, idle: Idle, waits: Coverage) -> Parts:
    """Return idle time by cause, with the cause `not_recorded` for the time in such syncs.

    waits: when such syncs wait, by device.
    """
    unknown = waits.covered(idle.device, idle.ts, idle.ts_end)[parts.idle]
    moved = np.where(parts.cause == CAUSES.index("cpu_waited"), np.minimum(unknown, parts.time_ns), 0)
    left, more = np.flatnonzero(moved < parts.time_ns), np.flatnonzero(moved)
    rows = np.append(parts.idle[left], parts.idle[more])
    cause = np.append(parts.cause[left], np.full(len(more), CAUSES.index("not_recorded")))
    # A cause has one row of each idle time.
    keys, which = np.unique(rows * len(CAUSES) + cause, return_inverse=True)
    time_ns = np.zeros(len(keys), dtype=np.int64)
    np.add.at(time_ns, which, np.append((parts.time_ns - moved)[left], moved[more]))
    return Parts(keys // len(CAUSES), keys % len(CAUSES), time_ns)
