"""What ran in a trace, in order: kernels, copies and sets with their origin, or operators of a trace without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from molprof.analysis.figures.sequence.shapes import input_shapes, shapes_text
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_row, query_rows
from molprof.common.errors import TraceError
from molprof.common.values import bytes_text

_WORK = Query(
    "origin",
    """
SELECT id, ts, dur, name, category, class, device AS lane, -1 AS track_id,
  operator, IFNULL(operator_id, -1) AS operator_id, module, layer, source, phase, step_id, call_id IS NOT NULL AS known
FROM molprof_origin
ORDER BY lane, ts, id
""",
)
# Of a trace without GPU work: one lane for each process.
_OPERATORS = Query(
    "origin",
    """
SELECT id, ts, dur, name, 'cpu_op' AS category, NULL AS class, CAST(upid AS TEXT) AS lane, track_id,
  name AS operator, id AS operator_id, module, layer, source, phase, step_id, 1 AS known
FROM molprof_operator_origin
ORDER BY lane, ts, id
""",
)
_STEPS = Query(
    "typical_step",
    """
SELECT step.id, step.ts, step.dur, step.kind, step.name, typical.id IS NOT NULL AS typical
FROM molprof_any_step AS step
LEFT JOIN molprof_typical_step AS typical USING (id)
ORDER BY step.ts, step.id
""",
)
# Sizes of inputs, which take several times as long to read, are read from files up to this.
_SIZES_BYTES = 50_000_000
# Apart from the items.
_SPAN = Query(
    "devices", "SELECT IFNULL(SUM(span_ns), 0) AS span_ns, IFNULL(SUM(busy_ns), 0) AS busy_ns FROM molprof_device"
)


class Row(NamedTuple):
    """A kernel, copy, set or operator, as the engine has it."""

    id: int
    ts: int
    dur: int
    name: str
    category: str
    cls: str | None
    lane: str
    track_id: int  # -1: GPU work
    operator: str | None
    operator_id: int  # -1: none
    module: str | None
    layer: int | None
    source: str | None
    phase: str | None
    step_id: int | None
    known: int
    shape: str | None = None  # sizes of the operator's inputs


class Step(NamedTuple):
    id: int
    ts: int
    dur: int
    kind: str | None
    name: str
    typical: int


class Recorded(Struct, frozen=True):
    """A trace's rows by lane and start, and its steps by start."""

    info: TraceInfo
    rows: tuple[Row, ...]
    steps: tuple[Step, ...]
    device_ns: tuple[int, int]  # span and busy time of all devices

    @property
    def has_gpu(self) -> bool:
        """The rows are GPU work."""
        return bool(self.rows) and self.rows[0].category != "cpu_op"


def size_notes(path: Path) -> tuple[str, ...]:
    """Why the sizes of inputs are not read from a file; nothing if they are."""
    if path.is_file() and path.stat().st_size <= _SIZES_BYTES:
        return ()
    return (f"no sizes of inputs are read from a file over {bytes_text(_SIZES_BYTES)}",)


def read_recorded(engine: TraceProcessor, info: TraceInfo) -> Recorded:
    """What ran in a loaded trace. Raises TraceError where neither GPU work nor operators are recorded."""
    shapes = {operator: shapes_text(sizes) for operator, sizes in input_shapes(engine).items()}
    found = (Row(*row) for row in query_rows(engine, _WORK)[1] or query_rows(engine, _OPERATORS)[1])
    rows = tuple(row._replace(shape=shapes.get(row.operator_id)) for row in found)
    if not rows:
        raise TraceError(f"{info.path} records neither GPU work nor operators", "record it with torch.profiler")
    span = query_row(engine, _SPAN)
    return Recorded(
        info, rows, tuple(Step(*row) for row in query_rows(engine, _STEPS)[1]), (span["span_ns"], span["busy_ns"])
    )
