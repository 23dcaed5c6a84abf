"""Durations of steps, up to the end of the GPU work that they start."""

from __future__ import annotations

import numpy as np

from molprof.analysis.facts.gaps import NONE, Array


def done(starts: Array, ends: Array, processes: Array, work_step: Array, work_ends: Array) -> tuple[Array, Array]:
    """Return when each step is done, and the time since the one before it was done, ns: int64, one per step.

    A step is done when it has ended on the host and all work that its calls started has ended on the device. Its time
    begins with it, or when the steps before it in its process are done, whichever is later: work that a device still
    does for an earlier step is time of that step. So the times of the steps of a process never overlap, and in a
    loop in which the host runs ahead of the device they are the device's.

    starts, ends, processes: of the steps on the host, in order of start. work_step: the index of the step whose call
    started each piece of work, NONE for none. work_ends: when it ended.
    """
    done_ts = ends.copy()
    has_step = work_step != NONE
    np.maximum.at(done_ts, work_step[has_step], work_ends[has_step])
    before: dict[int, int] = {}
    times = []
    for start, end, process in zip(starts.tolist(), done_ts.tolist(), processes.tolist(), strict=True):
        times.append(max(0, end - max(start, before.get(process, start))))
        before[process] = max(end, before.get(process, end))
    return done_ts, np.array(times, dtype=np.int64)
