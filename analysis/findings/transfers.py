"""Finding on copies between host and GPU while the GPU does nothing else."""

from __future__ import annotations

import numpy as np

from molprof.analysis.facts import coverage
from molprof.analysis.findings.device import copies_pinned
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.processor import copies_in_steps
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.findings.work import gpu_share, located, times_at
from molprof.common.values import counted, percent_text, time_text

_FROM_HOST, _TO_HOST = "memcpy HtoD", "memcpy DtoH"
_LEAST = 0.05  # of the time
_FIX = (
    "Overlap them with computing: {}non_blocking=True, a stream of their own, the next batch ahead. Or copy less: "
    "fewer bits, and what is needed again stays on the GPU."
)


def _is_of(known: TraceFacts, *classes: str) -> np.ndarray:
    chosen = np.array([name.work_class in classes for name in known.facts.names], dtype=bool)
    is_of_classes: np.ndarray = chosen[known.facts.name_of]
    return is_of_classes


def _alone_ns(known: TraceFacts, chosen: np.ndarray) -> int:
    if known.report.run is not None:
        chosen = chosen & (known.scope.spans.covered(known.facts.work.ts, known.facts.work.ts + 1) > 0)
    return coverage.alone_ns(known.facts.work, chosen, known.facts.overlaps) if chosen.any() else 0


def transfers_ns(known: TraceFacts) -> int:
    """Return the time of exposed copies between host and GPU, summed over devices, ns; 0 if it is below 5 %."""
    time_ns = _alone_ns(known, _is_of(known, _FROM_HOST, _TO_HOST))
    return time_ns if time_ns >= _LEAST * known.scope.recorded_ns * known.scope.devices else 0


@rule(
    id="host_transfers",
    title="Copies between host and GPU are exposed",
    fix=_FIX.format("pinned memory, "),
    explanation="The GPU computes nothing while it waits for data.",
    query="memory_copies",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    least_gain=_LEAST,
    of_steps=True,
    weight=0.9,
)
def host_transfers(known: TraceFacts) -> FindingEvidence | None:
    """Fire where copies between host and GPU take 5 % of the time with nothing else on the GPU.

    Copies that every step waits for do not count.

    Gain: the time in which they run on a device and nothing else does.
    """
    classes = (_TO_HOST,) if copies_in_steps(known) else (_FROM_HOST, _TO_HOST)
    chosen = _is_of(known, *classes)
    if not (exposed_ns := _alone_ns(known, chosen)):
        return None
    other_ns, work = _alone_ns(known, ~chosen), known.facts.work
    times = times_at(known, np.flatnonzero(chosen))
    each = [
        f"{counted(int(mine.sum()), 'time')} {where} ({time_text(int((work.ts_end - work.ts)[mine].sum()))})"
        for kind, where in ((_FROM_HOST, "from the host"), (_TO_HOST, "to the host"))
        if kind in classes and (mine := _is_of(known, kind)).any()
    ]
    evidence = FindingEvidence(
        f"{' and '.join(each)}, {time_text(exposed_ns)} of it with nothing else on the GPU, "
        f"{percent_text(gpu_share(known, exposed_ns))} of the time. At most {time_text(min(exposed_ns, other_ns))} "
        "can overlap other work",
        {"copies": int(chosen.sum()), "exposed_ns": exposed_ns, "hideable_ns": min(exposed_ns, other_ns)},
        fix=_FIX.format("") if copies_pinned(known) else "",
    )
    return located(known, evidence, exposed_ns, "copies without concurrent work", times)
