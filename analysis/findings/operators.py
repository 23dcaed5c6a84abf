"""Operators by name, their phase, and the GPU work launched inside them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from molprof.analysis.engine import Columns, Engine
from molprof.analysis.engine.package import Query
from molprof.analysis.figures.union import Union

# A thread of a process; a slice in a lane, whose thread number is made up, still belongs to its thread.
_PLACE = """(thread.upid << 33) + IIF(
  thread.tid < 1 << 31, thread.tid, COALESCE(EXTRACT_ARG(slice.arg_set_id, 'args.molprof_tid'), thread.tid)
)"""
_OPERATORS = f"""
SELECT slice.ts, slice.ts + slice.dur AS ts_end, {_PLACE} AS place, slice.name, phase.phase
FROM ({{}}) AS named
CROSS JOIN slice ON slice.id = named.id
JOIN thread_track ON thread_track.id = slice.track_id
JOIN thread USING (utid)
LEFT JOIN molprof_call_phase AS inside ON inside.id = slice.id
LEFT JOIN molprof_phase AS phase ON phase.id = inside.phase_id
ORDER BY slice.ts, slice.dur DESC, slice.id
"""
_NAMED = "SELECT id FROM slice WHERE category = 'cpu_op' AND name GLOB '{}'"
_LAUNCHED = Query(
    "launches",
    f"""
SELECT slice.ts, {_PLACE} AS place, work.kernels + work.memory_operations AS count, work.gpu_ns
FROM molprof_call_work AS work
JOIN slice ON slice.id = work.call_id
JOIN thread_track ON thread_track.id = slice.track_id
JOIN thread USING (utid)
""",
)


@dataclass(frozen=True)
class Operators:
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
        return Operators(*(column[wanted] for column in vars(self).values()))

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

    def launched(self, engine: Engine) -> tuple[int, int]:
        """Count of GPU work launched inside them, and the sum of its times, ns."""
        calls: Columns = engine.query(_LAUNCHED.text)
        count = gpu_ns = 0
        for place, mine in self._threads().items():
            there = calls["place"] == place
            if not there.any():
                continue
            moments = calls["ts"][there].astype(np.int64)
            inside = Union(self.starts[mine], self.ends[mine]).covered(moments, moments + 1) > 0
            count += int(calls["count"][there][inside].sum())
            gpu_ns += int(calls["gpu_ns"][there][inside].sum())
        return count, gpu_ns

    def _threads(self) -> dict[int, np.ndarray]:
        return {place: self.places == place for place in dict.fromkeys(self.places.tolist())}


def read_operators(engine: Engine, *patterns: str) -> Operators:
    """The operators whose names match one of the GLOB patterns."""
    # The engine finds names by one pattern without looking at every slice.
    found = " UNION ".join(_NAMED.format(pattern) for pattern in patterns)
    columns = engine.query(Query("placement", _OPERATORS.format(found)).text)
    return Operators(
        columns["ts"].astype(np.int64),
        columns["ts_end"].astype(np.int64),
        columns["place"],
        columns["name"],
        columns["phase"],
    )
