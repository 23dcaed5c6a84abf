"""The bottleneck of a trace and the parts of its time, as reports hold and show them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from molprof.common.values import percent_text

# Parts of the time, as people read them, and the verdict that each speaks for; ends speak for none.
PARTS: Mapping[str, tuple[str, str | None]] = {
    "gpu": ("GPU work", "gpu"),
    "communication": ("exposed communication", "communication"),
    "transfer": ("exposed copies between host and GPU", "transfer"),
    "launch": ("waiting for launches", "launch"),
    "input": ("waiting for the data loader", "input"),
    "constraint": ("waiting for masks and logits processors", "constraint"),
    "host": ("waiting for other CPU work", "host"),
    "sync": ("host syncs", "host"),
    "asleep": ("the CPU waits in a queue, lock or socket", "wait"),
    "device": ("waiting for another GPU", "wait"),
    "stream": ("waiting for another stream", "wait"),
    "wait": ("queued work that does not start", "wait"),
    "pauses": ("pauses below 5 µs", "gpu"),
    "profiler": ("the profiler's own work", None),
    "ends": ("outside the first and last GPU work", None),
}
# Less is not worth a word.
_LEAST_REST = 0.001


class Bottleneck(Struct, frozen=True):
    """The bottleneck of a trace; analysis/findings/bottleneck.py defines it."""

    # gpu, communication, transfer, launch, input, constraint, host or wait; None where the trace does not tell
    bound: str | None
    ratio: float | None  # share of the time
    of: str  # what that is a share of, in words: recorded span, or unprofiled wall time
    of_ns: int
    parts: dict[str, int]  # what the time of all devices together went to, ns; empty where no GPU work is recorded
    # The main cause of idle time between work, where most of that time is, and its share; None where not recorded.
    idle_cause: str | None = None
    idle_location: str | None = None
    idle_location_ratio: float | None = None


def parts_text(parts: Mapping[str, int], least: float = 0.001) -> str:
    """Return the parts of the time as text, the largest first; small ones together, if they matter."""
    whole = sum(parts.values())
    shares = sorted(((value / whole, name) for name, value in parts.items() if value > 0), reverse=True)
    texts = [f"{PARTS[name][0]} {percent_text(share)}" for share, name in shares if share >= least]
    rest = sum(share for share, _ in shares if share < least)
    if rest >= _LEAST_REST:
        texts.append(f"all else {percent_text(rest)}")
    return ", ".join(texts)
