"""Check: no host work was running when the profiler started."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row
from molprof.analysis.figures.certificate.model import Bound, Check, Doubt, Facts
from molprof.analysis.reader import TraceInfo
from molprof.common.values import counted, time_text

_OVER = Query(
    "certificate_start",
    "SELECT COUNT() AS count, SUM(before_ns) FILTER (WHERE is_outermost) AS before_ns,"
    " SUM(dur) FILTER (WHERE is_outermost) AS time_ns, MAX(before_ns) AS longest_ns FROM molprof_work_over_start",
)


def _find(engine: Engine, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    row = query_row(engine, _OVER)
    if not row["count"]:
        return
    reason = (
        f"{counted(row['count'], 'slice')} of host work began up to {time_text(row['longest_ns'])} before the profiler"
    )
    time_ns = row["time_ns"]
    bound = Bound("work_over_start_ns", time_ns - row["before_ns"], time_ns, time_ns)
    yield Doubt("host_time", "bounded", reason, (bound,), row)


CHECK = Check("start", "host work begins after the profiler", (_OVER,), _find)
