"""Checks: the file is whole, holds one run of one process with all that was asked for, and its times can be true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from molprof.analysis.figures.certificate.model import ALL, Bound, Check, Doubt, Facts, Group, lost
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_dicts, query_row, query_rows
from molprof.common.manifest import TRIMMED_KEY
from molprof.common.values import counted, time_text

_EVENTS = Query(
    "operation_totals",
    "SELECT category, SUM(count) AS events FROM molprof_operation_total GROUP BY category ORDER BY category",
)
_RUNS = Query("certificate_cycles", "SELECT number, name, ts, dur, gap_ns FROM molprof_profiler_run ORDER BY number")
_RUN_PROCESSES = Query("certificate_ranks", "SELECT COUNT() AS processes FROM molprof_host_process")
_IDLE = Query("certificate_cycles", "SELECT device, idle_ns FROM molprof_idle_between_runs ORDER BY device")
_PROCESSES = Query(
    "certificate_ranks", "SELECT pid, name, operators, gpu_calls FROM molprof_host_process ORDER BY pid, name"
)
_OVER = Query(
    "certificate_start",
    "SELECT COUNT() AS count, SUM(before_ns) FILTER (WHERE is_outermost) AS before_ns,"
    " SUM(dur) FILTER (WHERE is_outermost) AS time_ns, MAX(before_ns) AS longest_ns FROM molprof_work_over_start",
)
_MEMORY = Query("certificate_memory", "SELECT events FROM molprof_memory_event_count")

_CLOCK = Query(
    "certificate_clocks",
    "SELECT early_work, earliest_ns, late_syncs, latest_ns, backward_calls, backward_ns, least_delay_ns,"
    " least_slack_ns, mean_delay_ns FROM molprof_clock",
)
# Clocks of a host and its GPU differ by microseconds. More than this is a jump, whatever offset would explain it.
_JUMP_NS = 1_000_000


def _file(engine: TraceProcessor, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    reasons = []
    if not info.complete:
        reasons.append("the file is damaged, and only its whole part was read")
    if info.lost_events:
        reasons.append(f"{counted(info.lost_events, 'event')} of the file did not reach the trace processor")
    at_least = {
        "gpu_work": facts.count("kernels", more=None),
        "gpu_time": facts.count("kernel_time_ns", more=None),
        "launches": facts.count("launches", more=None),
    }
    for reason in reasons:
        for group in facts.among(*ALL):
            bounds = (at_least[group],) if group in at_least else ()
            yield Doubt(group, "bounded", reason, bounds, {"lost_events": info.lost_events or 0})
    trimmed = info.keys.get(TRIMMED_KEY)
    if "steps" in facts.recorded and isinstance(trimmed, dict) and trimmed.get("whole_steps") is False:
        yield Doubt("steps", "not_to_be_had", "parts of steps were trimmed")


def _cycles(engine: TraceProcessor, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    runs = query_dicts(engine, _RUNS)
    # A merged file has a run for each process; the check of ranks reports those.
    if len(runs) > 1 and len(runs) > query_row(engine, _RUN_PROCESSES)["processes"]:
        gap_ns = sum(run["gap_ns"] or 0 for run in runs)
        reason = f"{len(runs)} runs of the profiler in one file, {time_text(gap_ns)} between them"
        between = dict(query_rows(engine, _IDLE)[1])
        bounds = tuple(
            Bound(f"devices.{name}.idle_ns", device.idle_ns - between.get(name, 0), device.idle_ns, device.idle_ns)
            for name, device in facts.devices.items()
        )
        group: Group = "gpu_idle" if bounds else "host_time"
        yield Doubt(group, "bounded", reason, bounds, {"runs": len(runs), "gap_ns": gap_ns})


def _ranks(engine: TraceProcessor, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    """Several processes were merged, mostly the ranks of a job."""
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
        yield from lost(("gpu_time", "gpu_idle"), why, evidence)


def _start(engine: TraceProcessor, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    row = query_row(engine, _OVER)
    if not row["count"]:
        return
    cases = counted(row["count"], "slice")
    reason = f"{cases} of host work began up to {time_text(row['longest_ns'])} before the profiler"
    time_ns = row["time_ns"]
    bound = Bound("work_over_start_ns", time_ns - row["before_ns"], time_ns, time_ns)
    yield Doubt("host_time", "bounded", reason, (bound,), row)


def _memory(engine: TraceProcessor, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    # torch writes 1; other writers true.
    if info.keys.get("profile_memory") in (1, True) and not info.memory_events:
        reason = "profile_memory was on, and no memory event is recorded"
        yield Doubt("allocations", "not_to_be_had", reason, (), {"events": 0})


def _clocks(engine: TraceProcessor, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
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


FILE = Check("file", "the file is whole", (_EVENTS,), _file, asks=False)
CYCLES = Check("cycles", "the file holds one run of the profiler", (_RUNS, _IDLE, _RUN_PROCESSES), _cycles)
RANKS = Check("ranks", "the file holds one process", (_PROCESSES,), _ranks)
START = Check("start", "host work begins after the profiler", (_OVER,), _start)
MEMORY = Check("memory", "memory events are there if asked for", (_MEMORY,), _memory, asks=False)
CLOCKS = Check("clocks", "times do not contradict each other", (_CLOCK,), _clocks)
