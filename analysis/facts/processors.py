"""Single logits processors: calls of Python functions within the phase processor."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.intervals import begins_inside, ends_before


class ProcessorCalls(Struct, frozen=True):
    """Slices that may be single processors, or the phase that they run in: arrays of int64, and of truth."""

    id: Array
    thread: Array
    ts: Array
    ts_end: Array
    is_phase: Array  # the phase processor, and no call
    is_list: Array  # a phase that the list of processors of generate marks; or a call in the file of that list
    is_wrapper: Array  # a call of what runs processors in continuous batching


def single_processors(slices: ProcessorCalls) -> Array:
    """Return the ids of the outermost calls of single processors, in order of thread and start.

    They lie within the phase processor. The list of all processors is none: of generate it is the slice of the phase,
    in loops of the user's own, where the file of the list has processors too, the first call if there are others.
    """
    order = np.lexsort((slices.id, ~slices.is_phase, -slices.ts_end, slices.ts, slices.thread))
    ids, thread, ts, ts_end, is_phase, is_list, is_wrapper = (
        getattr(slices, name)[order] for name in slices.__struct_fields__
    )
    index = np.arange(len(ids))
    until = ends_before(thread, ts, ts_end, is_phase)
    inside = ~is_phase & (until != NONE) & (ts_end <= np.append(ts_end, 0)[until])
    phase = np.maximum.accumulate(np.where(is_phase, index, NONE)) if len(index) else index
    index = index[inside]
    calls = np.bincount(phase[index], minlength=len(ids))
    first = np.append(False, phase[index][1:] == phase[index][:-1])[: len(index)]
    listed = np.isin(ids[index], ids[is_phase & is_list])
    is_whole = ~first & (calls[phase[index]] > 1) & is_list[index]
    single = index[~listed & ~is_wrapper[index] & ~is_whole]
    return ids[single[~begins_inside(thread[single], ts[single], ts_end[single])]]
