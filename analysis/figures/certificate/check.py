"""Checks of the certificate: how they are declared, and what they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from molprof.analysis.figures.model import Bound, Counts, DeviceTime, Doubt, Evidence, Group, SumCheck
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_dicts


@dataclass(frozen=True)
class CheckedTrace:
    """Input of checks; they compare bounds with counts and times of the whole trace, as the report has them."""

    engine: TraceProcessor
    info: TraceInfo
    counts: Counts
    devices: Mapping[str, DeviceTime]  # by device number as text
    steps: int
    step_kernels: int
    sums: tuple[SumCheck, ...]  # of the report: what must add up
    recorded: frozenset[Group]  # groups of which the trace holds anything
    recorded_ns: int  # length of the recorded span, at least that of a device

    def rows_at(self, query: Query, position: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of one position, without their `position`."""
        return (row for row in query_dicts(self.engine, query) if row.pop("position") == position)

    def among(self, *groups: Group) -> tuple[Group, ...]:
        """Return those of the groups that the trace holds."""
        return tuple(group for group in groups if group in self.recorded)

    def count(self, name: str, less: int = 0, more: int | None = 0) -> Bound:
        """Return the count `name`, of which up to `less` may be wrong and `more` missing; None: no limit is known."""
        value: int = getattr(self.counts, name)
        return Bound(f"counts.{name}", value - less, value, None if more is None else value + more)

    def per_step(self, more: int | None) -> Bound:
        """Return kernels per step, where steps may have up to `more` kernels; None: no limit is known."""
        mean = self.step_kernels / self.steps
        high = None if more is None else (self.step_kernels + more) / self.steps
        return Bound("steps.kernels_per_step", mean, mean, high)


Find = Callable[[CheckedTrace], Iterator[Doubt]]


@dataclass(frozen=True)
class CertificateCheck:
    """A reason why figures may be uncertain, and the function that finds it: `find` yields doubts."""

    id: str
    title: str  # what is so where it passes
    groups: tuple[Group, ...]  # that it can doubt
    query: Query  # the evidence
    find: Find


CHECKS: list[CertificateCheck] = []  # in the order in which they are declared


def bounded(group: Group, reason: str, evidence: Evidence, *bounds: Bound) -> Doubt:
    """Return a doubt that bounds the figures of a group."""
    return Doubt(group, "bounded", reason, bounds, evidence)


def lost(groups: Iterable[Group], reason: str, evidence: Evidence) -> Iterator[Doubt]:
    """Return doubts that no figure of these groups can be known."""
    return (Doubt(group, "not_to_be_had", reason, (), evidence) for group in groups)


def check(id_: str, title: str, groups: tuple[Group, ...], query: Query) -> Callable[[Find], Find]:
    """Declare a check; it decorates the function that finds its doubts.

    The docstring of that function names a trace or a report in which the check finds something.
    """

    def declared(find: Find) -> Find:
        CHECKS.append(CertificateCheck(id_, title, groups, query, find))
        return find

    return declared
