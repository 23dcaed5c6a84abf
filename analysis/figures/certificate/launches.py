"""Checks: every launch has its GPU work, and all GPU work has its call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from molprof.analysis.figures.certificate.model import Bound, Check, Doubt, Evidence, Facts, Group, lost
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_dicts
from molprof.common.values import counted

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
# What libkineto logs into the file when it could not keep all activities.
_LOSSES = re.compile(
    r"Exceeded max GPU buffer count|Dropped [1-9]\d* |stopped early\? = [1-9]|collection was stopped early"
)
_LOG_KEYS = ("INFO", "WARNING", "ERROR")


def _rows(engine: TraceProcessor, query: Query, place: str) -> Iterator[dict[str, Any]]:
    return (row for row in query_dicts(engine, query) if row["place"] == place)


def _evidence(row: dict[str, Any]) -> Evidence:
    return {key: value for key, value in row.items() if key != "place"}


def _missing_work(engine: TraceProcessor, info: TraceInfo, facts: Facts, place: str, text: str) -> Iterator[Doubt]:
    for row in _rows(engine, _WORK, place):
        launches, evidence = row["launches"], _evidence(row)
        reason = text.format(launches=counted(launches, "launch", "es"))
        if not facts.counts.kernels:
            yield from lost(("gpu_work", "gpu_time", "gpu_idle", "links"), reason, evidence)
            return
        yield Doubt("gpu_work", "bounded", reason, (facts.count("kernels", more=launches),), evidence)
        busy, idle = [], []
        for device in _rows(engine, _TIME, place):
            name = device["device"]
            busy_ns, idle_ns = facts.devices[name].busy_ns, facts.devices[name].idle_ns
            inside_ns, outside_ns = device["inside_ns"], device["outside_ns"]
            busy.append(Bound(f"devices.{name}.busy_ns", busy_ns, busy_ns, busy_ns + inside_ns + outside_ns))
            idle.append(Bound(f"devices.{name}.idle_ns", idle_ns - inside_ns, idle_ns, idle_ns + outside_ns))
        yield Doubt("gpu_time", "bounded", reason, tuple(busy), evidence)
        yield Doubt("gpu_idle", "bounded", reason, tuple(idle), evidence)
        yield Doubt("links", "bounded", reason, (facts.count("launches_without_gpu_work", less=launches),), evidence)
        if row["in_steps"] and facts.steps:
            yield Doubt("steps", "bounded", reason, (facts.per_step(more=row["in_steps"]),), evidence)


def _dropped(engine: TraceProcessor, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    yield from _missing_work(engine, info, facts, "middle", "{launches} between others without GPU work: dropped")
    for row in _rows(engine, _CALL, "later"):
        reason = f"{counted(row['kernels'], 'kernel')} without recorded call: dropped"
        evidence = _evidence(row)
        yield Doubt("launches", "bounded", reason, (facts.count("launches", more=row["calls"]),), evidence)
        yield Doubt("links", "bounded", reason, (facts.count("kernels_without_call", less=row["kernels"]),), evidence)
        if facts.steps:
            yield Doubt("steps", "bounded", reason, (facts.per_step(more=row["kernels"]),), evidence)
    if lines := _losses(info):
        kernels = facts.count("kernels", more=None)
        evidence = {"log": lines[0]}
        yield Doubt("gpu_work", "bounded", "the profiler's log says that it dropped activities", (kernels,), evidence)


def _losses(info: TraceInfo) -> list[str]:
    logs = [info.keys.get(key) for key in _LOG_KEYS]
    lines = [line for log in logs if isinstance(log, list) for line in log if isinstance(line, str)]
    return [line for line in lines if _LOSSES.search(line)]


def _no_calls(engine: TraceProcessor, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    for row in _rows(engine, _CALL, "start"):
        evidence = _evidence(row)
        reason = f"{counted(row['kernels'], 'kernel')} launched before the recording"
        yield Doubt("gpu_work", "bounded", reason, (facts.count("kernels", less=row["kernels"]),), evidence)
        bound = facts.count("kernel_time_ns", less=row["kernel_time_ns"])
        yield Doubt("gpu_time", "bounded", reason, (bound,), evidence)
    for row in _rows(engine, _CALL, "unnumbered"):
        evidence = _evidence(row)
        reason = f"{counted(row['kernels'], 'kernel')} without correlation number"
        yield from lost(facts.among("links", "steps", "graphs"), reason, evidence)
    for row in _rows(engine, _CALL, "all"):
        evidence = _evidence(row)
        known = facts.counts.launches + facts.counts.graph_launches
        reason = "no GPU work has the number of a recorded call" if known else "no launch calls are recorded"
        groups: list[Group] = [] if known else ["launches"]
        yield from lost((*groups, "links", *(("steps",) if facts.steps else ())), reason, evidence)


STARTED_LATE = Check(
    "started_late",
    "the first launches have GPU work",
    (_WORK,),
    partial(_missing_work, place="start", text="{launches} at the start without GPU work: recorded too late"),
)
CUT_END = Check(
    "cut_end",
    "the last launches have GPU work",
    (_WORK,),
    partial(_missing_work, place="end", text="{launches} at the end without GPU work: recording cut"),
)
NO_WORK = Check(
    "no_work",
    "launches have GPU work at all",
    (_WORK,),
    partial(_missing_work, place="all", text="{launches}, all without GPU work"),
)
DROPPED = Check("dropped", "no activities were dropped", (_WORK, _CALL), _dropped)
EARLIER_WORK = Check("earlier_work", "GPU work has its call", (_CALL,), _no_calls)
