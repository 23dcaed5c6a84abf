"""Tiny kernels: launching them takes longer than running them."""

from __future__ import annotations

from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import time_text

_SHORT = Query(
    "tiny_kernels",
    """
SELECT name, count, SUM(time_ns) OVER () AS all_ns
FROM molprof_tiny_kernel
ORDER BY time_ns DESC, name
LIMIT 1
""",
)


@rule(
    id="tiny_kernels",
    title="Kernels are tiny",
    fix="Fuse them: torch.compile, or one kernel for several operations.",
    explanation="A launch takes several microseconds of CPU time, whatever the kernel does.",
    query="tiny_kernels",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
)
def tiny_kernels(known: TraceFacts) -> FindingEvidence | None:
    """Fire where kernels take less than 10 µs.

    Gain: the time of all these kernels.
    """
    if not (rows := known.rows(_SHORT)):
        return None
    name, count, all_ns = rows[0].values()
    scope = known.scope
    return FindingEvidence(
        f"{time_text(all_ns)} in kernels below 10 µs, most of it in {count} of {name}",
        {"time_ns": all_ns},
        known.gain(scope.gpu_part(all_ns / scope.devices), "tiny kernels"),
    )
