"""The part of a trace that is compared: its step of median time, all steps, or all of it, as items that add up.

Time is counted once: of work that runs beside earlier work of its device counts what is left after that has ended, of
an operator what is not in those that it calls. So the times of all work and the gaps between add up to the time from
the first start to the last end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from molprof.analysis.compare.kernels.read import Recorded, Row, Step
from molprof.common.errors import EngineError

STEP, STEPS, TRACE = "step", "steps", "trace"


class Item(NamedTuple):
    """A row and what it adds to the time."""

    row: Row
    own_ns: int  # its time after all earlier work of its lane has ended, and without operators that it calls
    gap_ns: int  # time before it in which nothing ran


@dataclass(frozen=True)
class Strand:
    """What one device, or process of operators, did in a step or in the whole trace."""

    lane: str
    kind: str | None  # of the step: decode, prefill and so on
    items: tuple[Item, ...]
    tail_ns: int  # nothing ran after the last one, up to the end of the step; 0 for GPU work, which has no such end
    span_ns: int  # from its ends, not from its items


@dataclass(frozen=True)
class Part:
    """The part of a trace that is compared."""

    trace: Recorded
    steps: tuple[Step, ...]  # none: the whole trace
    strands: tuple[Strand, ...]
    outside: tuple[int, int]  # pieces of work that are in no step, and their time; 0 where the whole trace is taken

    @property
    def span_ns(self) -> int:
        return sum(strand.span_ns for strand in self.strands)


def cut(recorded: Recorded, region: str) -> Part:
    """The part of a trace that a region names: STEP, its step of median duration; STEPS, all; TRACE, everything.

    Raises EngineError where the times do not add up to the devices' time.
    """
    chosen: tuple[Step, ...] = ()
    if region != TRACE:
        chosen = tuple(step for step in recorded.steps if region == STEPS or step.typical)
    build = _gpu_strands if recorded.has_gpu else _operator_strands
    strands = tuple(build(recorded.rows, chosen))
    inside = sum(len(strand.items) for strand in strands)
    own_ns = sum(item.row.dur for strand in strands for item in strand.items)
    part = Part(
        recorded, chosen, strands, (len(recorded.rows) - inside, sum(row.dur for row in recorded.rows) - own_ns)
    )
    if region == TRACE and recorded.has_gpu and part.span_ns != recorded.device_ns[0]:
        raise EngineError(
            f"{recorded.info.path}: the work and gaps take {part.span_ns} ns, the devices {recorded.device_ns[0]} ns"
        )
    return part


def _gpu_strands(rows: Sequence[Row], steps: Sequence[Step]) -> Iterator[Strand]:
    """A strand of each device; with steps one of each step, whose first gap goes back to the work before it."""
    by_step: dict[tuple[int, str], list[int]] = {}
    timed: list[Item] = []
    ends: list[int] = []  # latest end up to and with each row
    lanes = []
    for lane, group in groupby(rows, key=lambda row: row.lane):
        lanes.append(lane)
        first = len(timed)
        of_lane = list(group)
        timed += _timed(of_lane, None)
        for row in of_lane:
            ends.append(max(ends[-1], row.ts + row.dur) if len(ends) > first else row.ts + row.dur)
        if not steps:
            yield Strand(lane, None, tuple(timed[first:]), 0, ends[-1] - of_lane[0].ts)
        for place, step_id in enumerate(_placed(of_lane), first):
            if step_id is not None:
                by_step.setdefault((step_id, lane), []).append(place)
    for step in steps:
        for lane in lanes:
            places = by_step.get((step.id, lane), [])
            if places:
                items = tuple(timed[place] for place in places)
                yield Strand(lane, step.kind, items, 0, sum(_run_spans(timed, ends, places)))


def _run_spans(timed: Sequence[Item], ends: Sequence[int], places: Sequence[int]) -> Iterator[int]:
    """Of each run of neighbours the time from the end of the work before it to its own end."""
    for _, run in groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
        numbers = [place for _, place in run]
        row = timed[numbers[0]].row
        is_first = numbers[0] == 0 or timed[numbers[0] - 1].row.lane != row.lane
        yield ends[numbers[-1]] - (row.ts if is_first else ends[numbers[0] - 1])


def _placed(rows: Sequence[Row]) -> list[int | None]:
    """The step of each row of a device; work whose call is not recorded is in the step that is around it."""
    placed = [row.step_id for row in rows]
    last: int | None = None  # place of the last row whose call is recorded
    for place, row in enumerate(rows):
        if not row.known:
            continue
        if last is not None and rows[last].step_id == row.step_id:
            placed[last + 1 : place] = [row.step_id] * (place - last - 1)
        last = place
    return placed


def _operator_strands(rows: Sequence[Row], steps: Sequence[Step]) -> Iterator[Strand]:
    """A strand of each process; with steps one of each step, from its start to its end."""
    by_step: dict[int | None, list[Row]] = {}
    for row in rows:
        by_step.setdefault(row.step_id, []).append(row)
    for step in steps:
        inside = by_step.get(step.id, [])
        end = step.ts + step.dur
        for lane in list(dict.fromkeys(row.lane for row in inside)) or [""]:
            items = tuple(_timed([row for row in inside if row.lane == lane], (step.ts, end)))
            last = max((min(item.row.ts + item.row.dur, end) for item in items), default=step.ts)
            yield Strand(lane, step.kind, items, end - last, step.dur)
    if not steps:
        for lane, group in groupby(rows, key=lambda row: row.lane):
            of_lane = list(group)
            end = max(row.ts + row.dur for row in of_lane)
            yield Strand(lane, None, tuple(_timed(of_lane, None)), 0, end - of_lane[0].ts)


def _timed(rows: Sequence[Row], ends: tuple[int, int] | None) -> Iterator[Item]:
    """What each row of a lane adds to its time, within these ends if any are given."""
    own_ns, gap_ns = [0] * len(rows), [0] * len(rows)
    busy_ns: Any = None if ends is None else ends[0]
    for start, end, place in sorted(_stretches(rows)):
        if ends is not None:
            start, end = min(start, ends[1]), min(end, ends[1])
        if busy_ns is None:
            busy_ns = start
        own_ns[place] += max(0, end - max(start, busy_ns))
        gap_ns[place] += max(0, start - busy_ns)
        busy_ns = max(busy_ns, end)
    return map(Item, rows, own_ns, gap_ns)


def _stretches(rows: Sequence[Row]) -> Iterator[tuple[int, int, int]]:
    """Start, end and place of the row that runs there: of operators the innermost of their track."""
    outer: dict[int, list[int]] = {}
    cursor: dict[int, int] = {}  # of each track, up to where it is given away
    for place, row in enumerate(rows):
        if row.track_id == -1:
            yield row.ts, row.ts + row.dur, place
            continue
        stack = outer.setdefault(row.track_id, [])
        yield from _ended(rows, stack, cursor, row)
        if stack:
            yield cursor[row.track_id], row.ts, stack[-1]
        cursor[row.track_id] = row.ts
        stack.append(place)
    for stack in outer.values():
        yield from _ended(rows, stack, cursor, None)


def _ended(
    rows: Sequence[Row], stack: list[int], cursor: dict[int, int], before: Row | None
) -> Iterator[tuple[int, int, int]]:
    """What is left of the operators of a track that end before this row, which leave its stack."""
    while stack:
        row = rows[stack[-1]]
        end = row.ts + row.dur
        if before is not None and end > before.ts:
            return
        yield cursor[row.track_id], end, stack.pop()
        cursor[row.track_id] = end
