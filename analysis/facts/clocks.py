"""Times of the host and the GPU that contradict each other.

GPU work cannot begin before its call, nor end after a device sync that waited for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.intervals import on_one_line
from molprof.analysis.facts.patterns import Glob

if TYPE_CHECKING:
    from molprof.analysis.facts.facts import Facts

_DEVICE_SYNC = Glob("*DeviceSynchronize")


def device_syncs(facts: Facts) -> tuple[Array, Array]:
    """Return the slices of device syncs, and from the end of the last work that each waited for to its own end, ns.

    A sync waited for the work of launches of its process that ended between the sync before and this one. Left out are
    syncs without such work, and processes with work on several devices: a sync waits for the current one, whose number
    is not recorded.
    """
    calls, work = facts.calls, facts.work
    process = facts.processes(calls.track)
    sync = calls.named(_DEVICE_SYNC.matches)
    sync = sync[np.lexsort((sync, process[sync]))]
    if not len(sync):
        return sync, sync
    is_launch = np.zeros(len(calls.id) + 1, dtype=bool)  # the last is that of NONE
    is_launch[facts.launches] = is_launch[facts.graph_launches] = True
    launched = np.flatnonzero(is_launch[work.call])
    call = work.call[launched]
    begins, moments = on_one_line([process[sync], process[call]], [calls.ts[sync], calls.ts[call]])
    at = np.minimum(np.searchsorted(begins, moments, side="right"), len(sync) - 1)
    waits = (begins[at] > moments) & (process[sync[at]] == process[call]) & (calls.ts_end[call] <= calls.ts[sync[at]])
    at, launched = at[waits], launched[waits]
    last_end = np.full(len(sync), NONE)
    np.maximum.at(last_end, at, work.ts_end[launched])
    processes, which = np.unique(process[sync], return_inverse=True)
    first, last = np.full(len(processes), len(facts.devices)), np.full(len(processes), NONE)
    np.minimum.at(first, which[at], work.device[launched])
    np.maximum.at(last, which[at], work.device[launched])
    rows = np.flatnonzero((last_end != NONE) & (first == last)[which])
    return calls.id[sync[rows]], calls.ts_end[sync[rows]] - last_end[rows]


def clock(facts: Facts) -> tuple[int, int, int, int, int | None, int | None, float | None]:
    """Return the row of molprof_clock: contradictions, least delay and slack, mean delay."""
    work = facts.work
    delay = (work.ts - work.call_ts)[work.call != NONE]
    slack = device_syncs(facts)[1]
    least_delay, least_slack = (int(times.min()) if len(times) else None for times in (delay, slack))
    return (
        int((delay < 0).sum()),
        max(0, -(least_delay or 0)),
        int((slack < 0).sum()),
        max(0, -(least_slack or 0)),
        least_delay,
        least_slack,
        int(delay.sum()) / len(delay) if len(delay) else None,
    )
