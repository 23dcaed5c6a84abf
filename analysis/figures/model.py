"""The `Report` and its parts, and its JSON: `report --format json` is `Report.to_json()`.

None means "not recorded" everywhere: the trace does not hold it, so it is not 0.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field, json, to_builtins

from molprof.analysis.figures.bottleneck import Bottleneck
from molprof.analysis.figures.run_model import Run
from molprof.analysis.figures.step_model import TypicalStep
from molprof.analysis.figures.stood import ServedMasks
from molprof.analysis.reader import long_names_text
from molprof.common.notebook import as_text, in_frame, named_lines, named_rows
from molprof.common.values import Value, percent_text, plain

SCHEMA = 1
STACK_CATEGORY = "python_function"
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
# The causes of queries/idle_causes.sql, as people read them.
IDLE_CAUSES = {
    "cpu_masks": "CPU in masks",
    "cpu_data": "CPU in the data loader",
    "cpu_waited": "CPU in a host sync",
    "cpu_calls": "CPU in other GPU calls",
    "cpu_compiled": "CPU in Python of compiled code",
    "cpu_operators": "CPU in operators",
    "cpu_outside": "CPU outside operators",
    "launching": "launch under way",
    "short": "pauses below 5 µs",
    "not_recorded": "not recorded",
    "other_stream": "waiting for another stream",
    "other": "queued work not started",
}
Verdict = Literal["exact", "bounded", "not_to_be_had"]
Group = Literal["gpu_work", "gpu_time", "gpu_idle", "launches", "links", "graphs", "steps", "host_time", "allocations"]
# Groups of figures, in the order of display: what people call each.
TITLES: Mapping[Group, str] = {
    "gpu_work": "GPU work", "gpu_time": "GPU time", "gpu_idle": "GPU idle time", "launches": "launches",
    "links": "launch to work", "graphs": "graphs", "steps": "steps", "host_time": "host time",
    "allocations": "allocations",
}  # fmt: skip
ALL: tuple[Group, ...] = tuple(TITLES)
Evidence = dict[str, int | float | str | None]  # the suffix is the unit
_WORST: tuple[Verdict, ...] = ("not_to_be_had", "bounded", "exact")


class TraceFigures(Struct, frozen=True):
    """The file, and counts of what was read from it."""

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
    cut_out: bool = False  # of a longer recording: what ran before its first and after its last event is not known
    read_as: dict[str, dict[str, int]] = {}  # of categories that SQL reads under others: their events by those
    software: dict[str, str] = {}  # versions that the file tells, by name; for comparisons, not in the JSON
    environment: dict[str, str] = {}  # hardware and software of a captured run, by name
    program: dict[str, str] = {}  # how the program ran, as far as the file tells, by name
    has_shapes: bool | None = None  # sizes of operators are recorded, as far as the file tells; not in the JSON
    capabilities: tuple[tuple[int, int], ...] = ()  # major and minor compute capability of devices; not in the JSON
    long_names: int = 0  # of which only the beginning, the length and a hash are read
    whole_steps: bool = True  # False where a step lacks events, so that figures of steps and phases would be wrong

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks that readers of the figures must know, one line each."""
        remarks: tuple[str, ...] = () if self.complete else (f"only the whole part was read: {self.problem}",)
        if self.trimmed is not None:
            lost = "" if self.whole_steps else "; parts of steps were left out, so that their figures are not recorded"
            remarks += (f"{self.path} was {self.trimmed}{lost}",)
        if self.long_names:
            remarks += (f"{self.path} has {long_names_text(self.long_names)}",)
        if not self.events_by_category:
            remarks += (f"{self.path} holds no events with a duration, so nothing was recorded",)
        return remarks

    @property
    def gpu_recorded(self) -> bool:
        """True if the trace holds GPU work or calls that launch it."""
        return any(self.events_read(category) for category in GPU_CATEGORIES)

    def events_read(self, category: str) -> int:
        """Return the number of the file's events that SQL reads under the category."""
        unaliased = self.events_by_category.get(category, 0)
        return unaliased + sum(read.get(category, 0) for read in self.read_as.values())


