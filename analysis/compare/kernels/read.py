"""What ran in a trace, in order: kernels, copies and sets with their origin, or operators of a trace without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from molprof.analysis.figures.shapes import input_shapes, shapes_text
from molprof.analysis.frame import read_frame
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_row, query_rows
from molprof.common.errors import TraceError
from molprof.common.values import bytes_text

_OF_BOTH = "ts dur name module layer source phase step_id"
_TYPICAL = Query("typical_step", "SELECT id FROM molprof_typical_step")
# Sizes of inputs, which take several times as long to read, are read from files up to this.
_SIZES_BYTES = 50_000_000
# Apart from the items.
_SPAN = Query(
    "devices", "SELECT IFNULL(SUM(span_ns), 0) AS span_ns, IFNULL(SUM(busy_ns), 0) AS busy_ns FROM molprof_device"
)


class Row(NamedTuple):
    """A kernel, copy, set or operator, as the engine has it."""

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
    track_id: int  # -1: GPU work
    operator: str | None
    known: bool  # its call is recorded
    shape: str | None  # sizes of the operator's inputs


class Step(NamedTuple):
    id: int
    ts: int
    dur: int
    kind: str | None
    name: str
    typical: bool


class Recorded(Struct, frozen=True):
    """A trace's rows by lane and start, and its steps by start."""

    info: TraceInfo
    rows: tuple[Row, ...]
    steps: tuple[Step, ...]
    device_ns: tuple[int, int]  # span and busy time of all devices

    @property
    def has_gpu(self) -> bool:
        """The rows are GPU work."""
        return bool(self.rows) and self.rows[0].track_id == -1


def size_notes(path: Path) -> tuple[str, ...]:
    """Why the sizes of inputs are not read from a file; nothing if they are."""
    if path.is_file() and path.stat().st_size <= _SIZES_BYTES:
        return ()
    return (f"no sizes of inputs are read from a file over {bytes_text(_SIZES_BYTES)}",)


def read_recorded(engine: TraceProcessor, info: TraceInfo) -> Recorded:
    """What ran in a loaded trace. Raises TraceError where neither GPU work nor operators are recorded."""
    shapes = {operator: shapes_text(sizes) for operator, sizes in input_shapes(engine).items()}
    columns: list[list[Any]]
    # Of a trace without GPU work: one lane for each process.
    if len(found := read_frame(engine, "work", f"{_OF_BOTH} class device call_id operator operator_id")):
        operators, known = found["operator_id"].tolist(), found.known("call_id").tolist()
        columns = [found["class"].tolist(), found["device"].tolist(), [-1] * len(found), found["operator"].tolist()]
    else:
        found = read_frame(engine, "operators", f"{_OF_BOTH} id upid track_id")
        operators, known = found["id"].tolist(), [True] * len(found)
        lanes = [str(upid) for upid in found["upid"].tolist()]
        columns = [[None] * len(found), lanes, found["track_id"].tolist(), found["name"].tolist()]
    every = zip(found.select(*_OF_BOTH.split()).rows(), *columns, known, map(shapes.get, operators), strict=True)
    rows = tuple(sorted((Row(*row, *others) for row, *others in every), key=lambda row: row.lane))
    if not rows:
        raise TraceError(f"{info.path} records neither GPU work nor operators", "record it with torch.profiler")
    span = query_row(engine, _SPAN)
    typical = {number for (number,) in query_rows(engine, _TYPICAL)[1]}
    steps = read_frame(engine, "steps", "id ts dur kind name").rows()
    return Recorded(
        info, rows, tuple(Step(*(*step, step[0] in typical)) for step in steps), (span["span_ns"], span["busy_ns"])
    )
