"""Calls, work and idle time inside operators, annotations and Python functions of some names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import CAUSES, NONE
from molprof.analysis.facts.intervals import Coverage
from molprof.analysis.facts.slices import TRACKS
from molprof.analysis.facts.source import looked_up
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import short_source

_THREAD = """
JOIN thread_track AS track ON track.id = one.track_id
JOIN thread USING (utid)
LEFT JOIN process USING (upid)
"""
_NAMED = """
SELECT one.ts, one.ts + one.dur AS ts_end, IFNULL(process.pid, 0) AS pid, thread.tid, one.name
FROM ({names}) AS named
CROSS JOIN slice AS one ON one.id = named.id
{thread}
WHERE one.category IN ('cpu_op', 'user_annotation', 'python_function')
ORDER BY one.ts, one.dur DESC, one.id
"""
_TRACKS = Query("gpu_calls", TRACKS)


class Inside(Struct, frozen=True):
    """Intervals of threads in slices of a name, and the calls of the runtime and driver in them."""

    names: tuple[str, ...]  # distinct ones, the longest time first
    starts: np.ndarray  # of the intervals that lie in no other one of their thread
    ends: np.ndarray
    calls: np.ndarray  # whether each call is in one: bool

    @property
    def count(self) -> int:
        """Number of intervals."""
        return len(self.starts)

    @property
    def host_ns(self) -> int:
        """Time of the intervals, summed over threads, ns."""
        return int((self.ends - self.starts).sum())

    def work(self, known: TraceFacts) -> np.ndarray:
        """Return True for each piece of work whose call is in one of the intervals: bool."""
        is_inside: np.ndarray = np.append(self.calls, False)[known.facts.work.call]
        return is_inside

    def work_ns(self, known: TraceFacts) -> tuple[int, int]:
        """Return count and time of the GPU work launched in them, ns; of a run, in its recorded steps."""
        work, chosen = known.facts.work, self.work(known)
        if known.report.run is not None:
            chosen &= known.scope.spans.covered(work.ts, work.ts + 1) > 0
        return int(chosen.sum()), int((work.ts_end - work.ts)[chosen].sum())

    def idle_ns(self, known: TraceFacts, causes: Collection[str]) -> tuple[int, int]:
        """Return count and time of the short gaps of these causes that end with work launched in them, ns."""
        idle, parts = known.facts.idle, known.facts.parts
        chosen = (idle.position == 0) & ~idle.is_long & (idle.call != NONE) & np.append(self.calls, False)[idle.call]
        times = parts.time_ns
        if known.report.run is not None:
            shared = known.scope.spans.covered(idle.ts, idle.ts_end)[parts.idle]
            times = times * shared // np.maximum(1, idle.ts_end - idle.ts)[parts.idle]
        mine = chosen[parts.idle] & np.isin(parts.cause, [CAUSES.index(cause) for cause in causes]) & (times > 0)
        return len(np.unique(parts.idle[mine])), int(times[mine].sum())


def inside(known: TraceFacts, patterns: Sequence[str], functions: Sequence[str] = ()) -> Inside | None:
    """Return calls and work inside operators, annotations and Python functions of these names; None where none ran.

    patterns, functions: GLOB patterns of their names; a function's is `file(line): name`.
    """
    return known.once("inside", (*patterns, *functions), lambda: _found(known, patterns, functions))


def _found(known: TraceFacts, patterns: Sequence[str], functions: Sequence[str]) -> Inside | None:
    # The engine finds names by one pattern without looking at every slice.
    glob = " UNION ".join(f"SELECT id FROM slice WHERE name GLOB '{name}'" for name in (*patterns, *functions))
    rows: list[tuple[int, int, tuple[int, int], str]] = [
        (ts, ts_end, (pid, tid), name)
        for ts, ts_end, pid, tid, name in known.frame(
            Query("gpu_calls", _NAMED.format(names=glob, thread=_THREAD))
        ).rows()
    ]
    if (stacks := known.stacks) is not None and functions:
        wanted = [any(fnmatchcase(text, pattern) for pattern in functions) for text in stacks.texts]
        thread_of = {number: thread for thread, number in stacks.numbers.items()}
        some = np.array(wanted, dtype=bool)[stacks.names] if wanted else np.zeros(0, dtype=bool)
        for row in np.flatnonzero(some).tolist():
            where = thread_of[int(stacks.threads[row])]
            rows.append((int(stacks.starts[row]), int(stacks.ends[row]), where, stacks.texts[int(stacks.names[row])]))
    if not rows:
        return None
    threads = {thread: number for number, thread in enumerate(dict.fromkeys(row[2] for row in rows))}
    numbers = {track: threads[pid, tid] for track, pid, tid in known.frame(_TRACKS).rows() if (pid, tid) in threads}
    of_call = looked_up(known.facts.calls.track, numbers)
    of_call[of_call == NONE] = len(threads)
    columns = (np.array([row[column] for row in rows], dtype=np.int64) for column in (0, 1))
    covered = Coverage(np.array([threads[row[2]] for row in rows], dtype=np.int64), *columns)
    times: dict[str, int] = {}
    for ts, ts_end, _, name in rows:
        times[name] = times.get(name, 0) + ts_end - ts
    starts = known.facts.calls.ts
    return Inside(
        tuple(short_source(name) if "(" in name else name for name in sorted(times, key=lambda name: -times[name])),
        covered.starts,
        covered.ends,
        covered.covered(of_call, starts, starts + 1) > 0,
    )