class MemoryOperation(Struct, frozen=True):
    """Copies or sets of one name, all together."""

    count: int
    time_ns: int
    bytes: int


class Counts(Struct, frozen=True):
    """Counts of the whole trace; 0 where it records none."""

    launches: int
    graph_launches: int
    kernels: int
    kernel_time_ns: int
    kernel_names: int
    memory_operations: dict[str, MemoryOperation]
    launches_without_gpu_work: int
    kernels_with_call: int
    kernels_without_call: int


class DeviceTime(Struct, frozen=True):
    """Times of a device from its first work to the end of its last: busy is the union of its work, idle the rest."""

    span_ns: int
    busy_ns: int
    idle_ns: int


class Bound(Struct, frozen=True):
    """A reported figure and the bounds of its true value; None: no limit is known. The suffix is the unit."""

    figure: str  # path in the report's JSON where it has one, such as counts.kernels
    # Counts stay integers when a report is read again.
    low: int | float | None
    value: int | float
    high: int | float | None

    @property
    def off_ratio(self) -> float:
        """The largest possible error as a ratio of the reported figure; infinite without a limit."""
        if self.low is None or self.high is None:
            return math.inf
        most = max(self.value - self.low, self.high - self.value)
        return most / abs(self.value) if self.value else math.inf if most else 0.0


class Doubt(Struct, frozen=True):
    """A reason why figures of one group are not exact."""

    group: Group
    verdict: Verdict  # never exact
    reason: str
    bounds: tuple[Bound, ...] = ()
    evidence: Evidence = field(default_factory=dict)
    check: str = ""  # id of the check that found it
    query: str = ""  # argument of `molprof query` that shows the evidence: name of a module
    sql: str = ""  # what the check asked


class Certified(Struct, frozen=True):
    """The verdict on one group: not_to_be_had for a group that the trace lacks."""

    group: Group
    verdict: Verdict
    reason: str | None  # None: exact
    bounds: tuple[Bound, ...]
    doubts: tuple[Doubt, ...]

    @property
    def title(self) -> str:
        """The title of the group."""
        return TITLES[self.group]

    @property
    def off_ratio(self) -> float:
        """The largest possible error of the group's figures as a ratio; infinite where none is known."""
        if self.verdict == "exact":
            return 0.0
        if self.verdict == "not_to_be_had" or any(not doubt.bounds for doubt in self.doubts):
            return math.inf
        return max(bound.off_ratio for bound in self.bounds)


class Certificate(Struct, frozen=True):
    """Verdicts on all groups of figures; `verdict` is the worst of those that a check doubts."""

    verdict: Verdict
    groups: tuple[Certified, ...]

    @property
    def uncertain(self) -> tuple[Certified, ...]:
        """Groups that a check doubts."""
        return tuple(item for item in self.groups if item.doubts)

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """The doubts of all groups."""
        return tuple(doubt for item in self.groups for doubt in item.doubts)


class SumCheck(Struct, frozen=True):
    """A sum that must hold: `left` = `right`, up to `tolerance_ratio` of `left`."""

    id: str
    text: str
    left: int
    right: int
    tolerance_ratio: float
    holds: bool
    groups: tuple[Group, ...] = ()  # of the certificate: their figures are in doubt where it does not hold


def agree(left: int, right: int, tolerance_ratio: float) -> bool:
    """Return True if both sides of a sum are equal, up to `tolerance_ratio` of the left one."""
    return abs(left - right) <= tolerance_ratio * abs(left)


class FigureTable(Struct, frozen=True):
    """Rows of one query. A column's suffix is its unit (_ns, _bytes, _ratio), else it is a count or text."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def to_json(self) -> list[dict[str, Value]]:
        """Return the rows as objects by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


