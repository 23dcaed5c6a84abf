"""Check: no times contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row
from molprof.analysis.figures.certificate.model import Bound, Check, Doubt, Facts, lost
from molprof.analysis.reader import TraceInfo
from molprof.common.values import counted, time_text

_CLOCK = Query(
    "certificate_clocks",
    "SELECT early_work, earliest_ns, late_syncs, latest_ns, backward_calls, backward_ns, least_delay_ns,"
    " least_slack_ns, mean_delay_ns FROM molprof_clock",
)
# Clocks of a host and its GPU differ by microseconds. More than this is a jump, whatever offset would explain it.
_JUMP_NS = 1_000_000


def _find(engine: Engine, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    row = query_row(engine, _CLOCK)
    if row["early_work"] or row["late_syncs"]:
        yield from _two_clocks(row)
    if row["backward_calls"]:
        cases = counted(row["backward_calls"], "case")
        reason = f"the host's clock goes back by up to {time_text(row['backward_ns'])} ({cases})"
        yield from lost(facts.among("host_time", "links", "gpu_idle"), reason, row)


def _two_clocks(row: dict[str, Any]) -> Iterator[Doubt]:
    """Of a constant offset, the mean delay between what explains all times; of a jump, nothing."""
    early_ns, late_ns = row["earliest_ns"], row["latest_ns"]
    reasons = []
    if early_ns:
        cases = counted(row["early_work"], "case")
        reasons.append(f"GPU work begins up to {time_text(early_ns)} before its call ({cases})")
    if late_ns:
        cases = counted(row["late_syncs"], "case")
        reasons.append(f"GPU work ends up to {time_text(late_ns)} after a sync that waited for it ({cases})")
    reason = "; ".join(reasons)
    offset_explains = not (early_ns and late_ns) and (
        late_ns <= row["least_delay_ns"]
        if late_ns
        else row["least_slack_ns"] is None or early_ns <= row["least_slack_ns"]
    )
    if not offset_explains or max(early_ns, late_ns) > _JUMP_NS:
        yield from lost(("links", "gpu_idle"), f"the clocks jump: {reason}", row)
        return
    mean_ns = row["mean_delay_ns"]
    if late_ns:
        bound = Bound("mean_delay_ns", mean_ns - row["least_delay_ns"], mean_ns, mean_ns - late_ns)
    else:
        slack_ns = row["least_slack_ns"]
        bound = Bound("mean_delay_ns", mean_ns + early_ns, mean_ns, None if slack_ns is None else mean_ns + slack_ns)
    yield Doubt("links", "bounded", reason, (bound,), row)


CHECK = Check("clocks", "times do not contradict each other", (_CLOCK,), _find)
