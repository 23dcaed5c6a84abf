"""Finding on many small all-reduces, which one for all of their tensors could replace."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from molprof.analysis.facts.coverage import exposure
from molprof.analysis.facts.gaps import LONG_NS, NONE
from molprof.analysis.facts.intervals import Coverage
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.findings.work import POINTWISE, gpu_share, is_named, located, times_at
from molprof.common.values import count_text, number_text, time_text

# Parts of their names, in lower case.
_ALL_REDUCE = ("*allreduce*", "*all_reduce*", "*all-reduce*", "*cross_device_reduce*")
# So short a one takes its time whatever it reduces.
_SMALL_NS = 50_000
_LEAST_PER_STEP = 20
_LEAST_IN_ROW = 4
# Classes of what may be done to a tensor between two of them that do not need each other's result.
_BETWEEN = (*POINTWISE, "memset", "memcpy DtoD", "collective")


def _joinable(known: TraceFacts, reduces: np.ndarray) -> np.ndarray:
    """Return True for each all-reduce of the work that could be joined with others: bool.

    The thread that starts it starts four or more in a row, with no work between them but pointwise kernels and other
    collectives; or other work of its device runs meanwhile, so that none waited for it.
    """
    work, calls, names = known.facts.work, known.facts.calls, known.facts.names
    is_light = np.array([name.work_class in _BETWEEN for name in names], dtype=bool)[known.facts.name_of]
    started = np.flatnonzero(work.call != NONE)
    order = started[np.lexsort((work.ts[started], calls.ts[work.call[started]], calls.own_track[work.call[started]]))]
    heavy = np.cumsum(~is_light[order])
    positions = np.flatnonzero(reduces[order])
    thread = calls.own_track[work.call[order[positions]]]
    pair = (heavy[positions][1:] == heavy[positions][:-1]) & (thread[1:] == thread[:-1])
    row = np.cumsum(~np.append(False, pair)[: len(positions)])
    joinable = np.zeros(len(work.ts), dtype=bool)
    joinable[order[positions]] = np.bincount(row)[row] >= _LEAST_IN_ROW if len(row) else False
    others = Coverage(work.device[~reduces], work.ts[~reduces], work.ts_end[~reduces])
    joinable |= reduces & (others.covered(work.device, work.ts, work.ts_end) > 0)
    return joinable


@rule(
    id="small_all_reduces",
    title="Many small all-reduces",
    fix="Join them: a larger bucket_cap_mb of DistributedDataParallel, or one all-reduce of flattened tensors.",
    explanation="A small all-reduce takes as long as its messages travel, however few bytes it adds up.",
    query="collectives",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    weight=0.8,
)
def small_all_reduces(known: TraceFacts) -> FindingEvidence | None:
    """Fire where a step, or a trace without steps, has 20 small all-reduces or more that could be joined.

    Half of them take 50 µs or less. One whose result other work waits for cannot be joined.

    Gain: the time in which they run on a device and nothing else does, and the short gaps before them.
    """
    work, facts = known.facts.work, known.facts
    is_named_so = [name.category == "kernel" and is_named(name.name, _ALL_REDUCE) for name in facts.names]
    chosen = np.array(is_named_so, dtype=bool)[facts.name_of]
    if known.report.run is not None:
        chosen &= known.scope.spans.covered(work.ts, work.ts + 1) > 0
    if chosen.sum() < _LEAST_PER_STEP:
        return None
    chosen = _joinable(known, chosen)
    steps = known.report.table("steps").to_json()
    number = max(1, sum(int(row["steps"] or 0) for row in steps if row["source"] != "(outside)"))
    times, count = (work.ts_end - work.ts)[chosen], int(chosen.sum())
    each = count / (number * known.scope.devices)
    if each < _LEAST_PER_STEP or (median_ns := float(np.median(times))) > _SMALL_NS:
        return None
    exposed_ns = int(exposure(work, chosen.astype(np.int64), 2).exposed[1])
    idle = facts.idle
    before = (idle.position == 0) & (idle.ts_end - idle.ts <= LONG_NS) & (idle.next != NONE)
    before &= np.append(chosen, False)[idle.next]
    idle_ns = int((idle.ts_end - idle.ts)[before].sum())
    evidence = FindingEvidence(
        f"{number_text(each)} in a step, {count_text(count)} in all, median {time_text(median_ns)}: "
        f"{time_text(exposed_ns)} with nothing else on the GPU, which is idle for {time_text(idle_ns)} in short gaps "
        f"before them",
        {
            "all_reduces": count,
            "per_step": each,
            "median_ns": median_ns,
            "exposed_ns": exposed_ns,
            "idle_ns": idle_ns,
        },
        part_of=("communication",) if exposed_ns >= idle_ns else (),
    )
    share = gpu_share(known, exposed_ns) + known.scope.idle_part(idle_ns)
    gain = known.gain(share, "these all-reduces without concurrent work, and the gaps before them")
    counted_ns = times_at(known, np.flatnonzero(chosen))
    return replace(located(known, evidence, exposed_ns, gain.bounded_by, counted_ns), gain=gain)
