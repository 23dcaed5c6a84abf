"""Highlights of a trace for the UI: strips of slices to show above it, and the range to zoom to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from molprof.analysis.figures.model import IDLE_CAUSES
from molprof.analysis.frame import read_frame
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.analysis.trim import read_recorded_steps
from molprof.common.errors import UsageError

# Slices of a strip, and of all of a view: they go to the UI in one message. Of more, the longest are shown.
MAX_SLICES, MAX_SLICES_OF_ALL = 50_000, 400_000
MAX_STREAMS = 16
# Where a strip stands: above the token tracks, below them, below the streams of the GPUs.
ABOVE, TOKENS, IDLE = 1, 2, 3
_STRIPS = Query(
    "steps",
    """
INCLUDE PERFETTO MODULE molprof.host_syncs;
INCLUDE PERFETTO MODULE molprof.idle_gaps;
INCLUDE PERFETTO MODULE molprof.modules;
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.tokens;
SELECT
  1 AS place, 1 AS number, '' AS device, 'steps' AS title, ts, dur,
  IIF(kind IS NULL OR number IS NULL, name, 'step ' || number || ' (' || kind || ')') AS name, id, 0 AS position
FROM molprof_any_step
UNION ALL
SELECT 1, 2, '', 'phases', ts, dur, phase, id, 0 FROM molprof_phase
UNION ALL
-- Beside each other at the outermost depth where a class has several, such as layers.
SELECT 1, 3, '', 'modules', ts, dur, name, id, 0
FROM molprof_module
WHERE
  depth = (
    SELECT MIN(depth)
    FROM (SELECT depth FROM molprof_module GROUP BY depth, class HAVING COUNT(DISTINCT name) > 1)
  )
