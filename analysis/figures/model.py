"""What a report holds, and its JSON: `report --format json` is `Report.to_json()`.

None means "not recorded" everywhere: the trace does not hold it, so it is not 0.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct, to_builtins

from molprof.analysis.figures.certificate.model import Certificate, Certified, Group
from molprof.analysis.figures.counts import Counts, DeviceTime
from molprof.analysis.figures.run_model import Run
from molprof.analysis.figures.timeline import TypicalStep
from molprof.common.values import Value

SCHEMA = 1
STACK_CATEGORY = "python_function"
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
# The causes of queries/idle_causes.sql, as people read them.
IDLE_CAUSES = {
    "cpu_waited": "CPU in a host sync",
    "cpu_busy": "CPU queued nothing",
    "short": "pauses below 5 µs",
    "not_recorded": "call not recorded",
    "other_stream": "waiting for another stream",
    "other": "queued work not started",
}


class TraceFigures(Struct, frozen=True):
    """The file, and what was read of it."""

    path: str
    bytes: int
    events_by_category: dict[str, int]  # events with a duration, Python stacks too; 'None' for those without category
    lost_events: int  # events that the trace processor lacks
    lanes: int  # events that partly overlap another of their track
    complete: bool  # False for a damaged file, of which the part up to `problem` was read
    problem: str | None
    stacks: bool  # Python stacks were read too
    device_names: tuple[str, ...]
    trimmed: str | None = None
    whole_steps: bool = True  # False where a step lacks events, so that figures of steps and phases would be wrong

    @property
    def remarks(self) -> tuple[str, ...]:
        """What readers of the figures must know, one line each."""
        remarks: tuple[str, ...] = () if self.complete else (f"only the whole part was read: {self.problem}",)
        if self.trimmed is not None:
            lost = "" if self.whole_steps else "; parts of steps were left out, so that their figures are not recorded"
            remarks += (f"{self.path} was {self.trimmed}{lost}",)
        if not self.events_by_category:
            remarks += (f"{self.path} holds no events with a duration, so nothing was recorded",)
        return remarks

    @property
    def gpu_recorded(self) -> bool:
        """The trace holds GPU work or calls that launch it."""
        return any(category in self.events_by_category for category in GPU_CATEGORIES)


class Check(Struct, frozen=True):
    """A check: `left` = `right`, up to `tolerance_ratio` of `left`."""

    id: str
    text: str
    left: int
    right: int
    tolerance_ratio: float
    holds: bool


class Table(Struct, frozen=True):
    """Rows of one query. A column's suffix is its unit (_ns, _bytes, _ratio), else it is a count or text."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def to_json(self) -> list[dict[str, Value]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Gain(Struct, frozen=True):
    """What a fix can save, as shares from `low` to `high` of some time. Gains overlap."""

    low: float
    high: float
    of: str  # the time: unprofiled wall time, or the recorded span of a foreign trace
    bounded_by: str  # the time that a fix could save at most


class Finding(Struct, frozen=True, kw_only=True):
    """Something worth doing about a trace."""

    id: str
    title: str
    evidence: str  # what the trace shows, with figures
    gain: Gain | None = None  # None: not bounded
    fix: str
    explanation: str  # why it costs time
    query: str  # argument of `molprof query` that shows the evidence: name of a module, or SQL
    figures: dict[str, int | float]  # of the evidence; the suffix is the unit (_ns, _ratio), else a count or mean
    uncertain: str | None = None  # why figures that it rests on are not exact; None where they are

    @property
    def gain_ratio(self) -> float | None:
        """The largest share of the time that the fix can save."""
        return None if self.gain is None else self.gain.high

    def to_json(self) -> dict[str, Any]:
        """Its fields, and `gain_ratio`: the `high` of its gain."""
        return {**to_builtins(self), "gain_ratio": self.gain_ratio}


class Given(Struct, frozen=True):
    """What a user says of a foreign trace, which does not record it."""

    tokens: int | None = None  # generated tokens
    molecules: int | None = None


class Report(Struct, frozen=True):
    """All figures of one trace. A foreign trace has no `run`, one without annotated steps no `typical_step`."""

    schema: int
    trace: TraceFigures
    counts: Counts
    devices: dict[str, DeviceTime]
    run: Run | None
    tables: tuple[Table, ...]
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    typical_step: TypicalStep | None = None
    certificate: Certificate | None = None  # None in a stored report of an older molprof
    given: Given = Given()

    @property
    def tokens(self) -> int | None:
        """Generated tokens of the run, or as many as the user says."""
        return self.given.tokens if self.run is None else self.run.generated_tokens

    @property
    def molecules(self) -> int | None:
        """Molecules of the run, or as many as the user says."""
        return self.given.molecules if self.run is None else self.run.molecules

    def doubts_on(self, groups: Collection[Group]) -> tuple[Certified, ...]:
        """Those of the groups that a check of the certificate doubts."""
        uncertain = () if self.certificate is None else self.certificate.uncertain
        return tuple(item for item in uncertain if item.group in groups)

    def table(self, name: str) -> Table:
        """The table of that name; without rows where a stored report lacks it."""
        return next((table for table in self.tables if table.name == name), Table(name, name, (), ()))

    def to_json(self) -> dict[str, Any]:
        fields = {
            **to_builtins(self),
            "tables": {table.name: table.to_json() for table in self.tables},
            "findings": [finding.to_json() for finding in self.findings],
        }
        return {key: plain(value) for key, value in fields.items()}


def plain(value: Any) -> Any:
    """Tuples as lists, all the way down."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
