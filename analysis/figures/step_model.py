"""The typical step of a trace, as a report holds it."""

from __future__ import annotations

from msgspec import Struct

# Of the typical step, intervals shorter than this part of the whole are merged: they would take less than two pixels.
SLOTS = 500


class StepInterval(Struct, frozen=True):
    """A phase, call, operator or piece of GPU work of the step, or several short ones next to each other."""

    kind: str  # phase, launch, wait, operator (outermost; where no GPU calls are recorded) or gpu
    device_stream: str | None  # device/stream of GPU work, else None
    name: str  # of several, that of the class that takes most of their time
    work_class: str | None  # of GPU work, or the name of an operator; None for all else
    start_ns: int  # from the start of the step; below 0 for work that an earlier step had started
    dur_ns: int
    count: int
    own: bool  # started by the step's own calls


class IntervalTotal(Struct, frozen=True):
    """The sum over one kind, sub-track and class in the step."""

    kind: str
    device_stream: str | None
    work_class: str | None
    count: int
    time_ns: int


class TypicalStep(Struct, frozen=True):
    """The recorded step of median duration on the host, including the profiler's cost."""

    name: str
    source: str  # molprof, vllm, sglang or profiler
    kind: str | None  # prefill, decode and so on; None where the annotation has none
    steps: int  # number of steps that it is the median of
    dur_ns: int
    totals: tuple[IntervalTotal, ...]
    intervals: tuple[StepInterval, ...]  # in order of start, with short neighbours merged
    # Of all these steps, the median with the GPU work that they started (see queries/step_times.sql).
    time_ns: float | None = None
