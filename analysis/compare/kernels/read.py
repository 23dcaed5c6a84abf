"""Recorded work of a trace in order, and the selection of it that is compared, as items that add up.

Kernels, copies and sets with their origin, or operators of a trace without a GPU. Time is counted once: of work that
runs beside earlier work of its device counts what is left after that has ended, of an operator what is not in those
that it calls. So the times of all work and the gaps between add up to the time from the first start to the last end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np

from molprof.analysis.compare.kernels.host import LocatedHostTime, read_host
from molprof.analysis.facts.nesting import Nesting
from molprof.analysis.figures.shapes import input_shapes, shapes_text
from molprof.analysis.frame import read_frame
from molprof.analysis.reader import TraceInfo
from molprof.analysis.roofline.formulas import work_of
from molprof.analysis.roofline.operands import read_operands
from molprof.analysis.roofline.read import HEAVY
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query
from molprof.common.errors import EngineError, TraceError

STEP, STEPS, TRACE = "step", "steps", "trace"
_OF_BOTH = "ts dur name module layer source phase step_id"
_TYPICAL = Query("typical_step", "SELECT id FROM molprof_typical_step")
# Apart from the items.
_SPAN = Query("devices", "SELECT IFNULL(SUM(span_ns), 0) AS span_ns FROM molprof_device")


class RecordedWork(NamedTuple):
    """A kernel, copy, set or operator, as the engine has it, and the time that it adds to a selection."""

    ts: int
    dur: int
    name: str
    module: str | None
    layer: int | None
    source: str | None
    phase: str | None
    step_id: int | None
    cls: str | None
    lane: str  # device, or process of operators
    operator: str | None
    known: bool  # its call is recorded
    shape: str | None  # sizes of the operator's inputs
    track_id: int = -1  # -1: GPU work
    own_ns: int = 0  # its time after all earlier work of its lane has ended, and without operators that it calls
    gap_ns: int = 0  # time before it in which nothing ran
    amount: int | None = None  # FLOPs of its operator where they count, else least bytes; None: not known


class KernelStep(NamedTuple):
    """A recorded step: its slice, start and duration, ns, and kind."""

    id: int
    ts: int
    dur: int
    kind: str | None
    name: str
    upid: int
    tid: int
    typical: bool


@dataclass(frozen=True)
class RecordedRows:
    """A trace's rows by sub-track and start, and its steps by start."""

    info: TraceInfo
    has_gpu: bool  # the rows are GPU work
    rows: tuple[RecordedWork, ...]
    steps: tuple[KernelStep, ...]
    span_ns: int  # of all devices
    host: Mapping[str, LocatedHostTime] = field(default_factory=dict)  # where threads were, by what was asked for


@dataclass(frozen=True)
class Lane:
    """The work of one device, or of one process's operators, in a step or in the whole trace."""

    name: str
    kind: str | None  # of the step: decode, prefill and so on
    items: tuple[RecordedWork, ...]
    tail_ns: int  # nothing ran after the last one, up to the end of the step; 0 for GPU work, which has no such end
    span_ns: int  # from its ends, not from its items
    step_id: int | None = None  # None: the whole trace
    end: int | None = None  # of the step; None: of the last item


@dataclass(frozen=True)
class Selection:
    """The part of a trace that is compared."""

    trace: RecordedRows
    steps: tuple[KernelStep, ...]  # none: the whole trace
    lanes: tuple[Lane, ...]
    outside: tuple[int, int]  # pieces of work that are in no step, and their time; 0 where the whole trace is taken

    @property
    def items(self) -> list[RecordedWork]:
        """All GPU work, or operators, of the compared part of the trace, lane by lane."""
        return [item for lane in self.lanes for item in lane.items]

    @property
    def span_ns(self) -> int:
        """The length of all sub-tracks, ns."""
        return sum(lane.span_ns for lane in self.lanes)


