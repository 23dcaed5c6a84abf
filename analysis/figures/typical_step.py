"""The recorded step of median duration: its phases, calls and work, the shortest ones merged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from statistics import median
from typing import Any

from molprof.analysis.figures.step_model import SLOTS, IntervalTotal, StepInterval, TypicalStep
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows

_STEP = Query("typical_step", "SELECT name, source, kind, steps, dur AS dur_ns FROM molprof_typical_step")
_TOTALS = Query(
    "typical_step",
    "SELECT kind, device_stream, class, COUNT() AS count, SUM(dur) AS time_ns FROM molprof_step_interval"
    " GROUP BY kind, device_stream, class ORDER BY kind, device_stream, time_ns DESC, class",
)
_INTERVALS = Query(
    "typical_step",
    "SELECT id, kind, device_stream, name, class, start_ns, dur, own FROM molprof_step_interval ORDER BY id",
)
# Of the steps that it is the median of.
_TIMES = Query(
    "step_times",
    "SELECT fact.time_ns FROM molprof_step_time AS fact JOIN molprof_any_step AS step ON step.id = fact.step_id"
    " WHERE step.kind IS 'decode' OR NOT EXISTS(SELECT 1 FROM molprof_any_step WHERE kind = 'decode')",
)


def read_typical_step(engine: TraceProcessor) -> TypicalStep | None:
    """Return the step of median duration; None in a trace without steps."""
    if not (steps := query_rows(engine, _STEP)[1]):
        return None
    totals = tuple(IntervalTotal(*row) for row in query_rows(engine, _TOTALS)[1])
    name, source, kind, count, dur_ns = steps[0]
    rows = query_rows(engine, _INTERVALS)[1]
    time_ns = median(time_ns for (time_ns,) in query_rows(engine, _TIMES)[1])
    return TypicalStep(name, source, kind, count, dur_ns, totals, tuple(_merged(list(rows), dur_ns, SLOTS)), time_ns)


def _merged(rows: list[tuple[Any, ...]], dur_ns: int, slots: int) -> Iterator[StepInterval]:
    """Yield long intervals, and one for all short ones of a sub-track that start in the same of so many slots.

    That one goes from their first start to their last end, with the class that takes most of its time, and the first
    name of it. Phases are all long.
    """
    slot_ns = max(1, max([dur_ns, *(start + dur for *_, start, dur, own in rows if own)]) // slots)
    pieces: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row in rows:
        number, kind, device_stream, _, _, start, dur, own = row
        is_alone = dur >= slot_ns or kind == "phase"
        slot = abs(start) // slot_ns * (1 if start >= 0 else -1)
        pieces.setdefault(
            (kind, device_stream, own, number if is_alone else None, None if is_alone else slot), []
        ).append(row)
    merged = []
    for (kind, device_stream, own, _, _), mine in pieces.items():
        by_class = {name: list(same) for name, same in groupby(sorted(mine, key=_class), _class)}
        most = min(by_class.values(), key=lambda same: (-sum(row[6] for row in same), _class(same[0])))
        number, *_ = first = min(most)
        start = min(row[5] for row in mine)
        length_ns = max(row[5] + row[6] for row in mine) - start
        merged.append(
            (
                start,
                number,
                StepInterval(kind, device_stream, first[3], first[4], start, length_ns, len(mine), bool(own)),
            )
        )
    yield from (interval for *_, interval in sorted(merged, key=lambda item: item[:2]))


def _class(row: tuple[Any, ...]) -> str:
    return row[4] or ""
