"""The ranks of a loaded file, each reduced to what a comparison of all ranks needs.

Times are integers of ns on the clock of the file: `origin_ns` + a time of SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from molprof.analysis.figures.build import refuse_ambiguous
from molprof.analysis.reader import TraceInfo
from molprof.analysis.reader.source import PACKINGS, head_of
from molprof.analysis.trace_processor import Columns, TraceProcessor
from molprof.analysis.trace_processor.package import Query
from molprof.analysis.union import Union
from molprof.common.errors import TraceError
from molprof.common.memory import available_bytes, processors
from molprof.common.values import counted, cut, short_name, time_text

# All processes together take at most this, unless one alone needs more.
MOST_BYTES = 3_500_000_000
# What reading takes per byte of the file, packed or not, and in any case. Measured with packed files: 0.93 GB for
# 18.6 MB with 720,000 events, 0.31 GB for 4.5 MB.
_PACKED_RATIO, _PLAIN_RATIO, _LEAST_BYTES = 48, 4, 150_000_000
# Files that together are smaller are read sooner than a process starts.
ALONE_BYTES = 500_000
HINT = "if memory ran out, read the ranks on a machine or in a job with more memory"
_UNNAMED = (
    "name the files by their ranks, such as rank3.json, or record with torch.distributed initialized: torch.profiler"
    " then writes distributedInfo"
)
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*"rank"\s*:\s*(\d{1,9})\b')
# `rank3.pftrace`, `trace-rank-3_0.json`, `rank_3/trace.json`.
_NAME = re.compile(r"(?<![a-z])rank[\s_:#=-]*(\d{1,6})(?!\d)", re.IGNORECASE)
_WHOLE = "recording"
# The operation of kernels that are perhaps communication; so many of their names are shown, and so much of each.
PERHAPS, _NAMES_SHOWN, _NAME_SHOWN = "perhaps", 3, 60
# Shorter gaps, and the shortest beyond this many, are not explained.
_LEAST_GAP_NS, _MOST_GAPS = 20_000, 2_000


@dataclass(frozen=True)
class DeviceTimes:
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
class RankWork:
    """GPU work other than collectives, in order of start: columns of equal length."""

    starts_ns: list[int]
    ends_ns: list[int]
    name_of: list[int]  # index into `names`
    names: list[str]


@dataclass(frozen=True)
class RankStep:
    """A step on the device: from its first work to the first work of the next step, the last to the end of all work."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Gap:
    """A span in which the device was idle, and the host's main activity in it."""

    start_ns: int
    end_ns: int
    cause: str  # of `molprof_idle_gap`
    host: str | None  # the innermost operator, call or annotation that takes half of it; None: none does


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """One rank of a job."""

    path: str
    rank: int
    world_size: int | None = None
    backend: str | None = None
    problem: str | None  # where the file is damaged and only its whole part was read
    times: tuple[DeviceTimes, ...]  # by device
    collectives: tuple[Collective, ...]
    work: RankWork
    steps: tuple[RankStep, ...]  # one, named `recording`, where no step is annotated
    gaps: tuple[Gap, ...]  # the longest
    start_ns: int  # of its first GPU work
    end_ns: int  # of its last
    is_named: bool = False  # the file does not record its rank, and its name tells it


