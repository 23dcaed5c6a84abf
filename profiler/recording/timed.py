"""A timed run of a program without recording, as its process stores it; the time of steps of such runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from molprof.common.manifest import MachineSpan, Repeat


class TimedRun(Struct, frozen=True):
    """A run of a program with host timestamps alone."""

    repeat: Repeat
    spans: list[MachineSpan]
    steps: list[int]  # by call of `generate`
    tokens: int
    switched_off: list[str]
    problem: str | None  # what ended the program early

    def write(self, path: Path) -> None:
        """Write the run as JSON."""
        path.write_bytes(msgspec.json.encode(self))


def unprofiled_ns(repeats: Sequence[Repeat], steps: Iterable[tuple[int, int]]) -> int:
    """Return the median time of steps, (batch, step), over the passes that have them all; 0 where none has."""
    wanted = list(steps)
    sums_ns = []
    for repeat in repeats:
        times = repeat.steps_ns
        if all(batch < len(times) and step < len(times[batch]) for batch, step in wanted):
            sums_ns.append(sum(times[batch][step] for batch, step in wanted))
    return round(statistics.median(sums_ns)) if sums_ns else 0
