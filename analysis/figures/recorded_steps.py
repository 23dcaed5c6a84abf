"""The steps that a trace records, with their numbers."""

from __future__ import annotations

from dataclasses import dataclass

from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows

_STEPS = Query(
    "steps",
    "SELECT step.ts, step.dur, IFNULL(step.number, ROW_NUMBER() OVER (ORDER BY step.ts, step.id) - 1) AS number,"
    " own.batch FROM molprof_any_step AS step LEFT JOIN molprof_step AS own USING (id) ORDER BY step.ts, step.id",
)


@dataclass(frozen=True)
class RecordedStep:
    """A step of any trace: host time from the earliest event, its number, and its batch if molprof captured it."""

    start_ns: int
    dur_ns: int
    number: int
    batch: int | None

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.dur_ns


def read_recorded_steps(engine: TraceProcessor) -> list[RecordedStep]:
    """All steps in order of start; the package must be registered."""
    return [RecordedStep(*row) for row in query_rows(engine, _STEPS)[1]]
