"""Check: the file holds one process; several were merged, mostly the ranks of a job."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_rows
from molprof.analysis.figures.certificate.model import Check, Doubt, Facts
from molprof.analysis.reader import TraceInfo
from molprof.common.values import counted

_PROCESSES = Query(
    "certificate_ranks", "SELECT pid, name, operators, gpu_calls FROM molprof_host_process ORDER BY pid, name"
)


def _find(engine: Engine, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    _, processes = query_rows(engine, _PROCESSES)
    if len(processes) < 2:
        return
    with_calls = sum(1 for *_, calls in processes if calls)
    job = info.keys.get("distributedInfo")
    world_size = job.get("world_size") if isinstance(job, dict) else None
    evidence = {"processes": len(processes), "world_size": world_size}
    reason = f"{len(processes)} processes (ranks) in one file"
    yield Doubt("host_time", "bounded", f"{reason}: their clocks are not aligned", (), evidence)
    if 0 < len(facts.devices) < with_calls:
        why = f"{reason} share {counted(len(facts.devices), 'device number')}"
        for group in ("gpu_time", "gpu_idle"):
            yield Doubt(group, "not_to_be_had", why, (), evidence)


CHECK = Check("ranks", "the file holds one process", (_PROCESSES,), _find)
