"""Checks of launches and GPU work: has each its other half?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from molprof.analysis.figures.certificate.check import Facts, bounded, check, lost
from molprof.analysis.figures.model import Bound, Doubt, Evidence, Group
from molprof.analysis.trace_processor.package import Query, query_dicts, query_row, query_rows
from molprof.common.values import count_text, counted

_WORK = Query(
    "certificate_launches",
    "SELECT place, launches, in_steps, first_ts, last_ts FROM molprof_missing_work ORDER BY first_ts, place",
)
_TIME = Query(
    "certificate_time",
    "SELECT place, device, inside_ns, outside_ns FROM molprof_missing_time ORDER BY place, device",
)
_CALL = Query(
    "certificate_launches",
    "SELECT place, kernels, calls, kernel_time_ns, first_ts FROM molprof_missing_call ORDER BY first_ts, place",
)
_STREAMS = Query(
    "certificate_overlap",
    "SELECT device, stream, overlaps, overlap_ns, longest_ns, time_ns, union_ns"
    " FROM molprof_stream_overlap ORDER BY overlap_ns DESC, device, stream",
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


def _missing_work(facts: Facts, place: str, text: str) -> Iterator[Doubt]:
    for row in facts.rows_at(_WORK, place):
        launches = row["launches"]
        reason = counted(launches, "launch", "es") + text
        if not facts.counts.kernels:
            yield from lost(("gpu_work", "gpu_time", "gpu_idle", "links"), reason, row)
            return
        yield bounded("gpu_work", reason, row, facts.count("kernels", more=launches))
        busy, idle = [], []
        for device in facts.rows_at(_TIME, place):
            name = device["device"]
            busy_ns, idle_ns = facts.devices[name].busy_ns, facts.devices[name].idle_ns
            inside_ns, outside_ns = device["inside_ns"], device["outside_ns"]
            busy.append(Bound(f"devices.{name}.busy_ns", busy_ns, busy_ns, busy_ns + inside_ns + outside_ns))
            idle.append(Bound(f"devices.{name}.idle_ns", idle_ns - inside_ns, idle_ns, idle_ns + outside_ns))
        yield bounded("gpu_time", reason, row, *busy)
        yield bounded("gpu_idle", reason, row, *idle)
        yield bounded("links", reason, row, facts.count("launches_without_gpu_work", less=launches))
        if row["in_steps"] and facts.steps:
            yield bounded("steps", reason, row, facts.per_step(more=row["in_steps"]))


check("started_late", "the first launches have GPU work", _WORK)(
    partial(_missing_work, place="start", text=" at the start without GPU work: recorded too late")
)
check("cut_end", "the last launches have GPU work", _WORK)(
    partial(_missing_work, place="end", text=" at the end without GPU work: recording cut")
)
check("no_work", "launches have GPU work at all", _WORK)(
    partial(_missing_work, place="all", text=", all without GPU work")
)


@check("dropped", "no activities were dropped", _WORK, _CALL)
def _dropped(facts: Facts) -> Iterator[Doubt]:
    yield from _missing_work(facts, "middle", " between others without GPU work: dropped")
    for row in facts.rows_at(_CALL, "later"):
        reason = f"{counted(row['kernels'], 'kernel')} without recorded call: dropped"
        yield bounded("launches", reason, row, facts.count("launches", more=row["calls"]))
        yield bounded("links", reason, row, facts.count("kernels_without_call", less=row["kernels"]))
        if facts.steps:
            yield bounded("steps", reason, row, facts.per_step(more=row["kernels"]))
    logs = [facts.info.keys.get(key) for key in _LOG_KEYS]
    lines = [line for log in logs if isinstance(log, list) for line in log if isinstance(line, str)]
    if losses := [line for line in lines if _LOSSES.search(line)]:
        reason = "the profiler's log says that it dropped activities"
        yield bounded("gpu_work", reason, {"log": losses[0]}, facts.count("kernels", more=None))


@check("numbers", "a number is of one call, and a launch starts one kernel", _NUMBERS)
def _numbers(facts: Facts) -> Iterator[Doubt]:
    if several := query_rows(facts.engine, _NUMBERS)[1]:
        reason = f"{counted(len(several), 'correlation number')} of several calls"
        yield from (bounded(group, reason, {"numbers": len(several)}) for group in facts.among("links", "steps"))
    counts = facts.counts
    # As many kernels have a call where each launch starts one. Launches of several are looked for only where more have.
    most = counts.launches - counts.launches_without_gpu_work + (query_row(facts.engine, _GRAPHS)["kernels"] or 0)
    rows = query_dicts(facts.engine, _SEVERAL) if counts.kernels_with_call > most else []
    if rows:
        launches, more = (sum(row[name] for row in rows) for name in ("launches", "more_work"))
        reason = f"{counted(launches, 'launch', 'es')} with more than one piece of GPU work"
        evidence: Evidence = {"launches": launches, "more_work": more}
        yield bounded("gpu_work", reason, evidence, facts.count("kernels", less=more))
        yield from (bounded(group, reason, evidence) for group in facts.among("gpu_time", "links", "steps"))


@check("earlier_work", "GPU work has its call", _CALL)
def _earlier_work(facts: Facts) -> Iterator[Doubt]:
    for row in facts.rows_at(_CALL, "start"):
        reason = f"{counted(row['kernels'], 'kernel')} launched before the recording"
        yield bounded("gpu_work", reason, row, facts.count("kernels", less=row["kernels"]))
        yield bounded("gpu_time", reason, row, facts.count("kernel_time_ns", less=row["kernel_time_ns"]))
    for row in facts.rows_at(_CALL, "unnumbered"):
        reason = f"{counted(row['kernels'], 'kernel')} without correlation number"
        yield from lost(facts.among("links", "steps", "graphs"), reason, row)
    for row in facts.rows_at(_CALL, "all"):
        known = facts.counts.launches + facts.counts.graph_launches
        reason = "no GPU work has the number of a recorded call" if known else "no launch calls are recorded"
        groups: list[Group] = [] if known else ["launches"]
        yield from lost((*groups, "links", *(("steps",) if facts.steps else ())), reason, row)


@check("overlap", "work on a stream does not overlap", _STREAMS)
def _overlap(facts: Facts) -> Iterator[Doubt]:
    if not (streams := query_dicts(facts.engine, _STREAMS)):
        return
    overlaps, overlap_ns = (sum(stream[name] for stream in streams) for name in ("overlaps", "overlap_ns"))
    where = "a stream" if len(streams) == 1 else f"{len(streams)} streams"
    time_ns = facts.counts.kernel_time_ns
    bounds = [Bound("counts.kernel_time_ns", max(0, time_ns - overlap_ns), time_ns, time_ns)]
    for stream in streams:
        name = f"streams.{stream['device']}/{stream['stream']}.time_ns"
        bounds.append(Bound(name, stream["union_ns"], stream["time_ns"], stream["time_ns"]))
    longest_ns = max(stream["longest_ns"] for stream in streams)
    evidence = {"overlaps": overlaps, "overlap_ns": overlap_ns, "longest_ns": longest_ns}
    reason = f"{counted(overlaps, 'overlap')} of work on {where} (union against sum)"
    yield bounded("gpu_time", reason, evidence, *bounds)


@check("graphs", "graph launches have their kernels", _GRAPHS)
def _graphs(facts: Facts) -> Iterator[Doubt]:
    row = query_row(facts.engine, _GRAPHS)
    without, all_launches = row["without_work"], facts.counts.graph_launches
    if not without:
        return
    evidence = {"graph_launches": all_launches, "without_work": without}
    reason = f"{counted(without, 'graph launch', 'es')} of {count_text(all_launches)} without GPU work"
    if without == all_launches:
        yield from lost(("graphs",), reason, evidence)
    else:
        mean = row["kernels"] / all_launches  # graphs differ, so nothing limits what is missing
        yield bounded("graphs", reason, evidence, Bound("graphs.kernels_per_graph", mean, mean, None))
    if not facts.devices:
        yield from lost(("gpu_work", "gpu_time", "gpu_idle"), reason, evidence)
        return
    yield from _absent_from_graphs(facts, reason, evidence, most=None)


@check("graph_parts", "graph launches have all of their work", _PARTS)
def _graph_parts(facts: Facts) -> Iterator[Doubt]:
    if not (rows := query_dicts(facts.engine, _PARTS)):
        return
    evidence = {name: sum(row[name] or 0 for row in rows) for name in ("launches", "absent", "time_ns")}
    most = None if any(row["absent"] is None for row in rows) else evidence["absent"]
    of = count_text(facts.counts.graph_launches)
    reason = f"{counted(evidence['launches'], 'graph launch', 'es')} of {of} with only a part of its work"
    mean = query_row(facts.engine, _GRAPHS)["kernels"] / facts.counts.graph_launches
    high = None if most is None else mean + most / facts.counts.graph_launches
    yield bounded("graphs", reason, evidence, Bound("graphs.kernels_per_graph", mean, mean, high))
    yield from _absent_from_graphs(facts, reason, evidence, most)


def _absent_from_graphs(facts: Facts, reason: str, evidence: Evidence, most: int | None) -> Iterator[Doubt]:
    """Doubts where `most` kernels of graphs are absent; None: nobody knows how many. What seems idle may be theirs."""
    yield bounded("gpu_work", reason, evidence, facts.count("kernels", more=most))
    yield bounded("gpu_time", reason, evidence, facts.count("kernel_time_ns", more=None))
    idle = (Bound(f"devices.{name}.idle_ns", 0, device.idle_ns, None) for name, device in facts.devices.items())
    yield bounded("gpu_idle", reason, evidence, *idle)
    if facts.steps:
        yield bounded("steps", reason, evidence, facts.per_step(more=most))


@check("inferred_steps", "where steps begin and end is recorded", _INFERRED)
def _inferred_steps(facts: Facts) -> Iterator[Doubt]:
    """The scheduler may run in a process that was not profiled, and fills masks; a loop of the user's marks nothing."""
    for row in query_dicts(facts.engine, _INFERRED):
        steps = f"{counted(row['steps'], 'step')} of {row['source']} taken from one"
        if row["source"] == "transformers":
            yield bounded("steps", f"{steps} forward to the next: no call of generate is recorded", row)
        else:
            yield bounded("steps", f"{steps} annotation to the next: no scheduler is recorded", row)


@check("steps", "all steps of a kind have GPU work", _STEPS)
def _steps(facts: Facts) -> Iterator[Doubt]:
    """Either all steps of a kind have work or none has."""
    for row in query_dicts(facts.engine, _STEPS):
        steps, without = row["steps"], row["steps_without_work"]
        kind = f"{row['kind']} steps" if row["kind"] else "steps"
        bounds = []
        for name, part in (("kernels_per_step", "kernels"), ("gpu_per_step_ns", "gpu_ns")):
            # At most, the steps without work were like the largest of the others.
            low, high = row[part] / steps, (row[part] + without * row[f"most_{part}"]) / steps
            bounds.append(Bound(f"steps.{row['kind'] or row['source']}.{name}", low, low, high))
        reason = f"{count_text(without)} of {count_text(steps)} {kind} without GPU work"
        yield bounded("steps", reason, row, *bounds)
