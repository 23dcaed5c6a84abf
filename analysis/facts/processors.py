"""Single logits processors: calls of Python functions within the phase processor."""

from __future__ import annotations

import numpy as np

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.intervals import begins_inside, ends_before
from molprof.analysis.facts.loops import ThreadSlices


def single_processors(
    phases: ThreadSlices, is_list: Array, calls: ThreadSlices, in_list_file: Array, is_wrapper: Array
) -> Array:
    """Return the ids of the outermost calls of single processors within phases, in order of thread and start.

    What runs all processors is none: the slice of the phase where it is the list of generate, the wrapper of continuous
    batching, what molprof puts around one, and in loops of the user's own, where the list is in a file with processors,
    the first call in a phase if another is inside it.

    phases: of the name processor. calls: of any functions that may be processors, the slices of phases among them.
    """
    both = [np.concatenate([getattr(one, name) for one in (phases, calls)]) for name in phases.__struct_fields__]
    is_phase = np.arange(len(both[0])) < len(phases.id)
    order = np.lexsort((both[0], ~is_phase, -both[3], both[2], both[1]))
    ids, thread, ts, ts_end = (column[order] for column in both)
    is_phase = is_phase[order]
    in_list_file, is_wrapper = (
        np.append(np.zeros(len(phases.id), dtype=bool), column)[order] for column in (in_list_file, is_wrapper)
    )
    until = ends_before(thread, ts, ts_end, is_phase)
    inside = np.flatnonzero(~is_phase & (until != NONE) & (ts_end <= np.append(ts_end, 0)[until]))
    phase = np.cumsum(is_phase)[inside]  # the last that began
    is_first = np.append(True, phase[1:] != phase[:-1])[: len(phase)]
    holds_next = np.append((phase[1:] == phase[:-1]) & (ts[inside[1:]] < ts_end[inside[:-1]]), False)[: len(phase)]
    runs_all = is_wrapper[inside] | is_first & holds_next & in_list_file[inside]
    runs_all |= np.isin(ids[inside], phases.id[is_list])
    single = inside[~runs_all]
    outermost: Array = ids[single[~begins_inside(thread[single], ts[single], ts_end[single])]]
    return outermost
