"""The slices of a trace as columns, by their id in the trace processor.

The trace processor numbers slices in the order in which they start, and those of one moment in the order in which it
got them. So the reader knows the id of each slice that it feeds, and its arrays are used; other slices are asked for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from molprof.analysis.facts import GPU_CALLS, GPU_WORK, gpu_slices
from molprof.analysis.facts.compiled import kind_of
from molprof.analysis.facts.gpu_slices import GpuSlices
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
# Annotations, and what is recorded as an operator, in which Python runs: data loaders; from COMPILED on kinds of code
# that torch.compile made.
DATA_NAMES = re.compile(r"(?i).*data.?load")
NO_REGION, DATA, COMPILED = range(3)
_LINKED = (RUNTIME, DRIVER, *GPU_WORK_NUMBERS)
_HOST = (OPERATOR, RUNTIME, DRIVER)
_SAMPLES = 64
_CASES = " ".join(f"WHEN '{category}' THEN {number}" for number, category in enumerate(CATEGORIES) if category)
_SLICES = f"SELECT ts, dur, track_id, CASE category {_CASES} ELSE 0 END AS category FROM slice ORDER BY id"
_LOADER = "*[dD][aA][tT][aA]{}[lL][oO][aA][dD]*"
_GLOBS = "*Compiled*", "TorchDynamo *", "Pregraph *", "AOTDispatcher *", _LOADER.format(""), _LOADER.format("?")
# The engine looks for one pattern at a time in distinct names alone.
_REGIONS = " UNION ALL ".join(
    f"SELECT id, name FROM slice WHERE name GLOB '{pattern}' AND category IN ('cpu_op', 'user_annotation')"
    for pattern in _GLOBS
)
# Of threads, with process and thread number.
TRACKS = """
SELECT track.id, IFNULL(process.pid, 0) AS pid, thread.tid
FROM thread_track AS track
JOIN thread USING (utid)
LEFT JOIN process USING (upid)
ORDER BY track.id
"""


# Category, name, number of slices, sum of their times, ns.
Total = tuple[str, str, int, int]


class Slices(Struct, frozen=True):
    """All slices, by id: arrays of integers."""

    ts: Array
    ts_end: Array
    track: Array  # of the engine; -1 for those of no thread
    category: Array  # index into CATEGORIES
    name: Array  # of GPU work: index into `names`; -1 for others
    names: tuple[tuple[str, str], ...]  # distinct categories and names of GPU work
    region: Array  # NO_REGION, DATA, or COMPILED and the kind of code (compiled.py)
    gpu: GpuSlices
    totals: tuple[Total, ...] | None  # of operators and calls by category and name; None: the engine tells them

    def of(self, *categories: int) -> Array:
        """Return the ids of the slices of some categories, in order."""
        wanted = np.zeros(len(CATEGORIES), dtype=bool)
        wanted[list(categories)] = True
        chosen: Array = np.flatnonzero(wanted[self.category])
        return chosen

    def touching(self, starts: Array, ends: Array) -> Array:
        """Return the ids of the slices that overlap some windows, or begin in one, in order.

        The windows stand in order and share no time.
        """
        if not len(starts):
            return starts
        # Ids are in order of start, so that nothing is searched for each slice.
        begun = np.cumsum(np.bincount(np.searchsorted(self.ts, starts), minlength=len(self.ts) + 1)[:-1])
        last = np.append(np.iinfo(np.int64).min, ends)[begun]
        following = np.append(starts, np.iinfo(np.int64).max)[begun]
        chosen: Array = np.flatnonzero((last > self.ts) | (following < self.ts_end))
        return chosen


class FedSlices(Struct, frozen=True):
    """The slices that the reader sent to the engine, in the order of their ids: arrays of integers."""

    ts: Array
    ts_end: Array
    place: Array  # index into `places`
    places: list[tuple[int, int]]  # process and thread number of tracks and sub-tracks
    label: Array  # index into `labels`
    labels: list[tuple[str, str]]  # category and name, as the engine has them
    args: list[bytes]  # of each label, JSON without the correlation number
    number: Array  # correlation number; gpu_slices.NO_NUMBER where it is none or no integer of 64 bits


def read_slices(engine: TraceProcessor) -> Slices:
    """Return the slices of the engine. Raises EngineError if it numbers those of the reader otherwise."""
    if engine.fed is None:
        return _asked(engine)
    slices: Slices
    thread_ids, slices = engine.fed.result()
    _check(engine, slices)
    tracks: dict[tuple[int, int], int] = {}
    for track, *thread_id in zip(*(column.tolist() for column in engine.query(TRACKS).values()), strict=True):
        tracks.setdefault((thread_id[0], thread_id[1]), track)
    track_of = np.array([tracks.get(thread_id, -1) for thread_id in thread_ids], dtype=np.int64)
    engine.fed = None  # what is not kept in them is freed
    return replace(slices, track=track_of[slices.track])


def without_tracks(fed: FedSlices) -> tuple[list[tuple[int, int]], Slices]:
    """Return the track of each slice of the reader as process and thread, and the slices with the track's index.

    Raises QueryError for text in place of a number.
    """
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
    region = np.array([_region(*label) for label in fed.labels], dtype=np.int8)[fed.label]
    columns = fed.ts, fed.ts_end, fed.place, category[fed.label], name[fed.label], tuple(names), region
    return fed.places, Slices(*columns, _fed_gpu(fed, category), _fed_totals(fed, category))


def _fed_gpu(fed: FedSlices, category: Array) -> GpuSlices:
    """Return the calls and GPU work of the reader. category: of each label."""
    is_linked = np.isin(category, _LINKED)
    labels = np.flatnonzero(is_linked)
    ids = np.flatnonzero(is_linked[fed.label])
    kinds = np.searchsorted(labels, fed.label[ids])
    labels = labels.tolist()
    return gpu_slices.fed(
        ids, kinds, [fed.labels[label] for label in labels], [fed.args[label] for label in labels], fed.number[ids]
    )


def _fed_totals(fed: FedSlices, category: Array) -> tuple[Total, ...]:
    """Return operators and calls of the reader, by category and name. category: of each label."""
    count = np.bincount(fed.label, minlength=len(category))
    time_ns = np.zeros(len(category), dtype=np.int64)
    np.add.at(time_ns, fed.label, fed.ts_end - fed.ts)
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for label in np.flatnonzero(np.isin(category, _HOST) & (count > 0)).tolist():
        slices, total_ns = sums.get(fed.labels[label], (0, 0))
        sums[fed.labels[label]] = slices + int(count[label]), total_ns + int(time_ns[label])
    return tuple((*label, *total) for label, total in sorted(sums.items()))


def _region(category: str | None, name: str | None) -> int:
    """Return the kind of Python code that a slice is in."""
    if category not in ("cpu_op", "user_annotation") or not name:
        return NO_REGION
    if (kind := kind_of(name)) is not None:
        return COMPILED + kind
    return DATA if DATA_NAMES.match(name) else NO_REGION


def _check(engine: TraceProcessor, fed: Slices) -> None:
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
    gpu = gpu_slices.asked(engine)
    names: dict[tuple[str, str], int] = {}
    of_label = [
        names.setdefault((category, "(no name)" if name is None else name), len(names)) if category in GPU_WORK else -1
        for category, name in gpu.labels
    ]
    name = np.full(len(columns["ts"]), -1)
    name[gpu.id] = np.array(of_label, dtype=np.int64)[gpu.label]
    ts, region = columns["ts"], np.zeros(len(columns["ts"]), dtype=np.int8)
    ids, texts = (column.tolist() for column in engine.query(_REGIONS).values())
    of_text = {text: _region("cpu_op", text) for text in set(texts)}
    region[ids] = [of_text[text] for text in texts]
    columns_read = ts, ts + columns["dur"], columns["track_id"], columns["category"], name, tuple(names), region
    return Slices(*columns_read, gpu, None)
