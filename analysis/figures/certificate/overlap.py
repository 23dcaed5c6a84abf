"""Check: on each stream work ends before the next begins."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_rows
from molprof.analysis.figures.certificate.model import Bound, Check, Doubt, Facts
from molprof.analysis.reader import TraceInfo
from molprof.common.values import counted

_STREAMS = Query(
    "certificate_overlap",
    "SELECT device, stream, overlaps, overlap_ns, longest_ns, time_ns, union_ns"
    " FROM molprof_stream_overlap ORDER BY overlap_ns DESC, device, stream",
)


def _find(engine: Engine, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    columns, rows = query_rows(engine, _STREAMS)
    streams = [dict(zip(columns, row, strict=True)) for row in rows]
    if not streams:
        return
    overlaps, overlap_ns = (sum(stream[name] for stream in streams) for name in ("overlaps", "overlap_ns"))
    where = "a stream" if len(streams) == 1 else f"{len(streams)} streams"
    time_ns = facts.kernel_time_ns
    bounds = [Bound("counts.kernel_time_ns", max(0, time_ns - overlap_ns), time_ns, time_ns)]
    for stream in streams:
        name = f"streams.{stream['device']}/{stream['stream']}.time_ns"
        bounds.append(Bound(name, stream["union_ns"], stream["time_ns"], stream["time_ns"]))
    yield Doubt(
        "gpu_time",
        "bounded",
        f"{counted(overlaps, 'overlap')} of work on {where} (union against sum)",
        tuple(bounds),
        {"overlaps": overlaps, "overlap_ns": overlap_ns, "longest_ns": max(s["longest_ns"] for s in streams)},
    )


CHECK = Check("overlap", "work on a stream does not overlap", (_STREAMS,), _find)
