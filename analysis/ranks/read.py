"""The ranks of a loaded file, and how many files are read at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from molprof.analysis.figures.build import refuse_ambiguous
from molprof.analysis.ranks.extract import RankOfFile, rank_trace
from molprof.analysis.ranks.find import named_rank
from molprof.analysis.ranks.model import RankTrace
from molprof.analysis.reader import TraceInfo
from molprof.analysis.reader.source import PACKINGS
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.errors import TraceError
from molprof.common.memory import available_bytes, processors

# All processes together take at most this, unless one alone needs more.
MOST_BYTES = 3_500_000_000
# What reading takes per byte of the file, packed or not, and in any case. Measured with packed files: 0.93 GB for
# 18.6 MB with 720,000 events, 0.31 GB for 4.5 MB.
_PACKED_RATIO, _PLAIN_RATIO, _LEAST_BYTES = 48, 4, 150_000_000
# Files that together are smaller are read sooner than a process starts.
ALONE_BYTES = 500_000
# Ranks of a merged file that have GPU work, in order.
_MERGED = Query("gpu_work", "SELECT DISTINCT rank FROM molprof_gpu_work WHERE rank IS NOT NULL ORDER BY rank")
HINT = "if memory ran out, read the ranks on a machine or in a job with more memory"
_UNNAMED = (
    "name the files by their ranks, such as rank3.json, or record with torch.distributed initialized: torch.profiler"
    " then writes distributedInfo"
)


def at_once(paths: Sequence[Path]) -> int:
    """How many processes read the files at once; 0: this one alone."""
    if sum(path.stat().st_size for path in paths if path.is_file()) < ALONE_BYTES:
        return 0
    return workers_for([needed_bytes(path) for path in paths])


def workers_for(needed: Sequence[int]) -> int:
    """How many files that need so much memory, bytes, are read at once."""
    budget = min(MOST_BYTES, available_bytes() or MOST_BYTES)
    return max(1, min(len(needed), processors(), budget // max(needed)))


def needed_bytes(path: Path) -> int:
    """The memory that reading a file takes."""
    try:
        with path.open("rb") as file:
            packed = any(packing.magic.match(file.peek(4)) for packing in PACKINGS)
        size = path.stat().st_size
    except OSError:  # reading it says what is wrong
        return _LEAST_BYTES
    return _LEAST_BYTES + size * (_PACKED_RATIO if packed else _PLAIN_RATIO)


def ranks_of(engine: TraceProcessor, info: TraceInfo) -> list[RankTrace]:
    """The rank of a loaded file, or the ranks of a merged one. Raises TraceError, EngineError."""
    refuse_ambiguous(engine, info.path)
    _, rows = query_rows(engine, _MERGED)
    if not rows:
        return [rank_trace(engine, info, rank_of(info))]
    # A merged file has the distributedInfo of one of its ranks, if any.
    found = info.keys.get("distributedInfo")
    world_size = found.get("world_size") if isinstance(found, dict) else None
    size = world_size if _is_number(world_size) and world_size > rows[-1][0] else None
    return [rank_trace(engine, info, RankOfFile(rank, str(rank), size, None)) for (rank,) in rows]


def rank_of(info: TraceInfo) -> RankOfFile:
    """The rank of a file: as it records it, or as its name tells it. Raises TraceError if neither, or if wrong."""
    found = info.keys.get("distributedInfo")
    if not isinstance(found, dict) or "rank" not in found:
        named = named_rank(Path(info.path))
        if named is not None:
            return RankOfFile(named, "NULL", None, None, is_named=True)
        raise TraceError(f"{info.path} does not record its rank (distributedInfo)", hint=_UNNAMED)
    rank, world_size, backend = found["rank"], found.get("world_size"), found.get("backend")
    if not _is_number(rank) or not (world_size is None or (_is_number(world_size) and rank < world_size)):
        what = f"{info.path} has a wrong distributedInfo: rank {rank!r} of {world_size!r}"
        raise TraceError(what, hint="correct it, or leave the file out")
    return RankOfFile(rank, "NULL", world_size, backend if isinstance(backend, str) else None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
