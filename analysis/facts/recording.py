"""When the recording began and ended, as the profiler's own events say, and what of the events lies in it.

torch.profiler writes a span of its own (category `Trace`, before torch 1.12 too): it ends where the profiler is
stopped. Until the file is written, runtime calls of other threads are still recorded: these are no time of the program.
A file without that span may have the frame in which the profiler was stopped, which ends at the same moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.slices import GPU_WORK_NUMBERS, PROFILER, RECORDED

if TYPE_CHECKING:
    from molprof.analysis.facts.facts import Facts
    from molprof.analysis.facts.source import Source

# Frames that last until the profiler is stopped, innermost first.
_STOP = """
SELECT id FROM slice
WHERE category = 'python_function' AND (
  name GLOB '*_disable_profiler*' OR name GLOB '*profiler/profiler.py(*): stop_trace'
  OR name GLOB '*profiler/profiler.py(*): stop'
)
ORDER BY id
"""
Spans = tuple[Array, Array, Array]  # rank, start and end; of a trace that is not of several ranks one row of rank NONE


def profiler_spans(source: Source) -> Spans:
    """Return the span of the profiler of each rank, where the file has one.

    Left out are spans in which less than half of the rank's operators and calls begin: they have another clock.
    """
    slices = source.slices_of_file
    spans = slices.of(PROFILER)
    starts, ends = slices.ts[spans], slices.ts_end[spans]
    if not len(spans):
        spans = source.numbers(_STOP, None)[0]
        starts, ends = np.zeros(len(spans), dtype=np.int64), slices.ts_end[spans]
    if not len(spans):
        return spans, starts, ends
    ranks, which = np.unique(source.ranks_of(slices.track[spans]), return_inverse=True)
    first, last = np.full(len(ranks), np.iinfo(np.int64).max), np.zeros(len(ranks), dtype=np.int64)
    np.minimum.at(first, which, starts)
    np.maximum.at(last, which, ends)
    host = slices.of(*(number for number in RECORDED if number not in GPU_WORK_NUMBERS))
    rank, ts = source.ranks_of(slices.track[host]), slices.ts[host]
    is_same_clock = np.array(
        [
            2 * int(((ts >= start) & (ts <= end))[mine].sum()) >= int(mine.sum())
            for start, end, mine in ((a, b, rank == number) for number, a, b in zip(ranks, first, last, strict=True))
        ],
        dtype=bool,
    )
    return ranks[is_same_clock], first[is_same_clock], last[is_same_clock]


def recorded_spans(facts: Facts) -> Spans:
    """Return the first and the last recorded moment of each rank.

    Recorded are operators, calls, annotations and GPU work; of a trace that is not of several ranks also phases, as
    functions that mark them may be around all of it. What lies before the profiler's span or after it is cut off. Only
    GPU work that was launched by then and goes on is time of the program, until it ends.
    """
    slices = facts.slices
    rows = slices.of(*RECORDED)
    ts, ts_end = slices.ts[rows], slices.ts_end[rows]
    if not len(rows):
        return rows, ts, ts_end
    ranks, which = np.unique(facts.ranks_of(slices.track[rows]), return_inverse=True)
    starts, ends = np.full(len(ranks), np.iinfo(np.int64).max), np.zeros(len(ranks), dtype=np.int64)
    np.minimum.at(starts, which, ts)
    np.maximum.at(ends, which, ts_end)
    if not facts.has_ranks:
        starts = np.minimum(starts, facts.phases.ts.min(initial=starts[0]))
        ends = np.maximum(ends, facts.phases.ts_end.max(initial=ends[0]))
    work, work_rank = facts.work, facts.ranks
    for number, start, end in zip(*facts.profiler_spans, strict=True):
        mine = np.flatnonzero(ranks == number)
        running = work.ts_end[(work_rank == number) & (work.call_ts <= end)]
        starts[mine] = np.maximum(starts[mine], start)
        ends[mine] = np.minimum(ends[mine], max(int(end), int(running.max(initial=end))))
    known = (ranks != NONE) if facts.has_ranks else np.ones(len(ranks), dtype=bool)
    return ranks[known], starts[known], ends[known]
