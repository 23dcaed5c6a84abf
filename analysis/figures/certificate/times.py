"""Checks of times: can the clocks tell them, and do they agree?"""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.figures.certificate.check import CheckedTrace, bounded, check, lost
from molprof.analysis.figures.model import Bound, Doubt, Evidence
from molprof.analysis.reader import ClockTicks
from molprof.analysis.trace_processor.package import Query, query_dicts, query_row, query_rows
from molprof.common.recorded_processes import PROCESSES_KEY, from_json
from molprof.common.values import count_text, counted, time_text

_CLOCK = Query(
    "certificate_clocks",
    "SELECT early_work, earliest_ns, late_syncs, latest_ns, least_delay_ns, least_slack_ns,"
    " mean_delay_ns FROM molprof_clock",
)
_PROCESSES = Query(
    "certificate_ranks", "SELECT pid, name, operators, gpu_calls FROM molprof_host_process ORDER BY pid, name"
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


@check("resolution", "the clocks resolve the times", ("gpu_time", "gpu_idle", "links", "host_time"), _LENGTHS)
def _resolution(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report coarse clocks: a time may be off by a step (h800_ep64_dualpipe), or be 0 (pytorch/kineto#109)."""
    gpu, host = trace.info.condition.gpu, trace.info.condition.host
    if gpu is not None:
        yield from _of_gpu(trace, gpu)
    if host is not None and _is_coarse(trace, host):
        reason = f"the host's times are multiples of {time_text(host.step_ns)}"
        off_ns = host.step_ns * host.events
        yield bounded("host_time", reason, _evidence(host), _within("host_time_ns", host.time_ns, off_ns))


def _of_gpu(trace: CheckedTrace, clock: ClockTicks) -> Iterator[Doubt]:
    evidence, step = _evidence(clock), clock.step_ns
    idle_ns = sum(device.idle_ns for device in trace.devices.values())
    if clock.without_length == clock.events:
        yield from lost(("gpu_time", "gpu_idle"), "no GPU work has a length", evidence)
    elif _is_coarse(trace, clock):
        reason = f"the GPU's times are multiples of {time_text(step)}"
        kernels = _within("counts.kernel_time_ns", trace.counts.kernel_time_ns, step * clock.events)
        yield bounded("gpu_time", reason, evidence, kernels, *_of_devices(trace, "busy_ns", step))
        yield bounded("gpu_idle", reason, evidence, *_of_devices(trace, "idle_ns", step))
        if (mean_ns := query_row(trace.engine, _CLOCK)["mean_delay_ns"]) is not None:
            host = trace.info.condition.host
            off_ns = step + (0 if host is None else host.step_ns)
            bound = Bound("mean_delay_ns", mean_ns - off_ns, mean_ns, mean_ns + off_ns)
            yield bounded("links", reason, evidence, bound)
    elif clock.start_step_ns > max(step, _FINE * idle_ns / clock.events):  # written with fewer digits than lengths
        reason = f"the starts of GPU work are multiples of {time_text(clock.start_step_ns)}"
        yield bounded("gpu_idle", reason, evidence, *_of_devices(trace, "idle_ns", clock.start_step_ns))
    if 0 < clock.without_length < clock.events and step < _COARSE_NS:
        reason = f"{count_text(clock.without_length)} of {counted(clock.events, 'piece')} of GPU work without length"
        yield bounded("gpu_time", reason, evidence, trace.count("kernel_time_ns", more=None))
        devices = trace.devices.items()
        idle = [Bound(f"devices.{name}.idle_ns", 0, device.idle_ns, device.idle_ns) for name, device in devices]
        yield bounded("gpu_idle", reason, evidence, *idle)


def _is_coarse(trace: CheckedTrace, clock: ClockTicks) -> bool:
    """Return True if the clock's step matters, or shows rounding: torch records ns since it writes a unit."""
    rounded = clock.is_float32 or (clock.step_ns >= _COARSE_NS and "displayTimeUnit" in trace.info.keys)
    return clock.step_ns > 1 and (rounded or clock.step_ns * clock.events > _FINE * clock.time_ns)


def _of_devices(trace: CheckedTrace, figure: str, step_ns: int) -> Iterator[Bound]:
    """Yield the bounds of a time of each device, whose pieces of work may be off by a step each."""
    counts = dict(query_rows(trace.engine, _DEVICES)[1])
    for name, device in trace.devices.items():
        yield _within(f"devices.{name}.{figure}", getattr(device, figure), counts[name] * step_ns)


def _within(figure: str, time_ns: int, off_ns: int) -> Bound:
    return Bound(figure, max(0, time_ns - off_ns), time_ns, time_ns + off_ns)


def _evidence(clock: ClockTicks) -> Evidence:
    return {"step_ns": clock.step_ns, "start_step_ns": clock.start_step_ns, "events": clock.events}


@check("clocks", "times do not contradict each other", ("links", "gpu_idle"), _CLOCK)
def _clocks(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report clocks that disagree: a constant offset is bounded by mean delay and slack; a jump is not.

    Work that begins before its call (pytorch/pytorch#192021), or ends after a sync (mi300_qwen1.5_0.5b,
    AMD-AGI/TraceLens#669).
    """
    row = query_row(trace.engine, _CLOCK)
    if not row["early_work"] and not row["late_syncs"]:
        return
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


@check("ranks", "the file holds one process", ("host_time", "gpu_time", "gpu_idle"), _PROCESSES)
def _ranks(trace: CheckedTrace) -> Iterator[Doubt]:
    """Doubt times of merged processes with other clocks or a common device, as of SGLang (sgl-project/sglang#11413)."""
    processes = query_dicts(trace.engine, _PROCESSES)
    if len(processes) < 2:
        return
    job = trace.info.keys.get("distributedInfo")
    world_size = job.get("world_size") if isinstance(job, dict) else None
    evidence = {"processes": len(processes), "world_size": world_size}
    reason = f"{len(processes)} processes (ranks) in one file"
    told = from_json(trace.info.keys.get(PROCESSES_KEY, []))
    if not told or any(process.clock_moved_ns is None for process in told):
        yield bounded("host_time", f"{reason}: their clocks are not aligned", evidence)
    if 0 < len(trace.devices) < sum(bool(process["gpu_calls"]) for process in processes):
        why = f"{reason} share {counted(len(trace.devices), 'device number')}"
        yield from lost(("gpu_time", "gpu_idle"), why, evidence)
