"""GPU work whose recorded end cannot be: it runs over what follows on its stream, and beyond a sync or the recording.

Work of one stream runs one after the other. Pieces may overlap by some microseconds (programmatic launch), and branches
of a graph are on one stream: so an overlap alone is believed. A device sync that began while the work ran waits for its
end, and the profiler writes what is done when it stops. Such ends are in files of ROCm (AMD-AGI/TraceLens#669).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from molprof.analysis.facts.gaps import Array
from molprof.analysis.facts.slices import GPU_WORK_NUMBERS

if TYPE_CHECKING:
    from molprof.analysis.facts.source import Source

# Clocks of a host and its GPU differ by less.
_FAR_NS = 1_000_000
_DEVICE_SYNCS = """
SELECT id FROM slice
WHERE category IN ('cuda_runtime', 'cuda_driver') AND name GLOB '*DeviceSynchronize'
ORDER BY id
"""


def overruns(source: Source) -> tuple[Array, Array]:
    """Return the slices of such work, and of each the latest end that it can have had.

    It ends when the next work of its stream starts; without one, when the recording ends, if it takes longer than that.
    """
    slices = source.slices_of_file
    ids = slices.of(*GPU_WORK_NUMBERS)
    if not len(ids):
        return ids, ids
    stream = source.own_tracks(slices.track[ids])
    order = np.lexsort((ids, slices.ts[ids], stream))
    ids, stream = ids[order], stream[order]
    ts, ts_end = slices.ts[ids], slices.ts_end[ids]
    has_next = np.append(stream[1:] == stream[:-1], False)
    following = np.append(ts[1:], 0)
    runs_over = has_next & (following < ts_end)
    # The end of the recording, and how long it was.
    last, length = (np.full(len(ids), np.iinfo(np.int64).max // 2) for _ in range(2))
    rank = source.ranks_of(slices.track[ids])
    for number, start, end in zip(*source.profiler_spans, strict=True):
        last[rank == number], length[rank == number] = end, end - start
    beyond = ts_end > last + _FAR_NS
    too_long = beyond & ~has_next & (ts_end - ts > length)
    if (runs_over & ~beyond).any():
        beyond |= runs_over & (ts_end > _synced(source, ids, ts) + _FAR_NS)
    cut = np.flatnonzero((runs_over & beyond) | too_long)
    return ids[cut], np.where(runs_over, following, last)[cut]


def _synced(source: Source, work: Array, ts: Array) -> Array:
    """Return when the first device sync ends that began after each piece of work; far ahead where none is known.

    A sync waits for the current device, whose number is not recorded: with work on several, none is known.
    """
    slices = source.slices_of_file
    never = np.full(len(ts), np.iinfo(np.int64).max // 2)
    if len(np.unique(source.processes(slices.track[work]))) > 1:
        return never
    syncs = source.numbers(_DEVICE_SYNCS, None)[0]
    ends = np.append(np.minimum.accumulate(slices.ts_end[syncs][::-1])[::-1], never[0])
    found: Array = ends[np.searchsorted(slices.ts[syncs], ts, side="right")]
    return found