def read_recorded(engine: TraceProcessor, info: TraceInfo, host: str | None = None) -> RecordedRows:
    """Return the recorded work of a loaded trace. Raises TraceError where neither GPU work nor operators are recorded.

    host: MODULE, SOURCE or PHASE, to tell where threads were.
    """
    work = read_frame(engine, "work", f"{_OF_BOTH} class device operator call_id operator_id").rows()
    with_work = {row[-1] for row in work} - {None}
    sizes = input_shapes(engine, with_work if work else None)
    shapes = {operator: shapes_text(each) for operator, each in sizes.items()}
    amounts = _amounts(engine, {row[-1]: row[-3] for row in work if row[-1] in shapes})
    rows = [
        RecordedWork(*(*row, call is not None, shapes.get(operator)))._replace(amount=amounts.get(operator))
        for *row, call, operator in work
    ]
    if not work:
        # One lane for each process.
        operators = read_frame(engine, "operators", f"{_OF_BOTH} upid id track_id").rows()
        rows = [
            RecordedWork(*(*row, None, str(upid), row[2], True, shapes.get(number), track))
            for *row, upid, number, track in operators
        ]
    if not rows:
        raise TraceError(f"{info.path} records neither GPU work nor operators", "record it with torch.profiler")
    typical = set(engine.query(_TYPICAL.text)["id"].tolist())
    steps = [
        KernelStep(*(*row, row[0] in typical))
        for row in read_frame(engine, "steps", "id ts dur kind name upid tid").rows()
    ]
    span_ns = int(engine.query(_SPAN.text)["span_ns"][0])
    hosts = {} if host is None else {host: read_host(engine, host)}
    return RecordedRows(info, bool(work), tuple(sorted(rows, key=lambda row: row.lane)), tuple(steps), span_ns, hosts)


def _amounts(engine: TraceProcessor, operators: Mapping[int, str]) -> dict[int, int]:
    """Return the work of operators by slice: FLOPs of products, convolutions and attention, bytes of others."""
    amounts = {}
    for item, operands in (read_operands(engine, operators) if operators else {}).items():
        if (one := work_of(operators[item], operands)) is not None:
            amounts[item] = one.flops if one.family in HEAVY and one.flops else one.bytes
    return amounts


def cut(recorded: RecordedRows, region: str) -> Selection:
    """Return the part of a trace that a region names: STEP, its step of median duration; STEPS, all; TRACE, everything.

    Raises EngineError where the times do not add up to the devices' time.
    """
    steps = tuple(step for step in recorded.steps if region == STEPS or (region == STEP and step.typical))
    lanes = tuple((_gpu_lanes if recorded.has_gpu else _operator_lanes)(recorded.rows, steps))
    inside = [item.dur for lane in lanes for item in lane.items]
    outside = len(recorded.rows) - len(inside), sum(row.dur for row in recorded.rows) - sum(inside)
    selection = Selection(recorded, steps, lanes, outside)
    if region == TRACE and recorded.has_gpu and selection.span_ns != recorded.span_ns:
        raise EngineError(
            f"{recorded.info.path}: the work and gaps take {selection.span_ns} ns, the devices {recorded.span_ns} ns"
        )
    return selection


def _gpu_lanes(rows: Sequence[RecordedWork], steps: Sequence[KernelStep]) -> Iterator[Lane]:
    """Yield the sub-track of each device; with steps one per step, whose first gap reaches back to earlier work."""
    devices = []
    for name, group in groupby(rows, key=lambda row: row.lane):
        # By start and end, as `_timed` takes them: else two that start together are in one order here, another there.
        ordered = sorted(group, key=lambda row: (row.ts, row.dur))
        items = tuple(_timed(ordered, None))
        ends = list(accumulate((row.ts + row.dur for row in ordered), max))  # of all work up to and with each row
        if not steps:
            yield Lane(name, None, items, 0, ends[-1] - ordered[0].ts)
        by_step: dict[int | None, list[int]] = {}
        for index, step_id in enumerate(_step_ids(ordered)):
            by_step.setdefault(step_id, []).append(index)
        devices.append((name, items, ends, by_step))
    for step in steps:
        for name, items, ends, by_step in devices:
            if indices := by_step.get(step.id):
                # From the end of the work before each run of neighbours to its own end.
                firsts = [index for index, before in zip(indices, [-2, *indices], strict=False) if index != before + 1]
                lasts = [index for index, after in zip(indices, [*indices[1:], -2], strict=True) if index != after - 1]
                starts = (ends[index - 1] if index else items[0].ts for index in firsts)
                span_ns = sum(ends[index] for index in lasts) - sum(starts)
                yield Lane(name, step.kind, tuple(items[index] for index in indices), 0, span_ns, step.id)


