"""Host activity while none of the compared work ran: the innermost module, Python function or phase of each thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from molprof.analysis.facts.intervals import Keyed, shared
from molprof.analysis.facts.nesting import Nesting
from molprof.analysis.frame import read_frame
from molprof.analysis.trace_processor import TraceProcessor

MODULE, SOURCE, PHASE = "module", "source", "phase"
Thread = tuple[int, int]  # process and thread number


@dataclass(frozen=True)
class LocatedHostTime:
    """Intervals of threads that do not overlap, each with the location in which the thread was."""

    threads: dict[Thread, int]  # to the number in `intervals`
    intervals: Keyed
    places: list[str | None]  # of each interval

    @property
    def main_thread(self) -> Thread | None:
        """The thread with most located time."""
        lanes, starts, ends = self.intervals
        times = np.bincount(lanes, weights=ends - starts, minlength=len(self.threads))
        return list(self.threads)[int(times.argmax())] if len(times) else None

    def shares(
        self, thread: Thread | None, starts: np.ndarray, ends: np.ndarray
    ) -> Iterator[tuple[int, str | None, int]]:
        """Yield the index of each span, a location, and the time that both share, ns; None: the time in no location."""
        number = self.threads.get(thread, -1) if thread is not None else -1
        spans = np.full(len(starts), number, dtype=np.int64), starts, ends
        which, interval, begins, stops = shared(spans, self.intervals)
        left = ends - starts
        np.subtract.at(left, which, stops - begins)
        times = zip(which.tolist(), interval.tolist(), (stops - begins).tolist(), strict=True)
        yield from ((index, self.places[at], ns) for index, at, ns in times)
        yield from ((index, None, ns) for index, ns in enumerate(left.tolist()) if ns)


def read_host(engine: TraceProcessor, by: str) -> LocatedHostTime:
    """Return the locations of threads over time, by MODULE, SOURCE or PHASE; empty where that is not recorded."""
    threads: dict[Thread, int] = {}
    if by == PHASE:
        names = engine.facts.phase_names
        rows = [
            (threads.setdefault((upid, tid), len(threads)), ts, ts_end, names[phase])
            for phase, ts, ts_end, upid, tid in engine.facts.phase_lanes
        ]
        columns = np.array([row[:3] for row in rows], dtype=np.int64).reshape(-1, 3).T
        return LocatedHostTime(threads, (columns[0], columns[1], columns[2]), [row[3] for row in rows])
    frames = read_frame(engine, "functions", "id parent_id kind name module upid tid ts dur")
    # The innermost function of each frame, one of a library where there is no other, as `source` of work is.
    sources: dict[int, tuple[str | None, str | None]] = {}
    locations: list[str | None] = []
    lanes = []
    for number, parent, kind, name, module, upid, tid, *_ in frames.rows():
        user, library = sources.get(parent, (None, None))
        sources[number] = user, library = (name if kind == "function" else user, name if kind == "library" else library)
        locations.append(module if by == MODULE else user or library)
        lanes.append(threads.setdefault((upid, tid), len(threads)))
    starts = frames["ts"].astype(np.int64)
    nesting = Nesting(
        np.array(lanes, dtype=np.int64), starts, starts + frames["dur"].astype(np.int64), np.arange(len(locations))
    )
    segments = nesting.segments
    owners = nesting.names[segments.owners]
    return LocatedHostTime(
        threads, (segments[0], segments.starts, segments.ends), [locations[owner] for owner in owners.tolist()]
    )