# {rank} is NULL unless the file is merged; then its devices are named after their rank too.
_TIMES = Query(
    "rank_times",
    "SELECT SUBSTR(device, IFNULL(LENGTH({rank}) + 2, 1)), "
    f"{', '.join(item.name for item in fields(DeviceTimes)[1:])}"
    " FROM molprof_rank WHERE rank IS {rank} ORDER BY device",
)
_COLLECTIVES = Query(
    "collectives",
    f"SELECT ts + {{origin}}, ts + dur + {{origin}}, {', '.join(item.name for item in fields(Collective)[2:])}"
    " FROM molprof_collective WHERE rank IS {rank} ORDER BY ts, id",
)
_WORK = Query(
    "collectives",
    "SELECT ts + {origin} AS start_ns, ts + dur + {origin} AS end_ns, name FROM molprof_gpu_work"
    " WHERE rank IS {rank} AND id NOT IN (SELECT id FROM molprof_collective) ORDER BY ts, id",
)
# Steps with the start of the first work whose call began in them.
_STEPS = Query(
    "step_placement",
    "INCLUDE PERFETTO MODULE molprof.gpu_work;"
    "INCLUDE PERFETTO MODULE molprof.steps;"
    " SELECT step.name, MIN(work.ts) + {origin} AS start_ns FROM molprof_gpu_work AS work"
    " JOIN molprof_call_step AS place ON place.id = work.call_id"
    " JOIN molprof_any_step AS step ON step.id = place.step_id"
    " WHERE work.rank IS {rank} GROUP BY step.id ORDER BY step.ts, step.id",
)
_GAPS = Query(
    "idle_gaps",
    "SELECT start_ns, start_ns + dur AS end_ns, cause FROM ("
    "SELECT gap.ts + {origin} AS start_ns, gap.dur, gap.cause FROM molprof_idle_gap AS gap"
    " JOIN molprof_gpu_work AS work ON work.id = gap.next_id"
    f" WHERE work.rank IS {{rank}} AND gap.dur >= {_LEAST_GAP_NS} ORDER BY gap.dur DESC, gap.ts LIMIT {_MOST_GAPS}"
    ") ORDER BY start_ns, dur DESC",
)
# Nested slices of a thread: the deeper, the closer to what the host did.
_HOST = Query(
    "process_ranks",
    "SELECT slice.name, slice.ts + {origin} AS start_ns, slice.ts + slice.dur + {origin} AS end_ns, slice.depth"
    " FROM slice LEFT JOIN molprof_track_rank AS place ON place.track_id = slice.track_id"
    " WHERE slice.category IN ('cpu_op', 'cuda_runtime', 'cuda_driver', 'user_annotation')"
    f" AND slice.dur >= {_LEAST_GAP_NS // 2} AND place.rank IS {{rank}} ORDER BY slice.ts, slice.id",
)
# Ranks of a merged file that have GPU work, in order.
_MERGED = Query("gpu_work", "SELECT DISTINCT rank FROM molprof_gpu_work WHERE rank IS NOT NULL ORDER BY rank")


def at_once(paths: Sequence[Path]) -> int:
    """Return the number of processes that read the files at once; 0: this one alone."""
    if sum(path.stat().st_size for path in paths if path.is_file()) < ALONE_BYTES:
        return 0
    return workers_for([needed_bytes(path) for path in paths])


