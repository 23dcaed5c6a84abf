"""Operators by name, their phase, and the GPU work launched inside them; unions of intervals, and what lies inside."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from molprof.analysis.engine import Columns, Engine

# Disjoint, in order: int64 (n, 2), start and end in ns.
Stretches = np.ndarray

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
        return sum(length_ns(joined(self.starts[mine], self.ends[mine])) for mine in self._threads().values())

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
            stretches = joined(self.starts[mine], self.ends[mine])
            moments = calls["ts"][there].astype(np.int64)
            at = np.searchsorted(stretches[:, 0], moments, side="right") - 1
            inside = (at >= 0) & (moments < stretches[at, 1])
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


def joined(starts: ArrayLike, ends: ArrayLike) -> Stretches:
    """The union of half-open intervals [start, end), ns."""
    first, last = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    if not len(first):
        return np.empty((0, 2), dtype=np.int64)
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    # A stretch begins where all before it has ended.
    begins = np.concatenate([[True], first[1:] > last[:-1]])
    return np.stack([first[begins], last[np.concatenate([begins[1:], [True]])]], axis=1)


def length_ns(stretches: Stretches) -> int:
    return int((stretches[:, 1] - stretches[:, 0]).sum())


def inside_ns(starts: ArrayLike, ends: ArrayLike, stretches: Stretches) -> np.ndarray:
    """How much of each interval lies in `stretches`: int64 (n,), ns. The intervals may overlap each other."""
    before = np.concatenate([[0], np.cumsum(stretches[:, 1] - stretches[:, 0])])

    def covered(moments: ArrayLike) -> np.ndarray:
        """Length of `stretches` up to each moment."""
        at = np.asarray(moments, dtype=np.int64)
        if not len(stretches):
            return np.zeros(len(at), dtype=np.int64)
        place = np.searchsorted(stretches[:, 0], at, side="right")
        last = stretches[np.maximum(place - 1, 0)]
        # The last stretch may end after the moment.
        length: np.ndarray = before[place] - np.where(place > 0, np.maximum(last[:, 1] - at, 0), 0)
        return length

    inside: np.ndarray = covered(ends) - covered(starts)
    return inside


def union_inside_ns(starts: ArrayLike, ends: ArrayLike, stretches: Stretches) -> int:
    """How much of the union of some intervals lies in `stretches`."""
    union = joined(starts, ends)
    return int(inside_ns(union[:, 0], union[:, 1], stretches).sum())
