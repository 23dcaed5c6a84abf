"""Checks of times: can the clocks tell them, and do they agree?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from molprof.analysis.figures.certificate.check import RUNS, Facts, bounded, check, lost
from molprof.analysis.figures.model import Bound, Doubt, Evidence
from molprof.analysis.reader import Clock
from molprof.analysis.trace_processor.package import Query, query_dicts, query_row, query_rows
from molprof.common.values import count_text, counted, time_text

_CLOCK = Query(
    "certificate_clocks",
    "SELECT early_work, earliest_ns, late_syncs, latest_ns, backward_calls, backward_ns, least_delay_ns,"
    " least_slack_ns, mean_delay_ns FROM molprof_clock",
)
_IDLE = Query("certificate_cycles", "SELECT device, idle_ns FROM molprof_idle_between_runs ORDER BY device")
_RUN_PROCESSES = Query("certificate_ranks", "SELECT COUNT() AS processes FROM molprof_host_process")
_PROCESSES = Query(
    "certificate_ranks", "SELECT pid, name, operators, gpu_calls FROM molprof_host_process ORDER BY pid, name"
)
_OVER = Query(
    "certificate_start",
    "SELECT COUNT() AS count, SUM(before_ns) FILTER (WHERE is_outermost) AS before_ns,"
    " SUM(dur) FILTER (WHERE is_outermost) AS time_ns, MAX(before_ns) AS longest_ns FROM molprof_work_over_start",
)
_LENGTHS = Query(
    "gpu_work",
    "SELECT category, COUNT() AS count, SUM(dur = 0) AS without_length, MIN(dur) AS least_ns, SUM(dur) AS time_ns"
    " FROM molprof_gpu_work GROUP BY category ORDER BY category",
)
_DEVICES = Query("devices", "SELECT device, count FROM molprof_device ORDER BY device")
# Clocks of a host and its GPU differ by microseconds. More than this is a jump, whatever offset would explain it.
_JUMP_NS = 1_000_000
# Of a sum of times: less is not worth a doubt.
_FINE = 0.01
# By such a clock, short work has no length.
_COARSE_NS = 1000


@check("resolution", "the clocks can tell the times", _LENGTHS, _DEVICES)
def _resolution(facts: Facts) -> Iterator[Doubt]:
    """Each time may be off by a step of its clock."""
    gpu, host = facts.info.condition.gpu, facts.info.condition.host
    if gpu is not None:
        yield from _of_gpu(facts, gpu)
    if host is not None and _is_coarse(facts, host):
        reason = f"the host's times are multiples of {time_text(host.step_ns)}"
        off_ns = host.step_ns * host.events
        yield bounded("host_time", reason, _evidence(host), _within("host_time_ns", host.time_ns, off_ns))


def _of_gpu(facts: Facts, clock: Clock) -> Iterator[Doubt]:
    evidence, step = _evidence(clock), clock.step_ns
    idle_ns = sum(device.idle_ns for device in facts.devices.values())
    if clock.without_length == clock.events:
        yield from lost(("gpu_time", "gpu_idle"), "no GPU work has a length", evidence)
    elif _is_coarse(facts, clock):
        reason = f"the GPU's times are multiples of {time_text(step)}"
        kernels = _within("counts.kernel_time_ns", facts.counts.kernel_time_ns, step * clock.events)
        yield bounded("gpu_time", reason, evidence, kernels, *_of_devices(facts, "busy_ns", step))
        yield bounded("gpu_idle", reason, evidence, *_of_devices(facts, "idle_ns", step))
        if (mean_ns := query_row(facts.engine, _CLOCK)["mean_delay_ns"]) is not None:
            host = facts.info.condition.host
            off_ns = step + (0 if host is None else host.step_ns)
            bound = Bound("mean_delay_ns", mean_ns - off_ns, mean_ns, mean_ns + off_ns)
            yield bounded("links", reason, evidence, bound)
    elif clock.start_step_ns > max(step, _FINE * idle_ns / clock.events):  # written with fewer digits than lengths
        reason = f"the starts of GPU work are multiples of {time_text(clock.start_step_ns)}"
        yield bounded("gpu_idle", reason, evidence, *_of_devices(facts, "idle_ns", clock.start_step_ns))
    if 0 < clock.without_length < clock.events and step < _COARSE_NS:
        reason = f"{count_text(clock.without_length)} of {counted(clock.events, 'piece')} of GPU work without length"
        yield bounded("gpu_time", reason, evidence, facts.count("kernel_time_ns", more=None))
        devices = facts.devices.items()
        idle = [Bound(f"devices.{name}.idle_ns", 0, device.idle_ns, device.idle_ns) for name, device in devices]
        yield bounded("gpu_idle", reason, evidence, *idle)


def _is_coarse(facts: Facts, clock: Clock) -> bool:
    """Whether its step matters, or shows that something rounded the times: torch records ns since it writes a unit."""
    rounded = clock.is_float32 or (clock.step_ns >= _COARSE_NS and "displayTimeUnit" in facts.info.keys)
    return clock.step_ns > 1 and (rounded or clock.step_ns * clock.events > _FINE * clock.time_ns)


def _of_devices(facts: Facts, figure: str, step_ns: int) -> Iterator[Bound]:
    """Bounds of a time of each device, whose pieces of work may be off by a step each."""
    counts = dict(query_rows(facts.engine, _DEVICES)[1])
    for name, device in facts.devices.items():
        yield _within(f"devices.{name}.{figure}", getattr(device, figure), counts[name] * step_ns)


def _within(figure: str, time_ns: int, off_ns: int) -> Bound:
    return Bound(figure, max(0, time_ns - off_ns), time_ns, time_ns + off_ns)


def _evidence(clock: Clock) -> Evidence:
    return {"step_ns": clock.step_ns, "start_step_ns": clock.start_step_ns, "events": clock.events}


@check("clocks", "times do not contradict each other", _CLOCK)
def _clocks(facts: Facts) -> Iterator[Doubt]:
    row = query_row(facts.engine, _CLOCK)
    if row["early_work"] or row["late_syncs"]:
        yield from _two_clocks(row)
    if row["backward_calls"]:
        cases = counted(row["backward_calls"], "case")
        reason = f"the host's clock goes back by up to {time_text(row['backward_ns'])} ({cases})"
        yield from lost(facts.among("host_time", "links", "gpu_idle"), reason, row)


def _two_clocks(row: dict[str, Any]) -> Iterator[Doubt]:
    """Of a constant offset, the mean delay between what explains all times; of a jump, nothing."""
    early_ns, late_ns = row["earliest_ns"], row["latest_ns"]
    slack_ns, delay_ns, mean_ns = row["least_slack_ns"], row["least_delay_ns"], row["mean_delay_ns"]
    reasons = []
    if early_ns:
        cases = counted(row["early_work"], "case")
        reasons.append(f"GPU work begins up to {time_text(early_ns)} before its call ({cases})")
    if late_ns:
        cases = counted(row["late_syncs"], "case")
        reasons.append(f"GPU work ends up to {time_text(late_ns)} after a sync that waited for it ({cases})")
    reason = "; ".join(reasons)
    explained = late_ns <= delay_ns if late_ns else slack_ns is None or early_ns <= slack_ns
    if (early_ns and late_ns) or not explained or max(early_ns, late_ns) > _JUMP_NS:
        yield from lost(("links", "gpu_idle"), f"the clocks jump: {reason}", row)
        return
    if late_ns:
        low, high = mean_ns - delay_ns, mean_ns - late_ns
    else:
        low, high = mean_ns + early_ns, None if slack_ns is None else mean_ns + slack_ns
    yield bounded("links", reason, row, Bound("mean_delay_ns", low, mean_ns, high))


@check("cycles", "the file holds one run of the profiler", RUNS, _IDLE, _RUN_PROCESSES)
def _cycles(facts: Facts) -> Iterator[Doubt]:
    runs = query_dicts(facts.engine, RUNS)
    # A merged file has a run for each process; the check of ranks reports those.
    if len(runs) > 1 and len(runs) > query_row(facts.engine, _RUN_PROCESSES)["processes"]:
        gap_ns = sum(run["gap_ns"] or 0 for run in runs)
        reason = f"{len(runs)} runs of the profiler in one file, {time_text(gap_ns)} between them"
        between = dict(query_rows(facts.engine, _IDLE)[1])
        bounds = [
            Bound(f"devices.{name}.idle_ns", device.idle_ns - between.get(name, 0), device.idle_ns, device.idle_ns)
            for name, device in facts.devices.items()
        ]
        yield bounded("gpu_idle" if bounds else "host_time", reason, {"runs": len(runs), "gap_ns": gap_ns}, *bounds)


@check("ranks", "the file holds one process", _PROCESSES)
def _ranks(facts: Facts) -> Iterator[Doubt]:
    """Several processes were merged, mostly the ranks of a job."""
    processes = query_dicts(facts.engine, _PROCESSES)
    if len(processes) < 2:
        return
    job = facts.info.keys.get("distributedInfo")
    world_size = job.get("world_size") if isinstance(job, dict) else None
    evidence = {"processes": len(processes), "world_size": world_size}
    reason = f"{len(processes)} processes (ranks) in one file"
    yield bounded("host_time", f"{reason}: their clocks are not aligned", evidence)
    if 0 < len(facts.devices) < sum(bool(process["gpu_calls"]) for process in processes):
        why = f"{reason} share {counted(len(facts.devices), 'device number')}"
        yield from lost(("gpu_time", "gpu_idle"), why, evidence)


@check("start", "host work begins after the profiler", _OVER)
def _start(facts: Facts) -> Iterator[Doubt]:
    row = query_row(facts.engine, _OVER)
    if row["count"]:
        cases, time_ns = counted(row["count"], "slice"), row["time_ns"]
        reason = f"{cases} of host work began up to {time_text(row['longest_ns'])} before the profiler"
        bound = Bound("work_over_start_ns", time_ns - row["before_ns"], time_ns, time_ns)
        yield bounded("host_time", reason, row, bound)