def workers_for(needed: Sequence[int]) -> int:
    """Return how many files that need so much memory, bytes, are read at once."""
    budget = min(MOST_BYTES, available_bytes() or MOST_BYTES)
    return max(1, min(len(needed), processors(), budget // max(needed)))


def needed_bytes(path: Path) -> int:
    """Return the memory that reading a file takes."""
    try:
        with path.open("rb") as file:
            packed = any(packing.magic.match(file.peek(4)) for packing in PACKINGS)
        size = path.stat().st_size
    except OSError:  # reading it says what is wrong
        return _LEAST_BYTES
    return _LEAST_BYTES + size * (_PACKED_RATIO if packed else _PLAIN_RATIO)


def told_rank(path: Path) -> int | None:
    """Return the rank that a trace names before its events; of a native one, which records none, that in its name.

    Else None.
    """
    head = head_of(path)
    if head == b"":
        return _named_rank(path)
    match = _RANK.search(head or b"")
    return int(match[1]) if match else None


def file_rank(path: Path) -> int | None:
    """Return the rank that a trace names before its events, or its file's name tells; else None."""
    rank = told_rank(path)
    return _named_rank(path) if rank is None else rank


def _named_rank(path: Path) -> int | None:
    """Return the rank in the name of a file, or of its folder; else None."""
    path = path.absolute()
    match = _NAME.search(path.name) or _NAME.search(path.parent.name)
    return int(match[1]) if match else None


def ranks_of(engine: TraceProcessor, info: TraceInfo) -> list[RankTrace]:
    """Return the rank of a loaded file, or the ranks of a merged one.

    Raises TraceError if a file records no rank or a wrong one, or a rank has no GPU work; EngineError.
    """
    refuse_ambiguous(engine, info.path)
    recorded = info.keys.get("distributedInfo")
    recorded = recorded if isinstance(recorded, dict) else {}
    merged = engine.query(_MERGED.text)["rank"].tolist()
    if not merged:
        return [_rank_trace(engine, info, "NULL", **_rank_of(info, recorded))]
    # A merged file has the distributedInfo of one of its ranks, if any.
    size = recorded.get("world_size")
    size = size if _is_number(size) and size > merged[-1] else None
    return [_rank_trace(engine, info, str(rank), rank=rank, world_size=size) for rank in merged]


def _rank_of(info: TraceInfo, recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the rank fields of `RankTrace`, as the file records them, or as its name says."""
    if "rank" not in recorded:
        if (named := _named_rank(Path(info.path))) is None:
            raise TraceError(f"{info.path} does not record its rank (distributedInfo)", hint=_UNNAMED)
        return {"rank": named, "is_named": True}
    rank, world_size, backend = recorded["rank"], recorded.get("world_size"), recorded.get("backend")
    if not _is_number(rank) or not (world_size is None or (_is_number(world_size) and rank < world_size)):
        what = f"{info.path} has a wrong distributedInfo: rank {rank!r} of {world_size!r}"
        raise TraceError(what, hint="correct it, or leave the file out")
    return {"rank": rank, "world_size": world_size, "backend": backend if isinstance(backend, str) else None}


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _rank_trace(engine: TraceProcessor, info: TraceInfo, where: str, **of: Any) -> RankTrace:
    """Return one rank of a file. where: its value in the column `rank` of the SQL modules."""

    def ask(query: Query) -> Columns:
        return engine.query(query.text.format(rank=where, origin=info.origin_ns))

    def rows(query: Query) -> Iterator[tuple[Any, ...]]:
        return zip(*(column.tolist() for column in ask(query).values()), strict=True)

    times = tuple(DeviceTimes(*row) for row in rows(_TIMES))
    if not times:
        raise TraceError(
            f"{info.path} holds no GPU work of rank {of['rank']}", hint="record with ProfilerActivity.CUDA"
        )
    collectives = tuple(Collective(*row) for row in rows(_COLLECTIVES))
    columns, steps = ask(_WORK), ask(_STEPS)
    kinds, name_of = np.unique(columns["name"].astype(str), return_inverse=True)
    work = RankWork(columns["start_ns"].tolist(), columns["end_ns"].tolist(), name_of.tolist(), kinds.tolist())
    start = min([*work.starts_ns[:1], *(item.start_ns for item in collectives[:1])])
    end = max([*work.ends_ns, *(item.end_ns for item in collectives)])
    starts = list(accumulate(steps["start_ns"].tolist(), max))
    return RankTrace(
        path=info.path,
        problem=info.problem,
        times=times,
        collectives=collectives,
        work=work,
        steps=tuple(map(RankStep, steps["name"].tolist(), starts, [*starts[1:], end]))
        or (RankStep(_WHOLE, start, end),),
        gaps=tuple(_explained(rows(_GAPS), ask(_HOST))),
        start_ns=start,
        end_ns=end,
        **of,
    )


def unknown_kernels(ranks: Sequence[RankTrace]) -> Iterator[str]:
    """Yield notes on kernels that count as communication only by where they run."""
    for rank in ranks:
        unknown = [item for item in rank.collectives if item.operation == PERHAPS]
        if unknown:
            time_ns = Union([item.start_ns for item in unknown], [item.end_ns for item in unknown]).length_ns
            names = dict.fromkeys(short_name(item.name) for item in unknown)
            shown = ", ".join(cut(name, _NAME_SHOWN) for name in [*names][:_NAMES_SHOWN])
            yield (
                f"rank {rank.rank}: {counted(len(unknown), 'kernel')} of unknown name ({time_text(time_ns)}; {shown}"
                f"{', ...' if len(names) > _NAMES_SHOWN else ''}) count as communication, for they run on a stream of "
                "collectives or are called inside one"
            )


def _explained(gaps: Iterator[tuple[int, int, str]], host: Columns) -> Iterator[Gap]:
    """Yield each gap with the host's main activity in it."""
    starts, ends, depths = (host[name].astype(np.int64) for name in ("start_ns", "end_ns", "depth"))
    for start, end, cause in gaps:
        half = np.flatnonzero(2 * (np.minimum(ends, end) - np.maximum(starts, start)) >= end - start)
        yield Gap(start, end, cause, str(host["name"][half[np.argmax(depths[half])]]) if len(half) else None)
