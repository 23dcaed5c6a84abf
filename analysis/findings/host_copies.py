"""Every step copies data from the host to the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings.rule import Rule
from molprof.analysis.findings.scope import LEAST_GAIN, Scope
from molprof.common.values import bytes_text, number_text, time_text

LEAST_PER_STEP = 1

_COPIES = Query(
    "step_placement",
    """
INCLUDE PERFETTO MODULE molprof.memory_copies;
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.launches;
INCLUDE PERFETTO MODULE molprof.steps;
SELECT COUNT() AS count, IFNULL(SUM(copy.dur), 0) AS gpu_ns, IFNULL(SUM(call.dur), 0) AS host_ns,
  IFNULL(SUM(copy.bytes), 0) AS bytes, (SELECT COUNT() FROM molprof_any_step) AS steps
FROM molprof_memory_copy AS copy
JOIN molprof_gpu_work_call AS link ON link.work_id = copy.id
JOIN molprof_gpu_call AS call ON call.id = link.call_id
JOIN molprof_call_step AS place ON place.id = call.id
WHERE copy.direction = 'HtoD'
""",
)


def _find(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Fires where steps of any program copy LEAST_PER_STEP times each. Gain: the copies on the GPU and their calls."""
    if scope is None or not scope.devices:
        return
    copies = query_row(engine, _COPIES)
    if not copies["steps"] or copies["count"] < LEAST_PER_STEP * copies["steps"]:
        return
    gain = min(1.0, scope.gpu_part(copies["gpu_ns"] / scope.devices) + scope.host_part(copies["host_ns"]))
    if gain < LEAST_GAIN:
        return
    yield Finding(
        id="host_copies",
        title="Every step copies data from the host to the GPU",
        evidence=(
            f"{number_text(copies['count'] / copies['steps'])} copies per step, "
            f"{bytes_text(copies['bytes'])} in all: "
            f"{time_text(copies['gpu_ns'])} on the GPU, {time_text(copies['host_ns'])} in their calls"
        ),
        gain_ratio=gain,
        fix="Create tensors on the device once, before the loop. Use pinned memory and non_blocking=True for the rest.",
        explanation="From pageable memory the call returns only when the copy is done, so the CPU cannot run ahead.",
        query="memory_copies",
        figures=copies,
    )


RULE = Rule(("host_copies",), _find, (_COPIES,))
