"""Checks of launches and GPU work: does each have its counterpart?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from molprof.analysis.figures.certificate.check import CheckedTrace, bounded, check, lost
from molprof.analysis.figures.model import Bound, Doubt, Evidence, Group
from molprof.analysis.trace_processor.package import Query, query_dicts, query_row, query_rows
from molprof.common.recorded_processes import PROCESSES_KEY
from molprof.common.values import count_text, counted, time_text

_WORK = Query(
    "certificate_launches",
    "SELECT position, launches, in_steps, first_ts, last_ts FROM molprof_missing_work ORDER BY first_ts, position",
)
_TIME = Query(
    "certificate_time",
    "SELECT position, device, inside_ns, outside_ns FROM molprof_missing_time ORDER BY position, device",
)
_CALL = Query(
    "certificate_launches",
    "SELECT position, kernels, calls, kernel_time_ns, first_ts FROM molprof_missing_call ORDER BY first_ts, position",
)
_STREAMS = Query(
    "certificate_overlap",
    "SELECT device, stream, overlaps, overlap_ns, longest_ns, time_ns, union_ns"
    " FROM molprof_stream_overlap ORDER BY overlap_ns DESC, device, stream",
)
_OVERRUNS = Query(
    "certificate_overlap",
    "SELECT device, SUM(category = 'kernel') AS kernels, SUM(IIF(category = 'kernel', dur, 0)) AS kernel_time_ns,"
    " COUNT() AS count, SUM(dur) AS time_ns, MAX(recorded_ns) AS longest_ns"
    " FROM molprof_overrun GROUP BY device ORDER BY device",
)
_SYNCS = Query(
    "certificate_time", "SELECT COUNT() AS syncs, SUM(dur) AS time_ns, MAX(dur) AS longest_ns FROM molprof_long_sync"
)
_GRAPHS = Query(
    "certificate_graphs",
    "SELECT (SELECT SUM(without_work) FROM molprof_graph_without_work) AS without_work, SUM(kernels) AS kernels"
    " FROM molprof_graph_launch",
)
_PARTS = Query(
    "certificate_graphs",
    "SELECT device, launches, absent, time_ns FROM molprof_graph_incomplete ORDER BY device",
)
_STEPS = Query(
    "certificate_steps",
    "SELECT source, kind, steps, steps_without_work, steps_with_launches_only, kernels, gpu_ns, most_kernels,"
    " most_gpu_ns FROM molprof_uneven_step ORDER BY source, kind",
)
_INFERRED = Query(
    "steps",
    "SELECT source, COUNT() AS steps FROM molprof_any_step WHERE NOT is_whole GROUP BY source ORDER BY source",
)
_SEVERAL = Query(
    "certificate_launches", "SELECT name, launches, more_work FROM molprof_launch_of_several ORDER BY name"
)
_NUMBERS = Query(
    "certificate_launches", "SELECT rank, correlation, calls FROM molprof_number_of_several ORDER BY rank, correlation"
)
# What libkineto logs into the file when it could not keep all activities.
_LOSSES = re.compile(
    r"Exceeded max GPU buffer count|Dropped [1-9]\d* |stopped early\? = [1-9]|collection was stopped early"
)
_LOG_KEYS = ("INFO", "WARNING", "ERROR")
_OF_GRAPHS: tuple[Group, ...] = ("graphs", "gpu_work", "gpu_time", "gpu_idle")
_MISSING: tuple[Group, ...] = ("gpu_work", "gpu_time", "gpu_idle", "links", "steps")


def _missing_work(trace: CheckedTrace, position: str, text: str) -> Iterator[Doubt]:
    for row in trace.rows_at(_WORK, position):
        launches = row["launches"]
        reason = counted(launches, "launch", "es") + text
        if not trace.counts.kernels:
            yield from lost(("gpu_work", "gpu_time", "gpu_idle", "links"), reason, row)
            return
        yield bounded("gpu_work", reason, row, trace.count("kernels", more=launches))
        yield from _missing_time(trace, position, reason, row)
        yield bounded("links", reason, row, trace.count("launches_without_gpu_work", less=launches))
        if row["in_steps"] and trace.steps:
            yield bounded("steps", reason, row, trace.per_step(more=row["in_steps"]))


def _missing_time(trace: CheckedTrace, position: str, reason: str, evidence: Evidence) -> Iterator[Doubt]:
    """Yield doubts where unrecorded work may have filled idle time of devices, by position."""
    busy, idle = [], []
    for device in trace.rows_at(_TIME, position):
        name = device["device"]
        busy_ns, idle_ns = trace.devices[name].busy_ns, trace.devices[name].idle_ns
        inside_ns, outside_ns = device["inside_ns"], device["outside_ns"]
        busy.append(Bound(f"devices.{name}.busy_ns", busy_ns, busy_ns, busy_ns + inside_ns + outside_ns))
        idle.append(Bound(f"devices.{name}.idle_ns", idle_ns - inside_ns, idle_ns, idle_ns + outside_ns))
    yield bounded("gpu_time", reason, evidence, *busy)
    yield bounded("gpu_idle", reason, evidence, *idle)


@check("started_late", "the first launches have GPU work", _MISSING, _WORK)
def _started_late(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report a late start: the profiler drops the first kernels (pytorch/pytorch#192021)."""
    yield from _missing_work(trace, "start", " at the start without GPU work: recorded too late")


