"""GPU work with an impossible end: it overlaps later work of its stream, and a sync or the end of the recording.

Work of one stream runs one after the other. Pieces may overlap by some microseconds (programmatic launch), and branches
of a graph are on one stream: so an overlap alone is believed. A device sync that began while the work ran waits for its
end, and the profiler writes what is done when it stops. Such ends are in files of ROCm (AMD-AGI/TraceLens#669).
"""

from __future__ import annotations

import numpy as np

from molprof.analysis.facts.gaps import Array
from molprof.analysis.facts.recording import Spans
from molprof.analysis.facts.slices import Slices

# Clocks of a host and its GPU differ by less.
_FAR_NS = 1_000_000
_NEVER = np.iinfo(np.int64).max // 2


def overruns(slices: Slices, work: Spans, profiler: Spans, syncs: Array) -> tuple[Array, Array]:
    """Return the slices of such work, and the latest possible end of each.

    It ends when the next work of its stream starts; without one, when the recording ends, if it takes longer than that.

    work: slice, stream and rank of all GPU work. profiler: rank, start and end of the recording. syncs: the slices of
    device syncs, in order; none with work on several devices: a sync waits for the current one, which is not recorded.
    """
    order = np.lexsort((work[0], slices.ts[work[0]], work[1]))
    ids, stream, rank = (column[order] for column in work)
    ts, ts_end = slices.ts[ids], slices.ts_end[ids]
    has_next = np.append(stream[1:] == stream[:-1], False)[: len(ids)]
    following = np.append(ts[1:], 0)[: len(ids)]
    runs_over = has_next & (following < ts_end)
    # The end of the recording, and how long it was.
    last, length = np.full(len(ids), _NEVER), np.full(len(ids), _NEVER)
    for number, start, end in zip(*profiler, strict=True):
        last[rank == number], length[rank == number] = end, end - start
    # The end of the first device sync that began after the work did.
    ends = np.append(np.minimum.accumulate(slices.ts_end[syncs][::-1])[::-1], _NEVER)
    synced = ends[np.searchsorted(slices.ts[syncs], ts, side="right")]
    outlasts = ts_end > np.minimum(last, synced) + _FAR_NS
    too_long = ~has_next & (ts_end > last + _FAR_NS) & (ts_end - ts > length)
    cut = np.flatnonzero((runs_over & outlasts) | too_long)
    return ids[cut], np.where(runs_over, following, last)[cut]