def _step_ids(rows: Sequence[RecordedWork]) -> list[int | None]:
    """Return the step of each row of a device; work whose call is not recorded is in the step that encloses it."""
    step_ids = [row.step_id for row in rows]
    last: int | None = None  # index of the last row whose call is recorded
    for index, row in enumerate(rows):
        if not row.known:
            continue
        if last is not None and rows[last].step_id == row.step_id:
            step_ids[last + 1 : index] = [row.step_id] * (index - last - 1)
        last = index
    return step_ids


def _operator_lanes(rows: Sequence[RecordedWork], steps: Sequence[KernelStep]) -> Iterator[Lane]:
    """Yield the sub-track of each process; with steps one per step, from its start to its end."""
    by_step: dict[int | None, dict[str, list[RecordedWork]]] = {}
    for row in rows:
        by_step.setdefault(row.step_id if steps else None, {}).setdefault(row.lane, []).append(row)
    for step in steps:
        end = step.ts + step.dur
        for name, inside in by_step.get(step.id, {"": []}).items():
            items = tuple(_timed(inside, (step.ts, end)))
            last = max((min(row.ts + row.dur, end) for row in inside), default=step.ts)
            yield Lane(name, step.kind, items, end - last, step.dur, step.id, end)
    if not steps:
        for name, ordered in by_step[None].items():
            span_ns = max(row.ts + row.dur for row in ordered) - ordered[0].ts
            yield Lane(name, None, tuple(_timed(ordered, None)), 0, span_ns)


def _timed(rows: Sequence[RecordedWork], within: tuple[int, int] | None) -> Iterator[RecordedWork]:
    """Yield each row of a sub-track with the time that it adds, within the bounds if there are any."""
    starts, ends, index = _pieces(rows)
    if within is not None:
        starts, ends = np.minimum(starts, within[1]), np.minimum(ends, within[1])
    # The end of all before each.
    busy_ns = np.maximum.accumulate(np.append(starts[:1] if within is None else within[0], ends))[:-1]
    own_ns, gap_ns = (np.zeros(len(rows), dtype=np.int64) for _ in range(2))
    np.add.at(own_ns, index, np.maximum(0, ends - np.maximum(starts, busy_ns)))
    np.add.at(gap_ns, index, np.maximum(0, starts - busy_ns))
    times = zip(rows, own_ns.tolist(), gap_ns.tolist(), strict=True)
    return (row._replace(own_ns=alone_ns, gap_ns=gap) for row, alone_ns, gap in times)


def _pieces(rows: Sequence[RecordedWork]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return start, end and row of running work, in order: GPU work, and of operators the innermost of their track."""
    tracks, starts, ends = np.array([(row.track_id, row.ts, row.ts + row.dur) for row in rows]).reshape(-1, 3).T
    index = np.arange(len(rows))
    if len(rows) and tracks[0] != -1:
        nesting = Nesting(tracks, starts, ends, index)
        segments = nesting.segments
        owners = nesting.names[segments.owners]
        # Of an operator that calls another at its start nothing runs then, but the gap before is its own.
        idle = np.setdiff1d(index, owners[segments.starts == starts[owners]])
        starts, ends = np.append(segments.starts, starts[idle]), np.append(segments.ends, starts[idle])
        index = np.append(owners, idle)
    order = np.lexsort((index, ends, starts))
    return starts[order], ends[order], index[order]
