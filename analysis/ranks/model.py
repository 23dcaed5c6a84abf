"""What is kept of the trace of one rank: small next to the trace, enough to set all ranks side by side.

Times are integers of ns on the clock of the file; `origin_ns` + a time of SQL.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Times:
    """A row of `molprof_rank`: the times of one device, ns."""

    device: str
    span_ns: int
    compute_ns: int
    communication_ns: int
    exposed_ns: int
    hidden_ns: int
    idle_ns: int
    kernels: int
    kernel_time_ns: int
    kernels_without_call: int
    collectives: int


@dataclass(frozen=True)
class Collective:
    """A collective kernel; None: not recorded."""

    start_ns: int
    end_ns: int
    stream: int | None
    name: str
    operation: str
    group_name: str | None
    group_ranks: str | None
    group_size: int | None
    sequence: int | None
    dtype: str | None
    bytes: int | None


@dataclass(frozen=True)
class Work:
    """GPU work other than collectives, in order of start: columns of equal length."""

    starts_ns: list[int] = field(default_factory=list)
    ends_ns: list[int] = field(default_factory=list)
    name_of: list[int] = field(default_factory=list)  # index into `names`
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """A step on the device: from its first work to the first work of the next step, the last to the end of all work."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Gap:
    """A stretch in which the device was idle, and what the host did in most of it."""

    start_ns: int
    end_ns: int
    cause: str  # of `molprof_idle_gap`
    host: str | None  # the innermost operator, call or annotation that takes half of it; None: none does


@dataclass(frozen=True)
class RankTrace:
    """One rank of a job."""

    path: str
    rank: int
    world_size: int | None
    backend: str | None
    problem: str | None  # where the file is damaged and only its whole part was read
    times: tuple[Times, ...]  # by device
    collectives: tuple[Collective, ...]
    work: Work
    steps: tuple[Step, ...]  # one, named `recording`, where no step is annotated
    gaps: tuple[Gap, ...]  # the longest
    start_ns: int  # of its first GPU work
    end_ns: int  # of its last
    is_named: bool = False  # the file does not record its rank, and its name tells it