UNION ALL
-- Where Python stacks lie above them: what the thread with most operators calls that no other operator called.
SELECT 1, 4, '', 'operators', ts, dur, name, id, 0
FROM (
  SELECT id, ts, dur, name, MAX(ts + dur) OVER (
    ORDER BY ts, dur DESC, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS known_end
  FROM slice
  WHERE
    category = 'cpu_op'
    AND track_id = (
      SELECT track_id FROM slice WHERE category = 'cpu_op' GROUP BY track_id ORDER BY SUM(dur) DESC, track_id LIMIT 1
    )
    AND EXISTS(SELECT 1 FROM slice WHERE category = 'python_function')
)
WHERE known_end IS NULL OR ts >= known_end
UNION ALL
SELECT 1, 5, '', 'host syncs', slice.ts, slice.dur, slice.name || IFNULL(' in ' || sync.operator, ''), id, 0
FROM (
  SELECT id, operator FROM molprof_host_sync
  UNION ALL
  SELECT again.id, sync.operator
  FROM _molprof_fact_repeated_sync AS again
  JOIN molprof_host_sync AS sync ON sync.id = again.copy_id
) AS sync
JOIN slice USING (id)
UNION ALL
SELECT 2, 6, '', 'junk tokens', ts, dur, IFNULL(text, '') || ' (sequence ' || sequence || ')', sequence, position
FROM molprof_token
WHERE kind = 'junk' AND slice_id IS NOT NULL
UNION ALL
SELECT 3, 7, device, 'GPU ' || IFNULL(device, 'None') || ' idle', ts, dur, cause, 0, 0
FROM molprof_idle_gap
WHERE position = 'between'
""",
)
_SEQUENCES = """
SELECT EXTRACT_ARG(slice.arg_set_id, 'args.sequence') AS sequence, EXTRACT_ARG(slice.arg_set_id, 'args.batch') AS batch,
  process.pid AS pid, thread.tid AS tid, slice.ts AS ts, slice.dur AS dur
FROM slice
JOIN thread_track
  ON thread_track.id = slice.track_id
JOIN thread
  USING (utid)
JOIN process
  USING (upid)
WHERE slice.category = 'molprof.sequence'
ORDER BY sequence, slice.id
"""
_TYPICAL = """
SELECT step.ts, step.dur, own.batch
FROM molprof_typical_step AS step
LEFT JOIN molprof_step AS own
  USING (id)
"""


@dataclass(frozen=True)
class Span:
    """A span of SQL time."""

    start_ns: int  # from the earliest event of the trace
    dur_ns: int

    @property
    def end_ns(self) -> int:
        """The end of the span, ns."""
        return self.start_ns + self.dur_ns


@dataclass(frozen=True)
class Strip:
    """Slices to show above the trace."""

    place: int
    title: str
    slices: list[tuple[int, int, str]]  # start and duration in ns, name
    left_out: int = 0  # slices beyond MAX_SLICES, the shortest


@dataclass(frozen=True)
class SequenceTrack:
    """A token track, and the range of its recorded steps."""

    number: int
    batch: int
    track: tuple[int, int]  # process and thread number
    span: Span


@dataclass(frozen=True)
class ViewTarget:
    """The user's choice of the first view; None: not chosen."""

    step: int | None = None  # number as the trace has it, else counted from 0
    token: int | None = None  # position in `molecule`, by default in the first
    molecule: int | None = None  # number of a sequence


@dataclass(frozen=True)
class Contents:
    """The highlights of one file."""

    strips: list[Strip]  # those with slices, in the order in which they are shown, of MAX_STREAMS devices at most
    idle_devices: int  # of how many there are
    sequences: list[SequenceTrack]  # token tracks to pin, the one that the user asked for first
    first_step_ns: int | None
    zoom: Span | None  # None: nothing to choose


def read_contents(engine: TraceProcessor, path: str, place: ViewTarget, files: int = 1) -> Contents:
    """Return the highlights of one of `files` traces that are shown together.

    Raises UsageError where the trace lacks the step, token or molecule of `place`.
    """
    strips = []
    first_step_ns = None
    # Sorted here: of some 300,000 rows it takes the trace processor minutes.
    rows = tuple(sorted(query_rows(engine, _STRIPS)[1], key=_order))
    slice_counts = Counter((row[0], row[3]) for row in rows)
    idle = [key for key in slice_counts if key[0] == IDLE]
    hidden = {*idle[MAX_STREAMS:]}
    most = min(MAX_SLICES, MAX_SLICES_OF_ALL // (files * max(1, len(slice_counts) - len(hidden))))
    for (shown, title), same in groupby(rows, key=lambda row: (row[0], row[3])):
        if (shown, title) in hidden:
            continue
        slices = [(ts, dur, IDLE_CAUSES.get(name, name) if shown == IDLE else name) for *_, ts, dur, name, _, _ in same]
        strips.append(longest(shown, title, slices, most))
        if title == "steps":
            first_step_ns = slices[0][0]
    _, rows = query_rows(engine, Query("tokens", _SEQUENCES))
    sequences = [SequenceTrack(number, batch, (pid, tid), Span(ts, dur)) for number, batch, pid, tid, ts, dur in rows]
    zoom, batch = _zoom(engine, path, place, sequences)
    pinned = [item for item in sequences if item.number == place.molecule]
    pinned += [item for item in sequences if item not in pinned and batch in (None, item.batch)]
    return Contents(strips, len(idle), pinned, first_step_ns, zoom)


def _order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    _, number, device, _, ts, _, _, id_, position = row
    return number, device is not None, device or 0, ts, id_ or 0, position or 0


def longest(index: int, title: str, slices: list[tuple[int, int, str]], most: int = MAX_SLICES) -> Strip:
    """Return the strip of the slices, or of the longest of too many."""
    if len(slices) <= most:
        return Strip(index, title, slices)
    kept = sorted(slices, key=lambda item: (-item[1], item[0]))[:most]
    return Strip(index, f"{title} (longest {most:,})", sorted(kept), len(slices) - most)


def _zoom(
    engine: TraceProcessor, path: str, place: ViewTarget, sequences: list[SequenceTrack]
) -> tuple[Span | None, int | None]:
    """Return the span to look at, and the batch that it is of."""
    chosen = None
    if place.molecule is not None or place.token is not None:
        # Without a number the first of which anything was recorded.
        recorded = [item for item in sequences if item.number == place.molecule or place.molecule is None]
        chosen = next((item for item in recorded if item.span.dur_ns), recorded[0] if recorded else None)
        if chosen is None:
            raise _missing(path, "molecule", place.molecule or 0, [item.number for item in sequences])
    batch = None if chosen is None else chosen.batch
    if place.token is not None and chosen is not None:
        where = f"slice_id IS NOT NULL AND sequence = {chosen.number}"
        tokens = read_frame(engine, "tokens", "position ts dur", where).rows()
        spans = {position: Span(ts, dur) for position, ts, dur in tokens}
        if place.token not in spans:
            raise _missing(path, "token", place.token, list(spans), f" of molecule {chosen.number}")
        return spans[place.token], batch
    if place.step is not None:
        steps = [step for step in read_recorded_steps(engine) if batch in (None, step.batch)]
        step = next((step for step in steps if step.number == place.step), None)
        if step is None:
            raise _missing(path, "step", place.step, [step.number for step in steps])
        return Span(step.start_ns, step.dur_ns), step.batch
    if chosen is not None:
        return chosen.span if chosen.span.dur_ns else None, batch
    _, typical = query_rows(engine, Query("typical_step", _TYPICAL))
    return next(((Span(ts, dur), batch) for ts, dur, batch in typical), (None, None))


def _missing(path: str, what: str, number: int, numbers: list[int], of: str = "") -> UsageError:
    if not numbers:
        return UsageError(f"{path} has no recorded {what}s{of} to zoom to", hint=f"leave --{what} out")
    hint = f"give --{what} one from {min(numbers)} to {max(numbers)}"
    return UsageError(f"{path} has no recorded {what} {number}{of}", hint)
