"""What to keep of a trace: each event belongs to the time at which it starts, GPU work to that of its call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from molprof.analysis.trim.scan import Scan

Array = np.ndarray


@dataclass(frozen=True)
class Categories:
    """The wanted categories: those named, by default all, without those left out."""

    only: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()

    def wants(self, category: str | int | None) -> bool:
        name = str(category)
        return (not self.only or name in self.only) and name not in self.without


@dataclass(frozen=True)
class Stretch:
    """The time that is kept, in ns as in the file."""

    start_ns: int
    end_ns: int  # not in it
    phases: tuple[Array, Array] | None  # starts and ends of the phases that are kept, sorted and disjoint; None: all

    def in_time(self, starts_ns: Array) -> Array:
        """Which events start in it, in whatever phase."""
        return np.asarray((starts_ns >= self.start_ns) & (starts_ns < self.end_ns))

    def holds(self, starts_ns: Array) -> Array:
        """Which events start in it, and in a phase that is kept."""
        inside = self.in_time(starts_ns)
        if self.phases is None:
            return inside
        begins, ends = self.phases
        place = np.searchsorted(begins, starts_ns, side="right") - 1
        return np.asarray(inside & (place >= 0) & (starts_ns < ends[place]))


@dataclass(frozen=True)
class Plan:
    """What is kept. All arrays are sorted."""

    stretch: Stretch
    categories: Categories
    linked: Array  # correlations of GPU work whose call is recorded
    started: Array  # correlations of calls that are kept
    work_start_ns: int  # first start of GPU work that is kept
    work_end_ns: int  # last end of it
    flows: Array  # keys of flows all of whose ends are kept

    def keeps_work(self, correlations: Array, starts_ns: Array) -> Array:
        """Which GPU work is kept: by its call where that is recorded, else by its own start.

        correlations: int64; -1 for work that has none.
        """
        return np.where(
            _among(correlations, self.linked), _among(correlations, self.started), self.stretch.holds(starts_ns)
        )

    def keeps_flows(self, keys: Array) -> Array:
        return _among(keys, self.flows)


def make_plan(found: Scan, stretch: Stretch, categories: Categories) -> Plan:
    calls, work, flows = found.table("calls"), found.table("work"), found.table("flows")
    in_time = stretch.holds(calls[:, 1])
    linked = np.intersect1d(calls[:, 0], work[:, 0])
    started = np.unique(calls[in_time, 0])
    kept_work = np.where(_among(work[:, 0], linked), _among(work[:, 0], started), stretch.holds(work[:, 1]))
    wanted = np.array([categories.wants(name) for name in found.categories], dtype=np.bool_)
    # A flow from a call to what it started has both ends where both are kept; others bind operators.
    both = np.intersect1d(
        calls[in_time & wanted[calls[:, 3]], 0] if len(calls) else calls[:, 0],
        work[kept_work & wanted[work[:, 3]], 0] if len(work) else work[:, 0],
    )
    operators = stretch.holds(flows[:, 1]) & categories.wants("cpu_op")
    remains = np.where(flows[:, 2] >= 0, _among(flows[:, 2], both), operators)
    broken = np.unique(flows[~remains, 0])
    return Plan(
        stretch=stretch,
        categories=categories,
        linked=linked,
        started=started,
        work_start_ns=int(work[kept_work, 1].min(initial=stretch.end_ns)),
        work_end_ns=int(work[kept_work, 2].max(initial=stretch.start_ns)),
        flows=np.setdiff1d(flows[:, 0], broken),
    )


def _among(values: Array, sorted_values: Array) -> Array:
    """Which values are among others, which are sorted."""
    if not len(sorted_values):
        return np.zeros(len(values), dtype=np.bool_)
    place = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    return np.asarray(sorted_values[place] == values)
