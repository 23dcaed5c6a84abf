"""Operators by name, their phase, and the GPU work launched inside them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

from molprof.analysis.figures.union import Union
from molprof.analysis.trace_processor import Columns, TraceProcessor
from molprof.analysis.trace_processor.package import Query

# A thread of a process; a slice in a lane still belongs to its thread.
_PLACE = "(track.upid << 33) + track.tid AS place"
_OPERATORS = f"""
SELECT slice.ts, slice.ts + slice.dur AS ts_end, {_PLACE}, slice.name, phase.phase
FROM ({{}}) AS named
CROSS JOIN slice ON slice.id = named.id
JOIN _molprof_thread_track AS track ON track.id = slice.track_id
LEFT JOIN molprof_call_phase AS inside ON inside.id = slice.id
LEFT JOIN molprof_phase AS phase ON phase.id = inside.phase_id
ORDER BY slice.ts, slice.dur DESC, slice.id
"""
_NAMED = "SELECT id FROM slice WHERE category = 'cpu_op' AND name GLOB '{}'"
# GPU work by its call.
_LAUNCHED = Query(
    "gpu_work",
    f"""INCLUDE PERFETTO MODULE molprof.annotations;
SELECT work.call_ts AS ts, {_PLACE}, work.dur AS gpu_ns
FROM _molprof_work AS work
JOIN _molprof_call AS call ON call.id = work.call_id
JOIN _molprof_thread_track AS track ON track.id = call.track_id
""",
)


class Operators(Struct, frozen=True):
    """Calls of operators in order of start, outer before inner."""

    starts: np.ndarray  # int64 (n,), ns
    ends: np.ndarray
    places: np.ndarray  # int64 (n,), a thread of a process each
    names: np.ndarray  # object (n,)
    phases: np.ndarray  # None outside any

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, wanted: np.ndarray) -> Operators:
        """Those that `wanted` selects: bool (n,), or indexes, int64 (m,)."""
        return Operators(*(column[wanted] for column in astuple(self)))

    def within(self, phases: Collection[str]) -> Operators:
        """Those that ran in one of the phases."""
        return self.where(np.array([phase in phases for phase in self.phases.tolist()], dtype=bool))

    def host_ns(self) -> int:
        """Time in them. Nested calls count once, threads each."""
        return sum(Union(self.starts[mine], self.ends[mine]).length_ns for mine in self._threads().values())

    def host_times(self, phases: Collection[str]) -> list[tuple[int, str]]:
        """The same by phase, where there is any."""
        times = [(self.within((phase,)).host_ns(), phase) for phase in phases]
        return [time for time in times if time[0]]

    def launched(self, engine: TraceProcessor) -> tuple[int, int]:
        """Count of GPU work launched inside them, and the sum of its times, ns."""
        calls: Columns = engine.query(_LAUNCHED.text)
        count = gpu_ns = 0
        for place, mine in self._threads().items():
            there = calls["place"] == place
            if not there.any():
                continue
            moments = calls["ts"][there].astype(np.int64)
            inside = Union(self.starts[mine], self.ends[mine]).covered(moments, moments + 1) > 0
            count += int(inside.sum())
            gpu_ns += int(calls["gpu_ns"][there][inside].sum())
        return count, gpu_ns

    def _threads(self) -> dict[int, np.ndarray]:
        return {place: self.places == place for place in dict.fromkeys(self.places.tolist())}


def operators_named(*patterns: str) -> Query:
    """Asks for the operators whose names match one of the GLOB patterns."""
    # The engine finds names by one pattern without looking at every slice.
    return Query("call_phases", _OPERATORS.format(" UNION ".join(_NAMED.format(pattern) for pattern in patterns)))


def read_operators(engine: TraceProcessor, query: Query) -> Operators:
    """The operators that `operators_named` asks for."""
    columns = engine.query(query.text)
    return Operators(
        columns["ts"].astype(np.int64),
        columns["ts_end"].astype(np.int64),
        columns["place"],
        columns["name"],
        columns["phase"],
    )
