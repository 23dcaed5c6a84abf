"""Figures of each run of a multi-run capture, in the manifest: time per step, constraint's share, answers."""

from __future__ import annotations

from msgspec import Struct


class MeasuredRun(Struct, frozen=True):
    """Unprofiled figures of one run of a multi-run capture. All times are in ns."""

    name: str
    processor: str | None
    rounds: list[int]  # by timed pass
    step_ns: list[float]  # by timed pass, wall time per step
    phase_ns: float | None  # host time of the phase `processor` per step, mean of the passes; None: not recorded
    constraint_ns: dict[str, float]  # of that the parts of `Repeat.constraint_ns`; empty if not recorded
    once_ns: int | None  # see `Timings.processor_once_ns`
    once_parts_ns: dict[str, int]
    answers: int
    judged: int  # of the answers, those that something judges
    valid: int
    wrong: int  # answers that ended by themselves and are not valid
    tokens: int  # generated
    steps: int  # of one pass

    @property
    def step_mean_ns(self) -> float:
        """The mean time of a step, ns."""
        return sum(self.step_ns) / len(self.step_ns)

    @property
    def constraint_step_ns(self) -> float | None:
        """Time per step to accept, fill and apply; if not recorded, of the phase; None without a processor."""
        if self.processor is None:
            return None
        parts = [ns for name, ns in self.constraint_ns.items() if name != "read"]
        return sum(parts) if parts else self.phase_ns