# What gains are shares of: of a foreign trace, of a captured run.
RECORDED_SPAN, RUN_TIME = "recorded span", "unprofiled wall time"


class Gain(Struct, frozen=True):
    """The saving of a fix, as shares from `low` to `high` of some time. Gains overlap."""

    low: float
    high: float
    of: str  # RECORDED_SPAN or RUN_TIME
    bounded_by: str  # the time that a fix could save at most
    of_ns: int | None = None  # length of that time; None in a stored report of an older molprof


# A location with less of the time does not say where to begin.
_LEAST_PLACE = 0.02


def location_text(label: str | None, ratio: float) -> str:
    """Return the location with most of some time, and its share there; None without a recorded location."""
    share = f"{percent_text(ratio)} of it"
    if label is None:
        return f"no location recorded for {share}"
    if ratio < _LEAST_PLACE:
        return f"spread, at no location more than {share}"
    return f"{label} ({share})" if ratio >= 0.5 else f"spread, most in {label} ({share})"


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
    location: str | None = None  # function and line, module, operator or annotation; None: not recorded, or of all
    location_ratio: float | None = None  # share of its time that is there, or at no recorded location; None: of all
    certain: bool = True  # False: taken from names or shapes, not from what was recorded
    note: bool = False  # worth knowing, and nothing to do
    time_ratio: float | None = None  # of a note: what part of the time it is about; None: of no part
    warning: bool = False  # about all figures of the trace: it stands above the findings
    part_of: str | None = None  # id of the finding whose time holds the time of this one

    @property
    def location_text(self) -> str | None:
        """The location with most of its time, and the share; None for findings about the whole trace."""
        return self.location if self.location_ratio is None else location_text(self.location, self.location_ratio)

    @property
    def gain_text(self) -> str:
        """The saving of the fix as text, and whether it is certain; empty where there is nothing to say."""
        likely = "" if self.certain else "likely"
        if self.gain is None:
            return likely
        low, high = percent_text(self.gain.low), percent_text(self.gain.high)
        return (
            f"{'up to ' if not self.gain.low else f'{low} to ' if low != high else ''}{high}{likely and f', {likely}'}"
        )

    @property
    def headline(self) -> str:
        """Gain and title in one line."""
        return ": ".join(filter(None, (self.gain_text, self.title)))

    def __repr__(self) -> str:
        return f"<Finding {self.id}: {self.headline}>"

    def __str__(self) -> str:
        """Return all its text, for `print`."""
        return named_lines(self.headline, self._texts())

    def _repr_html_(self) -> str:
        return named_rows(self.headline, self._texts())

    def _texts(self) -> dict[str, str | None]:
        named = {"location": self.location_text, "evidence": self.evidence, "fix": self.fix, "why": self.explanation}
        return named | {"uncertain": self.uncertain, "more": f"molprof query {shlex.quote(self.query)} TRACE"}

    @property
    def gain_ratio(self) -> float | None:
        """The largest share of the time that the fix can save."""
        return None if self.gain is None else self.gain.high

    def to_json(self) -> dict[str, Any]:
        """Return its fields, and `gain_ratio`: the `high` of its gain; `warning` and `time_ratio` if present."""
        fields = {**to_builtins(self), "gain_ratio": self.gain_ratio}
        if not self.warning:
            del fields["warning"]
        if self.time_ratio is None:
            del fields["time_ratio"]
        return fields


