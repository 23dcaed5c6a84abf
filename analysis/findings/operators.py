"""Operators by name, their phase, and the GPU work launched inside them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from molprof.analysis.engine import Columns, Engine
from molprof.analysis.figures.union import Union

_INCLUDES = "INCLUDE PERFETTO MODULE molprof.placement;\nINCLUDE PERFETTO MODULE molprof.operation_totals;\n"
# A thread of a process; a slice in a lane still belongs to its thread.
_PLACE = "thread.upid || ' ' || COALESCE(EXTRACT_ARG(slice.arg_set_id, 'args.molprof_tid'), thread.tid)"
_OPERATORS = f"""
SELECT slice.ts, slice.ts + slice.dur AS ts_end, {_PLACE} AS place, slice.name, phase.phase, phase.id AS phase_id
FROM slice
JOIN thread_track ON thread_track.id = slice.track_id
JOIN thread USING (utid)
LEFT JOIN molprof_call_phase AS inside ON inside.id = slice.id
LEFT JOIN molprof_phase AS phase ON phase.id = inside.phase_id
WHERE slice.category = 'cpu_op' AND slice.name IN (
  SELECT name FROM molprof_operation_total WHERE category = 'cpu_op' AND (%s)
)
ORDER BY slice.ts, slice.dur DESC, slice.id
"""
_LAUNCHED = f"""
SELECT slice.ts, {_PLACE} AS place, COUNT() AS count, SUM(work.dur) AS gpu_ns
FROM molprof_gpu_work_call AS link
JOIN molprof_gpu_work AS work ON work.id = link.work_id
JOIN slice ON slice.id = link.call_id
JOIN thread_track ON thread_track.id = slice.track_id
JOIN thread USING (utid)
GROUP BY slice.id
"""


@dataclass(frozen=True)
class Operators:
    """Calls of operators in order of start, outer before inner."""

    starts: np.ndarray  # int64 (n,), ns
    ends: np.ndarray
    places: np.ndarray  # object (n,)
    names: np.ndarray
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
        calls: Columns = engine.query(_INCLUDES + _LAUNCHED)
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

    def _threads(self) -> dict[str, np.ndarray]:
        return {place: self.places == place for place in dict.fromkeys(self.places.tolist())}


def read_operators(engine: Engine, *patterns: str) -> Operators:
    """The operators whose names match one of the GLOB patterns."""
    # Few names match, and the engine finds slices by name without looking at all.
    condition = " OR ".join(f"name GLOB '{pattern}'" for pattern in patterns)
    columns = engine.query(_INCLUDES + _OPERATORS % condition)
    return Operators(
        columns["ts"].astype(np.int64),
        columns["ts_end"].astype(np.int64),
        columns["place"],
        columns["name"],
        columns["phase"],
    )