@check("cut_end", "the last launches have GPU work", _MISSING, _WORK)
def _cut_end(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report a cut end: records that arrive while the profiler stops are lost (pytorch/kineto#1564)."""
    yield from _missing_work(trace, "end", " at the end without GPU work: recording cut")


@check("no_work", "launches have GPU work at all", ("gpu_work", "gpu_time", "gpu_idle", "links"), _WORK)
def _no_work(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report traces with launches alone (intel/torch-xpu-ops#3985)."""
    yield from _missing_work(trace, "all", ", all without GPU work")


@check("dropped", "no activities were dropped", (*_MISSING, "launches"), _WORK)
def _dropped(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report records dropped for lack of memory (pytorch/kineto#116), or lost (ROCm/roctracer#100)."""
    yield from _missing_work(trace, "middle", " between others without GPU work: dropped")
    for row in trace.rows_at(_CALL, "later"):
        reason = f"{counted(row['kernels'], 'kernel')} without recorded call: dropped"
        yield bounded("launches", reason, row, trace.count("launches", more=row["calls"]))
        yield bounded("links", reason, row, trace.count("kernels_without_call", less=row["kernels"]))
        if trace.steps:
            yield bounded("steps", reason, row, trace.per_step(more=row["kernels"]))
    logs = [trace.info.keys.get(key) for key in _LOG_KEYS]
    lines = [line for log in logs if isinstance(log, list) for line in log if isinstance(line, str)]
    if losses := [line for line in lines if _LOSSES.search(line)]:
        reason = "the profiler's log says that it dropped activities"
        yield bounded("gpu_work", reason, {"log": losses[0]}, trace.count("kernels", more=None))


@check(
    "numbers", "a number is of one call, and a launch starts one kernel", ("gpu_work", "gpu_time", "links", "steps"),
    _NUMBERS,
)  # fmt: skip
def _numbers(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report shared numbers: ROCm gives kernels of several launches one number (pytorch/kineto#1416)."""
    if several := query_rows(trace.engine, _NUMBERS)[1]:
        reason = f"{counted(len(several), 'correlation number')} of several calls"
        yield from (bounded(group, reason, {"numbers": len(several)}) for group in trace.among("links", "steps"))
    counts = trace.counts
    # As many kernels have a call where each launch starts one. Launches of several are looked for only where more have.
    most = counts.launches - counts.launches_without_gpu_work + (query_row(trace.engine, _GRAPHS)["kernels"] or 0)
    rows = query_dicts(trace.engine, _SEVERAL) if counts.kernels_with_call > most else []
    if rows:
        launches, more = (sum(row[name] for row in rows) for name in ("launches", "more_work"))
        reason = f"{counted(launches, 'launch', 'es')} with more than one piece of GPU work"
        evidence: Evidence = {"launches": launches, "more_work": more}
        yield bounded("gpu_work", reason, evidence, trace.count("kernels", less=more))
        yield from (bounded(group, reason, evidence) for group in trace.among("gpu_time", "links", "steps"))


@check("earlier_work", "GPU work has its call", ("gpu_work", "gpu_time", "launches", "links", "steps", "graphs"), _CALL)
def _earlier_work(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report work queued before the recording (h100_qwen1.5_0.5b), or with a lost number (ROCm/roctracer#100)."""
    for row in trace.rows_at(_CALL, "start"):
        reason = f"{counted(row['kernels'], 'kernel')} launched before the recording"
        yield bounded("gpu_work", reason, row, trace.count("kernels", less=row["kernels"]))
        yield bounded("gpu_time", reason, row, trace.count("kernel_time_ns", less=row["kernel_time_ns"]))
    for row in trace.rows_at(_CALL, "unnumbered"):
        reason = f"{counted(row['kernels'], 'kernel')} without correlation number"
        yield from lost(trace.among("links", "steps", "graphs"), reason, row)
    for row in trace.rows_at(_CALL, "all"):
        launches = trace.counts.launches + trace.counts.graph_launches
        reason = "no GPU work has the number of a recorded call" if launches else "no launch calls are recorded"
        groups: list[Group] = [] if launches else ["launches"]
        yield from lost((*groups, "links", *(("steps",) if trace.steps else ())), reason, row)


@check("overlap", "work on a stream does not overlap", ("gpu_time",), _STREAMS)
def _overlap(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report kernels that overlap the one before (b200_vllm_eager), or are far too long (AMD-AGI/TraceLens#669)."""
    if not (streams := query_dicts(trace.engine, _STREAMS)):
        return
    overlaps, overlap_ns = (sum(stream[name] for stream in streams) for name in ("overlaps", "overlap_ns"))
    where = "a stream" if len(streams) == 1 else f"{len(streams)} streams"
    time_ns = trace.counts.kernel_time_ns
    bounds = [Bound("counts.kernel_time_ns", max(0, time_ns - overlap_ns), time_ns, time_ns)]
    for stream in streams:
        name = f"streams.{stream['device']}/{stream['stream']}.time_ns"
        bounds.append(Bound(name, stream["union_ns"], stream["time_ns"], stream["time_ns"]))
    longest_ns = max(stream["longest_ns"] for stream in streams)
    evidence = {"overlaps": overlaps, "overlap_ns": overlap_ns, "longest_ns": longest_ns}
    reason = f"{counted(overlaps, 'overlap')} of work on {where} (union against sum)"
    yield bounded("gpu_time", reason, evidence, *bounds)


@check("overruns", "work ends before what follows it", ("gpu_time", "gpu_idle"), _OVERRUNS)
def _overruns(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report durations of seconds that overlap later work (AMD-AGI/TraceLens#669): cut where the next work starts."""
    rows = query_dicts(trace.engine, _OVERRUNS)
    if not rows:
        return
    evidence: Evidence = {name: sum(row[name] for row in rows) for name in ("count", "kernels", "time_ns")}
    evidence["longest_ns"] = longest_ns = max(row["longest_ns"] for row in rows)
    reason = (
        f"{counted(sum(row['count'] for row in rows), 'piece')} of GPU work of up to {time_text(longest_ns)} cannot "
        "have lasted so long: cut where the next on the stream starts"
    )
    time_ns = trace.counts.kernel_time_ns
    low_ns = time_ns - sum(row["kernel_time_ns"] for row in rows)
    busy, idle = [], []
    for row in rows:
        device = trace.devices[row["device"]]
        busy_ns, idle_ns, cut_ns = device.busy_ns, device.idle_ns, min(row["time_ns"], device.busy_ns)
        busy.append(Bound(f"devices.{row['device']}.busy_ns", busy_ns - cut_ns, busy_ns, busy_ns))
        idle.append(Bound(f"devices.{row['device']}.idle_ns", idle_ns, idle_ns, idle_ns + cut_ns))
    yield bounded("gpu_time", reason, evidence, Bound("counts.kernel_time_ns", low_ns, time_ns, time_ns), *busy)
    yield bounded("gpu_idle", reason, evidence, *idle)


@check("long_syncs", "no sync outlasts the recorded work", ("gpu_work", "gpu_time", "gpu_idle"), _SYNCS)
def _long_syncs(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report long syncs: of a loop in a graph, only the first round is recorded (pytorch/kineto#1062)."""
    row = query_row(trace.engine, _SYNCS)
    # Of work that launches without a record started, the checks of launches tell.
    if not row["syncs"] or not any(time["inside_ns"] + time["outside_ns"] for time in trace.rows_at(_TIME, "sync")):
        return
    syncs = f"{counted(row['syncs'], 'host sync')} {'goes' if row['syncs'] == 1 else 'go'} on"
    reason = f"{syncs} for up to {time_text(row['longest_ns'])} after the last recorded work: what ran is not recorded"
    if trace.counts.graph_launches:  # else each launch is one kernel, or a check of launches doubts it
        yield bounded("gpu_work", reason, row, trace.count("kernels", more=None))
        yield bounded("gpu_time", reason, row, trace.count("kernel_time_ns", more=None))
    yield from _missing_time(trace, "sync", reason, row)


@check("graphs", "graph launches have their kernels", (*_OF_GRAPHS, "steps"), _GRAPHS)
def _graphs(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report graphs without recorded kernels (AMD-AGI/TraceLens#972, sgl-project/sglang#35390)."""
    row = query_row(trace.engine, _GRAPHS)
    without, all_launches = row["without_work"], trace.counts.graph_launches
    if not without:
        return
    evidence = {"graph_launches": all_launches, "without_work": without}
    reason = f"{counted(without, 'graph launch', 'es')} of {count_text(all_launches)} without GPU work"
    if without == all_launches:
        yield from lost(("graphs",), reason, evidence)
    else:
        mean = row["kernels"] / all_launches  # graphs differ, so nothing limits what is missing
        yield bounded("graphs", reason, evidence, Bound("graphs.kernels_per_graph", mean, mean, None))
    if not trace.devices:
        yield from lost(("gpu_work", "gpu_time", "gpu_idle"), reason, evidence)
        return
    yield from _absent_from_graphs(trace, reason, evidence, most=None)


@check("graph_parts", "graph launches have all of their work", (*_OF_GRAPHS, "steps"), _PARTS)
def _graph_parts(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report incomplete graphs: ROCm loses some of their kernels (ROCm/rocm-systems#4221)."""
    if not (rows := query_dicts(trace.engine, _PARTS)):
        return
    evidence = {name: sum(row[name] or 0 for row in rows) for name in ("launches", "absent", "time_ns")}
    most = None if any(row["absent"] is None for row in rows) else evidence["absent"]
    of = count_text(trace.counts.graph_launches)
    reason = f"{counted(evidence['launches'], 'graph launch', 'es')} of {of} with only a part of its work"
    mean = query_row(trace.engine, _GRAPHS)["kernels"] / trace.counts.graph_launches
    high = None if most is None else mean + most / trace.counts.graph_launches
    yield bounded("graphs", reason, evidence, Bound("graphs.kernels_per_graph", mean, mean, high))
    yield from _absent_from_graphs(trace, reason, evidence, most)


def _absent_from_graphs(trace: CheckedTrace, reason: str, evidence: Evidence, most: int | None) -> Iterator[Doubt]:
    """Yield doubts where up to `most` kernels of graphs are missing; None: unknown. Idle time may be theirs."""
    yield bounded("gpu_work", reason, evidence, trace.count("kernels", more=most))
    yield bounded("gpu_time", reason, evidence, trace.count("kernel_time_ns", more=None))
    idle = (Bound(f"devices.{name}.idle_ns", 0, device.idle_ns, None) for name, device in trace.devices.items())
    yield bounded("gpu_idle", reason, evidence, *idle)
    if trace.steps:
        yield bounded("steps", reason, evidence, trace.per_step(more=most))


@check("inferred_steps", "where steps begin and end is recorded", ("steps",), _INFERRED)
def _inferred_steps(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report inferred steps: the scheduler may run in a process without profiler, and own loops mark nothing.

    So it is in b200_vllm_eager and mi300x_sglang_qwen3_8b_decode.
    """
    for row in query_dicts(trace.engine, _INFERRED):
        steps = f"{counted(row['steps'], 'step')} of {row['source']} taken from one"
        if row["source"] == "transformers":
            yield bounded("steps", f"{steps} forward to the next: no call of generate is recorded", row)
        else:
            where = " in its process" if PROCESSES_KEY in trace.info.keys else ""
            yield bounded("steps", f"{steps} annotation to the next: no scheduler is recorded{where}", row)


@check("steps", "all steps of a kind have GPU work", ("steps",), _STEPS)
def _steps(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report kinds of steps of which only some have work, unlike a whole trace (AMD-AGI/TraceLens#972)."""
    for row in query_dicts(trace.engine, _STEPS):
        steps, without = row["steps"], row["steps_without_work"]
        kind = f"{row['kind']} steps" if row["kind"] else "steps"
        bounds = []
        for name, part in (("kernels_per_step", "kernels"), ("gpu_per_step_ns", "gpu_ns")):
            # At most, the steps without work were like the largest of the others.
            low, high = row[part] / steps, (row[part] + without * row[f"most_{part}"]) / steps
            bounds.append(Bound(f"steps.{row['kind'] or row['source']}.{name}", low, low, high))
        reason = f"{count_text(without)} of {count_text(steps)} {kind} without GPU work"
        yield bounded("steps", reason, row, *bounds)
