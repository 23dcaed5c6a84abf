"""One rank of a loaded trace, from SQL."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from molprof.analysis.ranks.model import Collective, Gap, RankTrace, Step, Times, Work
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import Columns, TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_dicts, query_rows
from molprof.common.errors import TraceError

# Shorter gaps, and the shortest beyond this many, are not explained.
_LEAST_GAP_NS, _MOST_GAPS = 20_000, 2_000
_WHOLE = "recording"
_TIMES = Query(
    "rank_times",
    "SELECT device, span_ns, compute_ns, communication_ns, exposed_ns, hidden_ns, idle_ns, kernels, kernel_time_ns,"
    " kernels_without_call, collectives FROM molprof_rank WHERE rank IS {rank} ORDER BY device",
)
_COLLECTIVES = Query(
    "collectives",
    "SELECT ts AS start_ns, ts + dur AS end_ns, stream, name, operation, group_name, group_ranks, group_size, sequence,"
    " dtype, bytes FROM molprof_collective WHERE rank IS {rank} ORDER BY ts, id",
)
_WORK = Query(
    "collectives",
    "SELECT ts, ts + dur AS ts_end, name FROM molprof_gpu_work"
    " WHERE rank IS {rank} AND id NOT IN (SELECT id FROM molprof_collective) ORDER BY ts, id",
)
# Steps with the start of the first work whose call began in them.
_STEPS = Query(
    "step_placement",
    "INCLUDE PERFETTO MODULE molprof.gpu_work;"
    " SELECT step.name, MIN(work.ts) AS ts FROM molprof_gpu_work AS work"
    " JOIN molprof_call_step AS place ON place.id = work.call_id"
    " JOIN molprof_any_step AS step ON step.id = place.step_id"
    " WHERE work.rank IS {rank} GROUP BY step.id ORDER BY step.ts, step.id",
)
_GAPS = Query(
    "idle_causes",
    "SELECT gap.ts, gap.ts + gap.dur AS ts_end, gap.cause FROM molprof_idle_gap AS gap"
    " JOIN molprof_gpu_work AS work ON work.id = gap.next_id"
    f" WHERE work.rank IS {{rank}} AND gap.dur >= {_LEAST_GAP_NS} ORDER BY gap.dur DESC, gap.ts LIMIT {_MOST_GAPS}",
)
# Nested slices of a thread: the deeper, the closer to what the host did.
_HOST = Query(
    "process_ranks",
    "SELECT slice.name, slice.ts, slice.ts + slice.dur AS ts_end, slice.depth FROM slice"
    " LEFT JOIN molprof_track_rank AS place ON place.track_id = slice.track_id"
    " WHERE slice.category IN ('cpu_op', 'cuda_runtime', 'cuda_driver', 'user_annotation')"
    f" AND slice.dur >= {_LEAST_GAP_NS // 2} AND place.rank IS {{rank}} ORDER BY slice.ts, slice.id",
)


@dataclass(frozen=True)
class RankOfFile:
    """A rank that a file holds."""

    rank: int
    sql: str  # its value in the column `rank` of the SQL modules: NULL unless the file is merged
    world_size: int | None
    backend: str | None
    is_named: bool = False  # told by the name of the file


def rank_trace(engine: TraceProcessor, info: TraceInfo, of: RankOfFile) -> RankTrace:
    """One rank of a file. Raises TraceError if it has no GPU work."""
    where = of.sql
    prefix = "" if where == "NULL" else f"{where}:"  # of devices in a merged file
    found = query_dicts(engine, _filled(_TIMES, where))
    times = tuple(Times(**{**row, "device": row["device"].removeprefix(prefix)}) for row in found)
    if not times:
        raise TraceError(f"{info.path} holds no GPU work of rank {of.rank}", hint="record with ProfilerActivity.CUDA")
    origin = info.origin_ns
    _, rows = query_rows(engine, _filled(_COLLECTIVES, where))
    collectives = tuple(Collective(row[0] + origin, row[1] + origin, *row[2:]) for row in rows)
    columns = _columns(engine, _WORK, where)
    starts, ends = columns["ts"] + origin, columns["ts_end"] + origin
    kinds, name_of = np.unique(columns["name"].astype(str), return_inverse=True)
    work = Work(starts.tolist(), ends.tolist(), name_of.tolist(), kinds.tolist())
    start = min([item.start_ns for item in collectives[:1]] + work.starts_ns[:1])
    end = max([item.end_ns for item in collectives] + [int(ends.max())] * bool(len(ends)))
    return RankTrace(
        path=info.path,
        rank=of.rank,
        world_size=of.world_size,
        backend=of.backend,
        problem=info.problem,
        times=times,
        collectives=collectives,
        work=work,
        steps=tuple(_steps(engine, where, origin, (start, end))),
        gaps=tuple(_gaps(engine, where, origin)),
        start_ns=start,
        end_ns=end,
        is_named=of.is_named,
    )


def _filled(query: Query, rank: str) -> Query:
    return Query(query.module, query.sql.format(rank=rank))


def _columns(engine: TraceProcessor, query: Query, rank: str) -> Columns:
    """Columns whose numbers are int64 also without rows."""
    columns = engine.query(_filled(query, rank).text)
    return {name: values if name in ("name", "cause") else values.astype(np.int64) for name, values in columns.items()}


def _steps(engine: TraceProcessor, rank: str, origin: int, span: tuple[int, int]) -> list[Step]:
    """The steps on the device."""
    _, rows = query_rows(engine, _filled(_STEPS, rank))
    found: list[tuple[str, int]] = []
    for name, start in rows:
        found.append((name, max(start + origin, found[-1][1] if found else span[0])))
    if not found:
        return [Step(_WHOLE, *span)]
    ends = [start for _, start in found[1:]] + [span[1]]
    return [Step(name, start, end) for (name, start), end in zip(found, ends, strict=True)]


def _gaps(engine: TraceProcessor, rank: str, origin: int) -> list[Gap]:
    gaps, host = _columns(engine, _GAPS, rank), _columns(engine, _HOST, rank)
    found = []
    for start, end, cause in zip(*(gaps[name].tolist() for name in ("ts", "ts_end", "cause")), strict=True):
        shared = np.minimum(host["ts_end"], end) - np.maximum(host["ts"], start)
        half = np.flatnonzero(2 * shared >= end - start)
        deepest = half[np.argmax(host["depth"][half])] if len(half) else None
        name = None if deepest is None else str(host["name"][deepest])
        found.append(Gap(start + origin, end + origin, cause, name))
    return sorted(found, key=lambda gap: gap.start_ns)
