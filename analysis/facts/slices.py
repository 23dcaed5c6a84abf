"""The slices of a trace as columns, by their id in the trace processor.

The trace processor numbers slices in the order in which they start, and those of one moment in the order in which it
got them. So the reader knows the id of each slice that it feeds, and its arrays are used; other slices are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from molprof.analysis.facts import GPU_CALLS, GPU_WORK
from molprof.common.errors import EngineError

if TYPE_CHECKING:
    from molprof.analysis.trace_processor import TraceProcessor

Array = np.ndarray
# Categories by number; 0 is any other.
CATEGORIES = ("", "cpu_op", *GPU_CALLS, *GPU_WORK, "user_annotation", "cpu_instant_event", "Trace")
OPERATOR, RUNTIME, DRIVER, KERNEL = range(1, 5)
INSTANT, PROFILER = map(CATEGORIES.index, ("cpu_instant_event", "Trace"))
# Those whose slices make the recorded span.
RECORDED = range(1, INSTANT)
GPU_WORK_NUMBERS = tuple(CATEGORIES.index(category) for category in GPU_WORK)
_SAMPLES = 64
_CASES = " ".join(f"WHEN '{category}' THEN {number}" for number, category in enumerate(CATEGORIES) if category)
_SLICES = f"SELECT ts, dur, track_id, CASE category {_CASES} ELSE 0 END AS category FROM slice ORDER BY id"
_WORK_NAMES = """
SELECT id, category, IFNULL(name, '(no name)') AS name FROM slice
WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset')
ORDER BY id
"""
_TRACKS = """
SELECT track.id, IFNULL(process.pid, 0) AS pid, thread.tid
FROM thread_track AS track
JOIN thread USING (utid)
LEFT JOIN process USING (upid)
ORDER BY track.id
"""


class Slices(Struct, frozen=True):
    """All slices, by id: arrays of integers."""

    ts: Array
    ts_end: Array
    track: Array  # of the engine; -1 for those of no thread
    category: Array  # index into CATEGORIES
    name: Array  # of GPU work: index into `names`; -1 for others
    names: tuple[tuple[str, str], ...]  # distinct categories and names of GPU work

    def of(self, *categories: int) -> Array:
        """Return the ids of the slices of some categories, in order."""
        wanted = np.zeros(len(CATEGORIES), dtype=bool)
        wanted[list(categories)] = True
        chosen: Array = np.flatnonzero(wanted[self.category])
        return chosen


class FedSlices(Struct, frozen=True):
    """The slices that the reader fed, in the order of their ids: arrays of integers."""

    ts: Array
    ts_end: Array
    place: Array  # index into `places`
    places: list[tuple[int, int]]  # process and thread number of tracks and sub-tracks
    label: Array  # index into `labels`
    labels: list[tuple[str, str]]  # category and name, as the engine has them


def read_slices(engine: TraceProcessor) -> Slices:
    """Return the slices that the engine holds. Raises EngineError if it numbers those of the reader otherwise."""
    fed: FedSlices | None = engine.fed
    if fed is None:
        return _asked(engine)
    _check(engine, fed)
    tracks: dict[tuple[int, int], int] = {}
    for track, *place in zip(*(column.tolist() for column in engine.query(_TRACKS).values()), strict=True):
        tracks.setdefault((place[0], place[1]), track)
    engine.fed = None  # what is not kept below is freed
    track_of = np.array([tracks.get(place, -1) for place in fed.places], dtype=np.int64)
    numbers = {category: number for number, category in enumerate(CATEGORIES)}
    category = np.array([numbers.get(category, 0) for category, _ in fed.labels], dtype=np.int8)
    names: dict[tuple[str, str], int] = {}
    name = np.array(
        [
            names.setdefault(label, len(names)) if is_work else -1
            for label, is_work in zip(fed.labels, np.isin(category, GPU_WORK_NUMBERS).tolist(), strict=True)
        ],
        dtype=np.int32,
    )
    return Slices(fed.ts, fed.ts_end, track_of[fed.place], category[fed.label], name[fed.label], tuple(names))


def _check(engine: TraceProcessor, fed: FedSlices) -> None:
    """Compare some slices of the reader with those of the engine."""
    count = len(fed.ts)
    ids = np.unique(np.linspace(0, count - 1, _SAMPLES).astype(np.int64)) if count else np.empty(0, dtype=np.int64)
    sql = f"SELECT slice.ts, slice.dur FROM json_each('{ids.tolist()}') AS one JOIN slice ON slice.id = one.value"
    shown = [column.astype(np.int64) for column in engine.query(f"{sql} ORDER BY slice.id").values()]
    expected = fed.ts[ids], (fed.ts_end - fed.ts)[ids]
    if not all(np.array_equal(*pair) for pair in zip(shown, expected, strict=True)):
        raise EngineError("the trace processor does not number slices in the order in which they start")


def _asked(engine: TraceProcessor) -> Slices:
    columns: dict[str, Any] = {name: column.astype(np.int64) for name, column in engine.query(_SLICES).items()}
    rows = engine.query(_WORK_NAMES)
    ids, *texts = (column.tolist() for column in rows.values())
    names: dict[tuple[str, str], int] = {}
    name = np.full(len(columns["ts"]), -1)
    name[ids] = [names.setdefault(label, len(names)) for label in zip(*texts, strict=True)]
    ts = columns["ts"]
    return Slices(ts, ts + columns["dur"], columns["track_id"], columns["category"], name, tuple(names))
