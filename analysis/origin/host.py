"""Host time of phases, Python functions and modules: each moment of a thread counts for the innermost of them.

Beside it how long GPUs waited in each: idle time with nothing queued, on the thread that the GPU waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress, groupby
from operator import itemgetter
from typing import Any

import numpy as np

from molprof.analysis.facts.gaps import until_own
from molprof.analysis.frame import Frame
from molprof.analysis.reader.stacks import Nest
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows

_LANES = Query(
    "phases",
    "SELECT phase.phase, lane.upid, lane.tid, lane.ts, lane.ts_end FROM _molprof_phase_lane AS lane"
    " JOIN molprof_phase AS phase USING (id) ORDER BY lane.upid, lane.tid, lane.ts",
)
_THREADS = Query(
    "annotations", "SELECT track.id, thread.upid, thread.tid FROM thread_track AS track JOIN thread USING (utid)"
)
Stretch = tuple[str | None, int, int, int]  # phase, thread, start and end


Threads = dict[tuple[Any, Any], int]  # upid and tid to a number


def host_of(engine: TraceProcessor, around: Frame) -> tuple[Frame, int]:
    """Self time on the host by phase and frame, outside operators; and the time that it must add up to.

    around: frames, operators included. phase: None outside phases. frame_id: None for a phase's time in no frame.
    """
    threads: Threads = {}
    # What operators hold, their Python functions too, is theirs. Frames stand behind those around them.
    held: set[int] = set()
    is_outer = np.ones(len(around), dtype=np.bool_)
    for place, (number, parent, kind) in enumerate(around.select("id", "parent_id", "kind").rows()):
        is_outer[place] = parent not in held
        if kind == "operator" or parent in held:
            held.add(number)
    items = around.where(is_outer)
    nest = _nest(items, threads)
    lanes = _lanes(engine, threads)
    # What each slice of the nest is; the last one stands for none.
    ids = [*items["id"][nest.names].tolist(), None]
    called = items["kind"][nest.names] == "operator"
    bounds = (int(nest.starts.min()), int(nest.ends.max())) if len(nest.starts) else (0, 0)
    phases, keys, own_ns = _own_times(list(_stretches(lanes, nest.threads.tolist(), *bounds)), nest)
    rows = []
    for key, amount in zip(keys.tolist(), own_ns.tolist(), strict=True):
        phase, item = divmod(key, len(ids))
        # Neither operators nor a thread that is in no phase and no frame.
        if amount and not (called[item] if item < len(called) else phases[phase] is None):
            rows.append((phases[phase], ids[item], amount))
    slices = list(zip(nest.threads.tolist(), nest.starts.tolist(), nest.ends.tolist(), strict=True))
    whole_ns = _covered([*slices, *(lane[1:] for lane in lanes)]) - _covered(compress(slices, called.tolist()))
    return Frame.of_rows(("phase", "frame_id", "own_ns"), rows), whole_ns


def waits_of(engine: TraceProcessor, around: Frame) -> Frame:
    """How long GPUs waited for the host by phase and innermost frame, ns; those of several GPUs are added up.

    around: frames, operators included. phase: None outside phases. frame_id: None in no frame.
    """
    threads: Threads = {}
    found = until_own(engine.facts.windows, engine.facts.waited)
    place_of = {track: place for track, *place in query_rows(engine, _THREADS)[1]}
    waits = [
        (threads.setdefault(tuple(place_of[track]), len(threads)), ts, ts_end)
        for track, ts, ts_end in zip(found.track.tolist(), found.ts.tolist(), found.ts_end.tolist(), strict=True)
    ]
    names = ("phase", "frame_id", "own_ns")
    if not waits:
        return Frame.of_rows(names, ())
    nest = _nest(around, threads)
    thread, begin, end = np.array(waits, dtype=np.int64).T
    stretches = list(_stretches(_lanes(engine, threads), range(len(threads)), int(begin.min()), int(end.max())))
    lanes, starts, ends = (np.array([item[place] for item in stretches]) for place in (1, 2, 3))
    of_phase = Nest(lanes, starts, ends, np.arange(len(stretches)))
    which, found = of_phase.during(thread, begin, end)
    pieces = [
        (stretches[name][0], *place)
        for name, *place in zip(
            of_phase.names[found].tolist(),
            thread[which].tolist(),
            np.maximum(begin[which], of_phase.starts[found]).tolist(),
            np.minimum(end[which], of_phase.ends[found]).tolist(),
            strict=True,
        )
    ]
    phases, keys, own_ns = _own_times(pieces, nest)
    ids = [*around["id"][nest.names].tolist(), None]
    rows = [
        (phases[key // len(ids)], ids[key % len(ids)], amount)
        for key, amount in zip(keys.tolist(), own_ns.tolist(), strict=True)
        if amount
    ]
    return Frame.of_rows(names, rows)


def _nest(items: Frame, threads: Threads) -> Nest:
    """The frames by thread; `names` are their row numbers."""
    places = [threads.setdefault(place, len(threads)) for place in items.select("upid", "tid").rows()]
    starts = items["ts"].astype(np.int64)
    ends = starts + items["dur"].astype(np.int64)
    return Nest(np.array(places, dtype=np.int64), starts, ends, np.arange(len(items)))


def _lanes(engine: TraceProcessor, threads: Threads) -> list[Stretch]:
    return [
        (phase, threads.setdefault((upid, tid), len(threads)), ts, ts_end)
        for phase, upid, tid, ts, ts_end in query_rows(engine, _LANES)[1]
    ]


def _own_times(stretches: list[Stretch], nest: Nest) -> tuple[list[str | None], np.ndarray, np.ndarray]:
    """The phases; keys (phase times the number of slices and one, and slice); their time without that of slices inside.

    The last slice stands for none: for what is left of a phase.
    """
    phases = list(dict.fromkeys(phase for phase, *_ in stretches))
    numbers = {phase: place for place, phase in enumerate(phases)}
    phase_of = np.array([numbers[phase] for phase, *_ in stretches], dtype=np.int64)
    thread, begin, end = (np.array([item[place] for item in stretches], dtype=np.int64) for place in (1, 2, 3))
    which, found = nest.during(thread, begin, end)
    time_ns = np.minimum(nest.ends[found], end[which]) - np.maximum(nest.starts[found], begin[which])
    width = len(nest.starts) + 1
    inside, around = (phase_of[which] * width + slices % width for slices in (found, nest.nested[0][found]))
    keys, places = np.unique(np.concatenate([inside, around, phase_of * width + width - 1]), return_inverse=True)
    own_ns = np.zeros(len(keys), dtype=np.int64)
    np.add.at(own_ns, places, np.concatenate([time_ns, -time_ns, end - begin]))
    return phases, keys, own_ns


def _stretches(lanes: Iterable[Stretch], threads: Iterable[int], first: int, last: int) -> Iterator[Stretch]:
    """The phases of each thread, and what lies between them from the first to the last moment."""
    left = dict.fromkeys(threads)
    for thread, group in groupby(lanes, itemgetter(1)):
        left.pop(thread, None)
        reached = first
        for phase, _, ts, ts_end in group:
            if ts > reached:
                yield None, thread, reached, ts
            yield phase, thread, ts, ts_end
            reached = max(reached, ts_end)
        if last > reached:
            yield None, thread, reached, last
    for thread in left:
        yield None, thread, first, last


def _covered(slices: Iterable[tuple[int, int, int]]) -> int:
    """Time in any of them, each moment of a thread once."""
    total, of, until = 0, -1, 0
    for thread, ts, ts_end in sorted(slices):
        if thread != of:
            of, until = thread, ts
        total += max(0, ts_end - max(ts, until))
        until = max(until, ts_end)
    return total
