"""The recorded step of median duration: what ran when, on the host and on the GPU."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows

# Intervals shorter than this part of the whole are merged: they would take less than two pixels.
SLOTS = 500

_STEP = Query("typical_step", "SELECT name, source, kind, steps, dur AS dur_ns FROM molprof_typical_step")

_TOTALS = Query(
    "typical_step",
    "SELECT kind, lane, class, COUNT() AS count, SUM(dur) AS time_ns FROM molprof_step_interval"
    " GROUP BY kind, lane, class ORDER BY kind, lane, time_ns DESC, class",
)

# Long intervals, and one for all short ones of a lane that start in the same slot: from first start to last end,
# with the name and class that take most of its time.
_INTERVALS = Query(
    "typical_step",
    f"""
WITH
  item AS (
    SELECT interval.*, MAX(1, (SELECT MAX(MAX(start_ns + dur), (SELECT dur FROM molprof_typical_step))
      FROM molprof_step_interval WHERE own) / {SLOTS}) AS slot_ns
    FROM molprof_step_interval AS interval
  ),
  slotted AS (
    SELECT *, IIF(dur >= slot_ns OR kind = 'phase', id, -1) AS alone, start_ns / slot_ns AS slot
    FROM item
  ),
  grouped AS (
    SELECT kind, lane, class, own, alone, IIF(alone < 0, slot, 0) AS slot, MIN(id) AS id, MIN(start_ns) AS start_ns,
      MAX(start_ns + dur) AS end_ns, SUM(dur) AS time_ns, COUNT() AS count, name
    FROM slotted
    GROUP BY kind, lane, class, own, alone, IIF(alone < 0, slot, 0)
  ),
  ranked AS (
    SELECT kind, lane, name, class, own, id,
      MIN(start_ns) OVER place AS start_ns,
      MAX(end_ns) OVER place AS end_ns,
      SUM(count) OVER place AS count,
      ROW_NUMBER() OVER (PARTITION BY kind, lane, own, alone, slot ORDER BY time_ns DESC, class, id) AS rank
    FROM grouped
    WINDOW place AS (PARTITION BY kind, lane, own, alone, slot)
  )
SELECT kind, lane, name, class, start_ns, end_ns - start_ns AS dur_ns, count, own
FROM ranked
WHERE rank = 1
ORDER BY start_ns, id
""",
)

QUERIES = (_STEP, _TOTALS, _INTERVALS)


class Interval(Struct, frozen=True):
    """A phase, call, operator or piece of GPU work of the step, or several short ones next to each other."""

    kind: str  # phase, launch, wait, operator (outermost; where no GPU calls are recorded) or gpu
    lane: str | None  # device/stream of GPU work, else None
    name: str  # of several, that of the class that takes most of their time
    work_class: str | None  # of GPU work, or the name of an operator; None for all else
    start_ns: int  # from the start of the step; below 0 for work that an earlier step had started
    dur_ns: int
    count: int
    own: bool  # started by the step's own calls


class IntervalTotal(Struct, frozen=True):
    """All of one kind, lane and class in the step."""

    kind: str
    lane: str | None
    work_class: str | None
    count: int
    time_ns: int


class TypicalStep(Struct, frozen=True):
    """The recorded step of median duration on the host, including the profiler's cost."""

    name: str
    source: str  # molprof, vllm, sglang or profiler
    kind: str | None  # prefill, decode and so on; None where the annotation has none
    steps: int  # number of steps that it is the median of
    dur_ns: int
    totals: tuple[IntervalTotal, ...]
    intervals: tuple[Interval, ...]  # in order of start, with short neighbours merged


def read_typical_step(engine: TraceProcessor) -> TypicalStep | None:
    """The step of median duration; None in a trace without annotated steps."""
    if not (steps := query_rows(engine, _STEP)[1]):
        return None
    totals = tuple(IntervalTotal(*row) for row in query_rows(engine, _TOTALS)[1])
    # SQL has 0 and 1 for `own`.
    intervals = tuple(replace(Interval(*row), own=bool(row[-1])) for row in query_rows(engine, _INTERVALS)[1])
    name, source, kind, count, dur_ns = steps[0]
    return TypicalStep(name, source, kind, count, dur_ns, totals, intervals)
