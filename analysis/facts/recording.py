"""Begin and end of the recording, by the profiler's own events, and the events in it.

torch.profiler writes a span of its own (category `Trace`, before torch 1.12 too): it ends where the profiler is
stopped. Until the file is written, runtime calls of other threads are still recorded: these are no time of the program.
A file without that span may have the frame in which the profiler was stopped, which ends at the same moment.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from molprof.analysis.facts.gaps import Array, GpuWork
from molprof.analysis.facts.slices import GPU_WORK_NUMBERS, PROFILER, RECORDED, Slices

# Frames that last until the profiler is stopped, innermost first, in its words since torch 1.8.
_STOPS = re.compile(r"_disable_profiler|profiler/profiler\.py\(\d+\): (stop_trace|stop)$")
# Frames of molprof that do nothing but mark phases. The other functions of marks.py have the program's inside.
_OWN_MARK = re.compile(
    r"profiler/recording/(?:marks\.py\(\d+\): (?:_forward|_each|processors|called_each|listens|_mark|_tell|_guarded)"
    r"|(?:clock|window)\.py\(\d+\): \w+)$"
)
Spans = tuple[Array, Array, Array]  # rank, start and end; of a trace that is not of several ranks one row of rank NONE


def stops_profiler(name: str) -> bool:
    """Return True for names of Python functions that last until the profiler is stopped."""
    return "profiler" in name and _STOPS.search(name) is not None


def is_own_mark(name: str) -> bool:
    """Return True for names of molprof's own Python functions that only mark phases: their time counts for none."""
    return "profiler/recording/" in name and _OWN_MARK.search(name) is not None


def profiler_spans(slices: Slices, stops: Array, ranks_of: Callable[[Array], Array]) -> Spans:
    """Return the span of the profiler of each rank, where the file has one.

    stops: the frames in which the profiler was stopped. ranks_of: ranks of tracks. Left out are spans in which less
    than half of the rank's operators and calls begin: they have another clock.
    """
    spans = slices.of(PROFILER)
    starts, ends = slices.ts[spans], slices.ts_end[spans]
    if not len(spans):
        spans, starts, ends = stops, np.zeros(len(stops), dtype=np.int64), slices.ts_end[stops]
    ranks, starts, ends = _joined(ranks_of(slices.track[spans]), starts, ends)
    host = slices.of(*(number for number in RECORDED if number not in GPU_WORK_NUMBERS))
    rank, ts = ranks_of(slices.track[host]), slices.ts[host]
    inside = [
        2 * int(((ts >= start) & (ts <= end))[rank == number].sum()) >= int((rank == number).sum())
        for number, start, end in zip(ranks, starts, ends, strict=True)
    ]
    kept = np.array(inside, dtype=bool)
    return ranks[kept], starts[kept], ends[kept]


def recorded_spans(recorded: Spans, work: GpuWork, work_ranks: Array, profiler: Spans) -> Spans:
    """Return the first and the last recorded moment of each rank.

    recorded: operators, calls, annotations and GPU work. profiler: see `profiler_spans`. What lies before the span of
    the profiler or after it is cut off. Only GPU work that was launched by then and goes on is time of the program.
    """
    ranks, starts, ends = _joined(*recorded)
    for number, start, end in zip(*profiler, strict=True):
        mine = np.flatnonzero(ranks == number)
        running = work.ts_end[(work_ranks == number) & (work.call_ts <= end)]
        starts[mine] = np.maximum(starts[mine], start)
        ends[mine] = np.minimum(ends[mine], max(int(end), int(running.max(initial=end))))
    return ranks, starts, ends


def _joined(ranks: Array, starts: Array, ends: Array) -> Spans:
    """Return the first start and the last end of each rank."""
    distinct, which = np.unique(ranks, return_inverse=True)
    first, last = np.full(len(distinct), np.iinfo(np.int64).max), np.zeros(len(distinct), dtype=np.int64)
    np.minimum.at(first, which, starts)
    np.maximum.at(last, which, ends)
    return distinct, first, last
