"""What went into a simulated capture, counted without the help of its trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gpu_clock import Call, Place, Work

_COUNTED = {"launch": "launches", "graph_launch": "graph_launches"}


@dataclass(frozen=True)
class Sums:
    """What was counted of a phase, a step or all."""

    launches: int = 0
    graph_launches: int = 0
    kernels: int = 0
    gpu_ns: int = 0
    syncs: int = 0
    sync_ns: int = 0


@dataclass(frozen=True)
class Bound:
    """A phase's time by what bounded it, ns."""

    gpu_busy_ns: int
    sync_idle_ns: int
    launch_ns: int


@dataclass(frozen=True, repr=False)  # pytest would print every event
class Expected:
    """What went into the trace, counted here without its help. Times in ns."""

    path: Path
    tokens: int  # of the recorded steps
    calls: list[Call]
    works: list[Work]
    phases: list[tuple[Place, int, int]]  # place, start and duration of each phase
    steps: dict[tuple[int, int], tuple[int, int]]  # start and duration by batch and number of the step

    def sums(self, **place: Any) -> Sums:
        """Of the places with these values: `sums(phase="forward", step=20)`; of all without any."""

        found: Counter[str] = Counter()
        for known, counts in self._counted.items():
            if place.items() <= set(known):
                found.update(counts)
        return Sums(**found)

    @cached_property
    def _counted(self) -> dict[tuple[tuple[str, Any], ...], Counter[str]]:
        """What is summed, by phase, batch and step."""
        found: dict[tuple[tuple[str, Any], ...], Counter[str]] = defaultdict(Counter)

        def here(call: Call) -> Counter[str]:
            return found[tuple((name, getattr(call.place, name)) for name in ("phase", "batch", "step"))]

        for call in self.calls:
            if call.kind in _COUNTED:
                here(call)[_COUNTED[call.kind]] += 1
        for call in self.waits:
            here(call).update(syncs=1, sync_ns=call.dur)
        for work in self.works:
            here(work.call).update(kernels=work.category == "kernel", gpu_ns=work.dur)
        return found

    @cached_property
    def waits(self) -> set[Call]:
        """Host syncs: a copy into pageable memory is one too."""
        pageable = {work.call for work in self.works if work.name == "Memcpy DtoH (Device -> Pageable)"}
        return {call for call in self.calls if call.kind == "sync"} | pageable

    def host_ns(self, phase: str) -> int:
        return sum(dur for place, _, dur in self.phases if place.phase == phase)

    def classes(self) -> dict[str, tuple[int, int]]:
        """Count and time of the work by class."""
        found: dict[str, list[int]] = defaultdict(list)
        for work in self.works:
            found[work.work_class].append(work.dur)
        return {name: (len(times), sum(times)) for name, times in found.items()}

    def copies(self) -> dict[str, tuple[int, int, int]]:
        """Count, time and bytes of the copies by name."""
        found: dict[str, list[Work]] = defaultdict(list)
        for work in self.works:
            if work.category != "kernel":
                found[work.name].append(work)
        return {
            name: (len(works), sum(work.dur for work in works), sum(work.bytes or 0 for work in works))
            for name, works in found.items()
        }

    def device(self) -> tuple[int, int, int]:
        """Span, busy and idle time of the device."""
        busy = sum(end - start for start, end in _union((work.ts, work.ts + work.dur) for work in self.works))
        span = max(work.ts + work.dur for work in self.works) - min(work.ts for work in self.works)
        return span, busy, span - busy

    def bound(self, phase: str) -> Bound:
        """Time of the phases of a name: with the GPU busy, else waiting in a host sync, else launching."""
        busy = list(_union((work.ts, work.ts + work.dur) for work in self.works))
        waits = [(call.ts, call.ts + call.dur) for call in self.waits]
        either = list(_union([*busy, *waits]))
        spans = [(ts, ts + dur) for place, ts, dur in self.phases if place.phase == phase]
        in_busy, in_either = _overlap(spans, busy), _overlap(spans, either)
        return Bound(in_busy, in_either - in_busy, self.host_ns(phase) - in_either)


def _union(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    begin = end = None
    for start, stop in sorted(spans):
        if end is None or start > end:
            if begin is not None and end is not None:
                yield begin, end
            begin, end = start, stop
        end = max(end, stop)
    if begin is not None and end is not None:
        yield begin, end


def _overlap(spans: list[tuple[int, int]], others: list[tuple[int, int]]) -> int:
    """Time that both cover; each list without overlaps of its own."""
    edges = [
        (time, sign) for times in (spans, others) for begin, end in times for time, sign in ((begin, 1), (end, -1))
    ]
    both = since = covering = 0
    for time, sign in sorted(edges):
        both += time - since if covering == 2 else 0
        since, covering = time, covering + sign
    return both
