"""What to keep of a trace, and the second pass, which writes it as it is in the file.

Each event belongs to the time at which it starts, GPU work to that of its call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec
import numpy as np

from molprof.analysis.reader.events import FLOW_PHASES
from molprof.analysis.reader.part import Part
from molprof.analysis.trim.scan import ANNOTATION, GPU_CATEGORIES, Array, Block, Scan, flow_key

# Phases of events that start and end at a moment of their own.
_TIMED = frozenset("XiIRC")


@dataclass(frozen=True)
class Wish:
    """What to keep; by default all."""

    steps: tuple[int, int] | None = None  # first and last number
    batch: int | None = None  # of the steps; None: the first that is recorded
    phases: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()  # the only ones
    without: tuple[str, ...] = ()  # categories left out
    start_ns: int | None = None  # from the earliest event of the trace
    end_ns: int | None = None  # not in it

    def wants(self, category: str | int | None) -> bool:
        """Whether events of the category are among those to keep."""
        return str(category) not in self.without and (not self.categories or str(category) in self.categories)


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
    wish: Wish
    linked: Array  # correlations of GPU work whose call is recorded
    started: Array  # correlations of calls that are kept
    work_start_ns: int  # first start of GPU work that is kept
    work_end_ns: int  # last end of it
    flows: Array  # keys of flows all of whose ends are kept

    def keeps_work(self, numbers: Array, starts_ns: Array) -> Array:
        """Which GPU work is kept: by its call where that is recorded, else by its own start; -1 for no correlation."""
        return np.where(_among(numbers, self.linked), _among(numbers, self.started), self.stretch.holds(starts_ns))


def make_plan(found: Scan, stretch: Stretch, wish: Wish) -> Plan:
    calls, work, flows = found.table("calls"), found.table("work"), found.table("flows")
    in_time = stretch.holds(calls[:, 1])
    linked = np.intersect1d(calls[:, 0], work[:, 0])
    started = np.unique(calls[in_time, 0])
    kept_work = np.where(_among(work[:, 0], linked), _among(work[:, 0], started), stretch.holds(work[:, 1]))
    wanted = np.array([wish.wants(name) for name in found.categories], dtype=np.bool_)
    # A flow from a call to what it started has both ends where both are kept; others bind operators.
    both = np.intersect1d(
        calls[in_time & wanted[calls[:, 3]], 0] if len(calls) else calls[:, 0],
        work[kept_work & wanted[work[:, 3]], 0] if len(work) else work[:, 0],
    )
    operators = stretch.holds(flows[:, 1]) & wish.wants("cpu_op")
    remains = np.where(flows[:, 2] >= 0, _among(flows[:, 2], both), operators)
    broken = np.unique(flows[~remains, 0])
    return Plan(
        stretch=stretch,
        wish=wish,
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


class Filter:
    """Writes the events that the plan keeps, block by block."""

    def __init__(self, plan: Plan, out: BinaryIO) -> None:
        self.kept = 0  # complete events written
        self.unplaced = 0  # events with a separate begin and end, all of which are kept
        self._plan = plan
        self._out = out
        self._before = b'{"traceEvents": [\n'

    def read(self, text: bytes) -> Part:
        """Takes a block of events, a JSON array."""
        block = Block(text)
        kept = self._kept(block)
        if kept:
            self._out.write(self._before + b",\n".join(kept))
            self._before = b",\n"
        return Part(events=len(block.events))

    def close(self, keys: Mapping[str, Any]) -> None:
        """Ends the events and writes `keys` behind them."""
        if self._before != b",\n":  # nothing was kept
            self._out.write(self._before)
        self._out.write(b"\n]")
        for key, value in keys.items():
            self._out.write(f",\n{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}".encode())
        self._out.write(b"\n}\n")

    def _kept(self, block: Block) -> list[bytes]:
        plan = self._plan
        events = block.events
        starts, ends = block.starts, block.ends
        numbers = np.array([-1 if event.correlation is None else event.correlation for event in events], dtype=np.int64)
        in_time, in_phases = plan.stretch.in_time(starts), plan.stretch.holds(starts)
        work = plan.keeps_work(numbers, starts)
        kept: list[bytes] = []
        for place, event in enumerate(events):
            raw = bytes(block.texts[place])
            if event.ph in FLOW_PHASES:
                keep = bool(_among(np.array([flow_key(event)]), plan.flows)[0])
            elif event.ph not in _TIMED:
                keep = True
                self.unplaced += event.ph != "M"
            elif event.cat == "molprof.sequence":
                raw, keep = self._shortened(raw, int(starts[place]), int(ends[place])), True
            elif event.cat == "molprof.token" or (event.cat == ANNOTATION and str(event.name).startswith("molprof.")):
                keep = bool(in_time[place])
            elif not plan.wish.wants(event.cat):
                keep = False
            elif event.cat in GPU_CATEGORIES:
                keep = bool(work[place])
            elif event.cat == "gpu_user_annotation":  # spans GPU work of what it annotates on the CPU
                keep = plan.work_start_ns <= starts[place] and ends[place] <= plan.work_end_ns
            else:
                keep = bool(in_phases[place])
            if keep:
                kept.append(raw)
                self.kept += event.ph == "X"
        return kept

    def _shortened(self, raw: bytes, start_ns: int, end_ns: int) -> bytes:
        """A sequence's slice, cut to the recorded steps that remain."""
        stretch = self._plan.stretch
        start = min(max(start_ns, stretch.start_ns), stretch.end_ns)
        end = max(start, min(end_ns, stretch.end_ns))
        event: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        for name, ns in (("ts", start), ("dur", end - start)):
            event[name] = msgspec.Raw(b"%d.%03d" % divmod(ns, 1000))
        return msgspec.json.encode(event)
