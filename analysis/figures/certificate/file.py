"""Check: the file was read whole, and holds whole steps."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query
from molprof.analysis.figures.certificate.model import ALL, Bound, Check, Doubt, Facts
from molprof.analysis.reader import TraceInfo
from molprof.common.manifest import TRIMMED_KEY
from molprof.common.values import counted

_EVENTS = Query(
    "operation_totals",
    "SELECT category, SUM(count) AS events FROM molprof_operation_total GROUP BY category ORDER BY category",
)


def _find(engine: Engine, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    reasons = []
    if not info.complete:
        reasons.append("the file is damaged, and only its whole part was read")
    if info.lost_events:
        reasons.append(f"{counted(info.lost_events, 'event')} of the file did not reach the trace processor")
    at_least = {
        "gpu_work": Bound("counts.kernels", facts.kernels, facts.kernels, None),
        "gpu_time": Bound("counts.kernel_time_ns", facts.kernel_time_ns, facts.kernel_time_ns, None),
        "launches": Bound("counts.launches", facts.launches, facts.launches, None),
    }
    for reason in reasons:
        for group in ALL:
            if group in facts.recorded:
                bounds = (at_least[group],) if group in at_least else ()
                yield Doubt(group, "bounded", reason, bounds, {"lost_events": info.lost_events or 0})
    trimmed = info.keys.get(TRIMMED_KEY)
    if "steps" in facts.recorded and isinstance(trimmed, dict) and trimmed.get("whole_steps") is False:
        yield Doubt("steps", "not_to_be_had", "parts of steps were trimmed")


CHECK = Check("file", "the file is whole", (_EVENTS,), _find)
