"""What else the machine did while a run was timed, and whether that leaves its times in doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from msgspec import Struct, field

from molprof.common.values import percent_text

# From these on, on the median over the timed passes, times are in doubt.
BUSY_CORES = 0.25
_STEAL_RATIO = 0.02
_THROTTLED_RATIO = 0.01


class MachineSpan(Struct, frozen=True):
    """A stretch of time; None: the machine does not tell."""

    wall_ns: int
    other_cores: float | None = None  # of the cores that the run may use, those that other programs kept busy
    steal_ratio: float | None = None  # of the time of these cores, what a hypervisor gave to other machines
    throttled_ratio: float | None = None  # of the wall time, what the control group had used up its share
    waiting_ratio: float | None = None  # of the wall time, in which some program of the machine waited for a core
    mhz: float | None = None  # mean clock of these cores at the end
    gpu_mhz: float | None = None  # clock of the GPU at the end
    gpu_slowed: list[str] = field(default_factory=list)  # why the driver held the clock down at the end
    gpu_others: int | None = None  # other processes on the GPU at the end


class Machine(Struct, frozen=True):
    """The machine before the timed passes and during each of them."""

    cores: int  # that the run may use
    before: MachineSpan | None
    passes: list[MachineSpan]

    def doubts(self) -> tuple[str, ...]:
        """Why the times of the timed passes are in doubt."""
        return tuple(_doubts(self.cores, self.passes))


def _doubts(cores: int, spans: Sequence[MachineSpan]) -> Iterator[str]:
    other = _middle(spans, lambda span: span.other_cores)
    if other is not None and other >= BUSY_CORES:
        yield f"other programs kept {other:.1f} of {cores} cores busy"
    steal = _middle(spans, lambda span: span.steal_ratio)
    if steal is not None and steal >= _STEAL_RATIO:
        yield f"the hypervisor gave {percent_text(steal)} of the cores' time to other machines"
    throttled = _middle(spans, lambda span: span.throttled_ratio)
    if throttled is not None and throttled >= _THROTTLED_RATIO:
        yield f"the control group was out of its share of CPU time for {percent_text(throttled)} of the time"
    if reasons := sorted({reason for span in spans for reason in span.gpu_slowed}):
        yield f"the GPU's clock was held down ({', '.join(reasons)})"
    if others := max((span.gpu_others or 0 for span in spans), default=0):
        yield f"{others} other process{'' if others == 1 else 'es'} on the GPU"


def _middle(spans: Sequence[MachineSpan], value: Callable[[MachineSpan], float | None]) -> float | None:
    known = [found for span in spans if (found := value(span)) is not None]
    return median(known) if known else None
