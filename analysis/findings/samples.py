"""Samples of a process that was not profiled: what it did while the model waited."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter

import numpy as np

from molprof.analysis.findings.engine import MASKS
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.samples import SampledThread, Samples, time_by
from molprof.analysis.trace_processor.package import Query
from molprof.analysis.union import Union
from molprof.common.text import shortened
from molprof.common.values import counted, percent_text, time_text

_MARKS = Query(
    "phase_marks",
    "SELECT pattern FROM molprof_phase_mark WHERE kind = 'function' AND phase IN"
    f" ({', '.join(map(repr, MASKS))}) ORDER BY pattern",
)
_OPERATORS = Query(
    "annotations", "SELECT ts, ts + dur AS ts_end FROM slice WHERE category = 'cpu_op' AND dur > 0 ORDER BY ts, id"
)
_NAMED = 3


@rule(
    id="samples_of_masks",
    title="Samples show what another process did while the model waited",
    fix="Where it fills masks, fill fewer or cheaper ones; `molprof run --processes` records that process itself.",
    explanation="The process was sampled, not profiled: shares are of samples, and short functions may be in none.",
    query=_MARKS.text,
    needs=("time",),
    rests_on=("host_time",),
    note=True,
)
def samples_of_masks(known: TraceFacts) -> FindingEvidence | None:
    """Fire where samples were joined to a trace (molprof join), and some are of a time in which the model waits.

    The model waits where no GPU works, or, in a trace without GPU work, where no thread is in an operator.
    """
    if not known.samples:
        return None
    masks = re.compile("|".join(fnmatch.translate(row["pattern"]) for row in known.rows(_MARKS)))
    first, last = known.facts.span
    work = known.facts.work
    rows = known.frame(_OPERATORS)
    busy = Union(work.ts, work.ts_end) if len(work.ts) else Union(rows["ts"], rows["ts_end"])
    waiting = "no GPU works" if len(work.ts) else "no thread is in an operator"
    idle_ns = last - first - int(busy.covered(first, last))
    sampled = [
        (_masks_of(samples, thread, masks, first, last, busy), thread) for samples in known.samples
        for thread in samples.threads
    ]  # fmt: skip
    (times, thread) = max(sampled, key=lambda item: (sum(item[0].values()) - item[0][""], sum(item[0].values())))
    all_ns = sum(times.values())
    if not all_ns or idle_ns <= 0:
        return None
    masks_ns = all_ns - times.pop("")
    of = thread.name if thread.pid is None else f"process {thread.pid}, {thread.name}"
    top = ", ".join(f"{shortened(name)} {time_text(ns)}" for name, ns in Counter(times).most_common(_NAMED))
    start = "" if all(one.is_placed for one in known.samples) else "; when the samples began is guessed"
    return FindingEvidence(
        f"{percent_text(masks_ns / all_ns)} of the samples of {of} while {waiting} ({time_text(all_ns)} of"
        f" {time_text(idle_ns)}) are in functions of masks{f': {top}' if top else ''};"
        f" {counted(len(sampled), 'thread')} sampled{start}",
        {"masks_ratio": masks_ns / all_ns, "masks_ns": masks_ns, "sampled_ns": all_ns, "idle_ns": idle_ns},
        share=min(1.0, masks_ns / idle_ns),
    )


def _masks_of(
    samples: Samples, thread: SampledThread, masks: re.Pattern[str], first: int, last: int, busy: Union
) -> Counter[str]:
    """Return the time of a thread's samples while the model waits, ns, by their function of masks; "": in none."""
    names = [next((samples.frames[i] for i in stack if masks.match(samples.frames[i])), "") for stack in samples.stacks]

    def waiting_ns(start: int, end: int) -> int:
        start, end = max(start, first), min(end, last)
        return end - start - int(busy.covered(np.int64(start), np.int64(end))) if end > start else 0

    return Counter(
        {"": 0, **{name or "": ns for name, ns in time_by(samples, thread, waiting_ns, names.__getitem__).items()}}
    )
