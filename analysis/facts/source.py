"""Source of all facts: slices, tracks, ranks and rows of queries of one engine."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.intervals import last_begun
from molprof.analysis.facts.overruns import overruns
from molprof.analysis.facts.recording import Spans, profiler_spans, stops_profiler
from molprof.analysis.facts.slices import GPU_WORK_NUMBERS, OPERATOR, PROFILER, Slices, read_slices
from molprof.common.errors import EngineError
from molprof.queries import PACKAGE

if TYPE_CHECKING:
    from molprof.analysis.facts.arguments import Arguments
    from molprof.analysis.trace_processor import TraceProcessor

_TRACKS = "SELECT id, upid, tid FROM _molprof_thread_track"
_THREADS = """
SELECT track.id, thread.upid, thread.tid FROM thread_track AS track JOIN thread USING (utid) ORDER BY track.id
"""
_FRAMES = "SELECT id, name FROM slice WHERE category = 'python_function' AND name GLOB '*profiler*' ORDER BY id"
_DEVICE_SYNCS = """
SELECT id FROM slice
WHERE category IN ('cuda_runtime', 'cuda_driver') AND name GLOB '*DeviceSynchronize'
ORDER BY id
"""
_RANKS = "SELECT track_id, rank FROM molprof_track_rank"
# Id, start, end, process and thread.
Lane = tuple[int, int, int, int | None, int | None]
Lanes = list[Lane]


def looked_up(numbers: Array, values: Mapping[int, int]) -> Array:
    """Return `values` at each number; NONE where there is none. The numbers are -1 or small indices."""
    table = np.full(int(numbers.max(initial=-1)) + 2, NONE)  # the last is that of -1
    for number, value in values.items():
        if number < len(table) - 1:
            table[number] = value
    result: Array = table[numbers]
    return result


class SourceFacts:
    """An engine that holds a trace, and the basic columns that facts need, each queried once."""

    def __init__(self, engine: TraceProcessor) -> None:
        self._engine = engine
        # Columns of tables that another thread computes, which must not ask the engine.
        self.ahead: dict[str, Future[Any]] = {}
        self._silent: int | None = None

    @contextmanager
    def asking_nothing(self) -> Iterator[None]:
        """Raise EngineError in this block if this thread would query the engine."""
        self._silent = threading.get_ident()
        try:
            yield
        finally:
            self._silent = None

    @cached_property
    def slices_of_file(self) -> Slices:
        """All slices by id, as the file has them."""
        return read_slices(self._engine)

    @property
    def _arguments(self) -> Arguments:
        kept: Arguments | None = self._engine.arguments
        if kept is None:
            raise EngineError("the trace was loaded without Python stacks, and so without the arguments of operators")
        return kept

    @property
    def has_arguments(self) -> bool:
        """Whether the file records what operators were called with (record_shapes)."""
        return bool(self._arguments.blocks)

    def arguments(self, wanted: Collection[int] | None = None) -> dict[int, bytes]:
        """Return what operators were called with, as JSON text, of those that have it, by slice; of `wanted` alone.

        Raises EngineError where the trace was loaded without.
        """
        slices = self.slices_of_file
        ids = slices.of(OPERATOR)
        return self._arguments.texts((ids, slices.ts[ids], slices.ts_end[ids]), wanted)

    @cached_property
    def profiler_spans(self) -> Spans:
        """The span of the profiler of each rank, where the file has one."""
        slices = self.slices_of_file
        frames = [] if len(slices.of(PROFILER)) else self.rows(_FRAMES, None)
        stops = np.array([number for number, name in frames if stops_profiler(name)], dtype=np.int64)
        return profiler_spans(slices, stops, self.ranks_of)

    @cached_property
    def overruns(self) -> tuple[Array, Array]:
        """Slices of GPU work that cannot have lasted as long as the file says, and the latest possible end of each."""
        slices = self.slices_of_file
        ids = slices.of(*GPU_WORK_NUMBERS)
        track = slices.track[ids]
        is_one = len(np.unique(self.processes(track))) == 1
        syncs = self.numbers(_DEVICE_SYNCS, None)[0] if is_one else ids[:0]
        return overruns(slices, (ids, self.own_tracks(track), self.ranks_of(track)), self.profiler_spans, syncs)

    @cached_property
    def slices(self) -> Slices:
        """All slices by id; GPU work with an impossible end in the file ends at its latest possible end."""
        ids, ends = self.overruns
        if not len(ids):
            return self.slices_of_file
        ts_end = self.slices_of_file.ts_end.copy()
        ts_end[ids] = ends
        return replace(self.slices_of_file, ts_end=ts_end)

    @cached_property
    def _track_ranks(self) -> dict[int, int]:
        return dict(self.rows(_RANKS, "process_ranks"))

    @property
    def has_ranks(self) -> bool:
        """True if the trace is of several ranks."""
        return bool(self._track_ranks)

    def ranks_of(self, tracks: Array) -> Array:
        """Return the rank of each track; NONE where it has none."""
        if not self._track_ranks:
            return np.full(len(tracks), NONE)
        return looked_up(tracks, self._track_ranks)

    @cached_property
    def _threads(self) -> dict[tuple[int | None, int | None], int]:
        """The first track of each thread, by process and thread number."""
        track_of: dict[tuple[int | None, int | None], int] = {}
        for track, upid, tid in self.rows(_THREADS, None):
            track_of.setdefault((upid, tid), track)
        return track_of

    @cached_property
    def _tracks(self) -> list[tuple[int, int, int]]:
        """Each track of a thread, with process and thread number; a sub-track with those of its thread."""
        return self.rows(_TRACKS, "annotations")

    def processes(self, tracks: Array) -> Array:
        """Return the process of the thread of each track; NONE where it has none."""
        return looked_up(tracks, {track: upid for track, upid, _ in self._tracks if upid is not None})

    def own_tracks(self, tracks: Array) -> Array:
        """Return the thread's own track for each track; NONE where it has none."""
        own_track = {track: self._threads.get((upid, tid), NONE) for track, upid, tid in self._tracks}
        return looked_up(tracks, own_track)

    def placed(self, ids: Array, lanes: Lanes) -> Array:
        """Return the id of the sub-track on which each slice began; NONE for none.

        lanes: those of a thread, or of a process where the thread is None, do not overlap each other.
        """
        lane_of = np.full(len(ids), NONE)
        if not lanes:
            return lane_of
        start, track = self.slices.ts[ids], self.slices.track[ids]
        for is_thread in (False, True):
            chosen = [lane for lane in lanes if (lane[4] is not None) == is_thread]
            if not chosen:
                continue
            key = self.own_tracks(track) if is_thread else self.processes(track)
            lane_key = np.array([self._threads.get(lane[3:], NONE) if is_thread else lane[3] for lane in chosen])
            lane_id, ts, ts_end = (np.array([lane[column] for lane in chosen], dtype=np.int64) for column in range(3))
            order = np.lexsort((ts, lane_key))
            lane_id, ts_end, lane_key = lane_id[order], ts_end[order], lane_key[order]
            last = last_begun(lane_key, ts[order], key, start)
            inside = (last != NONE) & (start < ts_end[last]) & (lane_of == NONE)
            lane_of[inside] = lane_id[last[inside]]
        return lane_of

    def rows(self, sql: str, module: str | None) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return list(zip(*(column.tolist() for column in self._read(sql, module).values()), strict=True))

    def numbers(self, sql: str, module: str | None) -> list[Array]:
        """Return the columns of a query of integers."""
        return [column.astype(np.int64) for column in self._read(sql, module).values()]

    def _read(self, sql: str, module: str | None) -> dict[str, Any]:
        """Return the columns of a query, which may use a module of the package."""
        if self._silent == threading.get_ident():
            raise EngineError("another thread asks the trace processor")
        include = f"INCLUDE PERFETTO MODULE {PACKAGE}.{module};\n" if module else ""
        return self._engine.query(include + sql)
