"""What a certificate holds: for each group of figures whether the trace can bear it, and why not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from msgspec import Struct, field

from molprof.analysis.figures.counts import Counts, DeviceTime
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query

Verdict = Literal["exact", "bounded", "not_to_be_had"]
Group = Literal[
    "gpu_work", "gpu_time", "gpu_idle", "launches", "links", "graphs", "steps", "host_time", "allocations"
]  # fmt: skip
# Groups of figures, in the order of display: what people call each.
TITLES: Mapping[Group, str] = {
    "gpu_work": "GPU work",
    "gpu_time": "GPU time",
    "gpu_idle": "GPU idle time",
    "launches": "launches",
    "links": "launch to work",
    "graphs": "graphs",
    "steps": "steps",
    "host_time": "host time",
    "allocations": "allocations",
}
ALL: tuple[Group, ...] = tuple(TITLES)
Evidence = dict[str, int | float | str | None]  # the suffix is the unit
_WORST: tuple[Verdict, ...] = ("not_to_be_had", "bounded", "exact")


class Bound(Struct, frozen=True):
    """A figure as reported, and what its true value may be; None: no limit is known. The suffix is the unit."""

    figure: str  # path in the report's JSON where it has one, such as counts.kernels
    # Counts stay integers when a report is read again.
    low: int | float | None
    value: int | float
    high: int | float | None

    @property
    def below(self) -> float | None:
        """By how much the truth may be less."""
        return None if self.low is None else self.value - self.low

    @property
    def above(self) -> float | None:
        """By how much the truth may be more."""
        return None if self.high is None else self.high - self.value

    @property
    def off_ratio(self) -> float:
        """By how much of the reported figure the truth may differ from it; infinite without a limit."""
        if self.below is None or self.above is None:
            return math.inf
        most = max(self.below, self.above)
        return most / abs(self.value) if self.value else math.inf if most else 0.0


class Doubt(Struct, frozen=True):
    """Why figures of one group are not exact."""

    group: Group
    verdict: Verdict  # never exact
    reason: str
    bounds: tuple[Bound, ...] = ()
    evidence: Evidence = field(default_factory=dict)
    check: str = ""  # id of the check that found it
    query: str = ""  # argument of `molprof query` that shows the evidence: name of a module
    sql: str = ""  # what the check asked


class Certified(Struct, frozen=True):
    """The verdict on one group. Of a group without doubts that the trace lacks, not_to_be_had."""

    group: Group
    verdict: Verdict
    reason: str | None  # None: exact
    bounds: tuple[Bound, ...]
    doubts: tuple[Doubt, ...]

    @property
    def title(self) -> str:
        return TITLES[self.group]

    @property
    def off_ratio(self) -> float:
        """By how much a figure of the group may be off, as a ratio of it: the largest; infinite where none is known."""
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
        return tuple(doubt for item in self.groups for doubt in item.doubts)


class Facts(Struct, frozen=True):
    """What checks set their bounds against: counts and times of the whole trace, as the report has them."""

    counts: Counts
    devices: Mapping[str, DeviceTime]  # by device number as text
    steps: int
    step_kernels: int
    recorded: frozenset[Group]  # groups of which the trace holds anything

    def among(self, *groups: Group) -> tuple[Group, ...]:
        """Those of the groups that the trace holds."""
        return tuple(group for group in groups if group in self.recorded)

    def count(self, name: str, less: int = 0, more: int | None = 0) -> Bound:
        """The count `name`, of which `less` may be too many and `more` missing; None: no limit is known."""
        value: int = getattr(self.counts, name)
        return Bound(f"counts.{name}", value - less, value, None if more is None else value + more)

    def per_step(self, more: int | None) -> Bound:
        """Kernels per step, where steps may have up to `more` kernels; None: no limit is known."""
        mean = self.step_kernels / self.steps
        high = None if more is None else (self.step_kernels + more) / self.steps
        return Bound("steps.kernels_per_step", mean, mean, high)


class Check(Struct, frozen=True):
    """What can make figures uncertain, and how it is found: `find` yields doubts."""

    id: str
    title: str
    queries: tuple[Query, ...]  # the first is the evidence; without those that depend on the trace
    find: Callable[[TraceProcessor, TraceInfo, Facts], Iterator[Doubt]]
    asks: bool = True  # `find` asks them; else the reader knows what they show


def lost(groups: Iterable[Group], reason: str, evidence: Evidence) -> Iterator[Doubt]:
    """No figure of these groups is to be had."""
    return (Doubt(group, "not_to_be_had", reason, (), evidence) for group in groups)


def worst(verdicts: Iterator[Verdict]) -> Verdict:
    """The worst of them; exact if there are none."""
    found = set(verdicts)
    return next((verdict for verdict in _WORST if verdict in found), "exact")


def combined(bounds: Iterator[Bound]) -> tuple[Bound, ...]:
    """One bound for each figure: what several doubts take away or add may all be true at once."""
    found: dict[str, Bound] = {}
    for bound in bounds:
        known = found.get(bound.figure)
        if known is None:
            found[bound.figure] = bound
            continue
        low = None if known.low is None or bound.below is None else known.low - bound.below
        high = None if known.high is None or bound.above is None else known.high + bound.above
        found[bound.figure] = Bound(bound.figure, low, bound.value, high)
    return tuple(found.values())