class Findings(tuple[Finding, ...]):
    """Findings that a prompt and a notebook list one below the other."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "<no findings>"

    def _repr_html_(self) -> str:
        return "".join(item._repr_html_() for item in self) or "<p>no findings</p>"


class GivenCounts(Struct, frozen=True):
    """Numbers of tokens and molecules that a user states for a foreign trace, which does not record them."""

    tokens: int | None = None
    molecules: int | None = None


class ServedPass(Struct, frozen=True):
    """Figures by id of one pass of all requests to a server; None where there is too little for one."""

    figures: dict[str, int | float | None]


class ServedTimes(Struct, frozen=True):
    """Times at the client of the server that wrote the trace, measured by `molprof attach` without the profiler."""

    server: str
    version: str
    model: str
    run: str  # plain or constrained
    session: str
    concurrency: int | None
    rate: float | None
    passes: tuple[ServedPass, ...]
    requests: int = 0  # of a pass
    values: dict[str, int | float | None] = {}  # by id, the medians of the passes, or means of rounds
    invalid: tuple[str, ...] = ()  # why, of each answer of the first pass that is not valid and was not cut
    judged: int = 0  # answers of that pass which were judged and not cut
    masks: ServedMasks | None = None


class Report(Struct, frozen=True):
    """All figures of one trace. A foreign trace has no `run`, one without annotated steps no `typical_step`."""

    schema: int
    trace: TraceFigures
    counts: Counts
    devices: dict[str, DeviceTime]
    run: Run | None
    tables: tuple[FigureTable, ...]
    checks: tuple[SumCheck, ...]
    findings: tuple[Finding, ...]
    typical_step: TypicalStep | None = None
    certificate: Certificate | None = None  # None in a stored report of an older molprof
    given: GivenCounts = GivenCounts()
    served: ServedTimes | UnsetType = UNSET  # only of a server that molprof was attached to
    bottleneck: Bottleneck | None = None  # None where no time is recorded, and in a stored report of an older molprof

    def __repr__(self) -> str:
        return as_text(self, f"<Report of {self.trace.path}>")

    def _repr_html_(self) -> str | None:
        return in_frame(self)

    @property
    def tokens(self) -> int | None:
        """Generated tokens of the run, or the user's number; None where neither is known."""
        if self.run is None or not self.run.has_answers:
            return self.given.tokens
        return self.run.generated_tokens

    @property
    def molecules(self) -> int | None:
        """Molecules of the run, or the user's number."""
        return self.given.molecules if self.run is None else self.run.molecules

    def doubts_on(self, groups: Collection[Group]) -> tuple[Certified, ...]:
        """Return those of the groups that a check of the certificate doubts."""
        uncertain = () if self.certificate is None else self.certificate.uncertain
        return tuple(item for item in uncertain if item.group in groups)

    def table(self, name: str) -> FigureTable:
        """Return the table of that name; without rows where a stored report lacks it."""
        return next((table for table in self.tables if table.name == name), FigureTable(name, name, (), ()))

    def to_json(self) -> dict[str, Any]:
        """Return the report as it is written to JSON."""
        tables = {table.name: table.to_json() for table in self.tables}
        findings = [finding.to_json() for finding in self.findings]
        fields: dict[str, Any] = plain({**to_builtins(self), "tables": tables, "findings": findings})
        unread = [name for name in ("read_as", "long_names") if not fields["trace"][name]]
        for name in ("software", "has_shapes", "capabilities", *unread):
            del fields["trace"][name]
        return fields


def combined(bounds: Iterable[Bound]) -> tuple[Bound, ...]:
    """Return one bound for each figure, since all doubts may be true at once."""
    by_figure: dict[str, Bound] = {}
    for bound in bounds:
        earlier = by_figure.get(bound.figure)
        if earlier is not None:
            low = None if earlier.low is None or bound.low is None else earlier.low - (bound.value - bound.low)
            high = None if earlier.high is None or bound.high is None else earlier.high + (bound.high - bound.value)
            bound = Bound(bound.figure, low, bound.value, high)
        by_figure[bound.figure] = bound
    return tuple(by_figure.values())


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of the verdicts; exact if there are none."""
    return min(verdicts, key=_WORST.index, default="exact")


# Made at import, by one thread: two threads in which msgspec (0.22) inspects one type at once crash the process.
decode_report = json.Decoder(Report).decode
