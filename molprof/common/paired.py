"""Repeated runs of a program with and without its logits processors, as stored in a manifest."""

from __future__ import annotations

from msgspec import Struct, field


class PairedRuns(Struct, frozen=True):
    """Paired runs of a program, with its logits processors on and off, one of each per round."""

    other: str  # name of the trace of the runs without
    switched_off: list[str]  # what they had not
    wall_ns: list[int]
    tokens: list[int]
    other_wall_ns: list[int]
    other_tokens: list[int]
    failed: list[str] = field(default_factory=list)  # runs that failed, one line each

    @property
    def lengths_differ(self) -> bool:
        """True if one side wrote more tokens than the other in some round."""
        return self.tokens != self.other_tokens
