"""Certificate: can the trace bear each group of figures? The checks, and what each finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from molprof.analysis.figures.model import (
    ALL,
    Bound,
    Certificate,
    Certified,
    Counts,
    DeviceTime,
    Doubt,
    Evidence,
    Group,
    combined,
    worst,
)
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_dicts, query_row, query_rows
from molprof.common.manifest import TRIMMED_KEY
from molprof.common.values import count_text, counted, time_text

_RECORDED = Query(
    "steps",
    """
SELECT
  EXISTS(SELECT 1 FROM slice WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset')) AS work,
  EXISTS(SELECT 1 FROM slice WHERE category IN ('cuda_runtime', 'cuda_driver')) AS calls,
  EXISTS(SELECT 1 FROM slice WHERE category IN ('cpu_op', 'user_annotation', 'cuda_runtime', 'cuda_driver')) AS host,
  EXISTS(SELECT 1 FROM molprof_any_step) AS steps
""",
)
_STEP_KERNELS = Query(
    "step_launches",
    "SELECT COUNT(step_id) AS steps, IFNULL(SUM(kernels) FILTER (WHERE step_id IS NOT NULL), 0) AS kernels"
    " FROM molprof_step_launch",
)
_EVENTS = Query(
    "operation_totals",
    "SELECT category, SUM(count) AS events FROM molprof_operation_total GROUP BY category ORDER BY category",
)
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
_STEPS = Query(
    "certificate_steps",
    "SELECT source, kind, steps, steps_without_work, steps_with_launches_only, kernels, gpu_ns, most_kernels,"
    " most_gpu_ns FROM molprof_uneven_step ORDER BY source, kind",
)
_CLOCK = Query(
    "certificate_clocks",
    "SELECT early_work, earliest_ns, late_syncs, latest_ns, backward_calls, backward_ns, least_delay_ns,"
    " least_slack_ns, mean_delay_ns FROM molprof_clock",
)
_RUNS = Query("certificate_cycles", "SELECT number, name, ts, dur, gap_ns FROM molprof_profiler_run ORDER BY number")
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
PASSES = "passes"  # the check that a capture whose passes differ does not pass
_MEMORY = Query("certificate_memory", "SELECT events FROM molprof_memory_event_count")
# What libkineto logs into the file when it could not keep all activities.
_LOSSES = re.compile(
    r"Exceeded max GPU buffer count|Dropped [1-9]\d* |stopped early\? = [1-9]|collection was stopped early"
)
_LOG_KEYS = ("INFO", "WARNING", "ERROR")
# Clocks of a host and its GPU differ by microseconds. More than this is a jump, whatever offset would explain it.
_JUMP_NS = 1_000_000


@dataclass(frozen=True)
class Facts:
    """What checks look at; they set bounds against counts and times of the whole trace, as the report has them."""

    engine: TraceProcessor
    info: TraceInfo
    counts: Counts
    devices: Mapping[str, DeviceTime]  # by device number as text
    steps: int
    step_kernels: int
    recorded: frozenset[Group]  # groups of which the trace holds anything

    def rows_at(self, query: Query, place: str) -> Iterator[dict[str, Any]]:
        """The rows of one place, without their `place`."""
        return (row for row in query_dicts(self.engine, query) if row.pop("place") == place)

    def among(self, *groups: Group) -> tuple[Group, ...]:
        """Those of the groups that the trace holds."""
        return tuple(group for group in groups if group in self.recorded)

    def count(self, name: str, less: int = 0, more: int | None = 0) -> Bound:
        """The count `name`, of which `less` may be too many and `more` missing; None: no limit is known."""
        value: int = getattr(self.counts, name)
        return Bound(f"counts.{name}", value - less, value, None if more is None else value + more)

    def per_step(self, more: int | None) -> Bound:
        """Kernels per step, where steps may have up to `more` kernels; None: no limit is known."""
        mean = self.step_kernels / self.steps
        high = None if more is None else (self.step_kernels + more) / self.steps
        return Bound("steps.kernels_per_step", mean, mean, high)


@dataclass(frozen=True)
class Check:
    """What can make figures uncertain, and how it is found: `find` yields doubts."""

    id: str
    title: str
    queries: tuple[Query, ...]  # the first is the evidence; without those that depend on the trace
    find: Callable[[Facts], Iterator[Doubt]]
    asks: bool = True  # `find` asks them; else the reader knows what they show


CHECKS: list[Check] = []


def queries() -> tuple[Query, ...]:
    """What `certify` asks of every trace."""
    return (_STEP_KERNELS, _RECORDED, *(query for check in CHECKS if check.asks for query in check.queries))


def certify(engine: TraceProcessor, info: TraceInfo, counts: Counts, devices: Mapping[str, DeviceTime]) -> Certificate:
    """The certificate of the trace that `load_trace(path, engine)` described by `info`.

    The package's SQL is registered already. Raises EngineError or QueryError of the trace processor.
    """
    found, steps = query_row(engine, _RECORDED), query_row(engine, _STEP_KERNELS)
    parts: dict[Group, bool] = {
        "gpu_work": found["work"],
        "gpu_time": found["work"],
        "gpu_idle": found["work"],
        "launches": found["calls"],
        "links": found["work"] and found["calls"],
        "graphs": counts.graph_launches > 0,
        "steps": found["steps"],
        "host_time": found["host"],
        "allocations": info.memory_events > 0,
    }
    recorded = frozenset(group for group, present in parts.items() if present)
    facts = Facts(engine, info, counts, devices, steps["steps"], steps["kernels"], recorded)
    doubts = [
        replace(doubt, check=check.id, query=check.queries[0].module, sql=check.queries[0].text)
        for check in CHECKS
        for doubt in check.find(facts)
    ]
    groups = tuple(_certified(group, doubts, facts) for group in ALL)
    return Certificate(worst(doubt.verdict for doubt in doubts), groups)


def _certified(group: Group, doubts: list[Doubt], facts: Facts) -> Certified:
    mine = tuple(doubt for doubt in doubts if doubt.group == group)
    if not mine and group not in facts.recorded:
        return Certified(group, "not_to_be_had", "not recorded", (), ())
    verdict = worst(doubt.verdict for doubt in mine)
    reason = "; ".join(dict.fromkeys(doubt.reason for doubt in mine)) or None
    bounds = combined(bound for doubt in mine for bound in doubt.bounds) if verdict == "bounded" else ()
    return Certified(group, verdict, reason, bounds, mine)


def _bounded(group: Group, reason: str, evidence: Evidence, *bounds: Bound) -> Doubt:
    return Doubt(group, "bounded", reason, bounds, evidence)


def _lost(groups: Iterable[Group], reason: str, evidence: Evidence) -> Iterator[Doubt]:
    """No figure of these groups is to be had."""
    return (Doubt(group, "not_to_be_had", reason, (), evidence) for group in groups)


_Find = Callable[[Facts], Iterator[Doubt]]


def _check(id_: str, title: str, *asked: Query, asks: bool = True) -> Callable[[_Find], _Find]:
    """The next check: each stands at the function that finds its doubts."""

    def declared(find: _Find) -> _Find:
        CHECKS.append(Check(id_, title, asked, find, asks))
        return find

    return declared


@_check("file", "the file is whole", _EVENTS, asks=False)
def _file(facts: Facts) -> Iterator[Doubt]:
    info = facts.info
    lost: Evidence = {"lost_events": info.lost_events}
    reasons = {} if info.complete else {"the file is damaged, and only its whole part was read": lost}
    if info.lost_events:
        reasons[f"{counted(info.lost_events, 'event')} of the file did not reach the trace processor"] = lost
    if info.not_read:  # may be what no group of the GPU holds
        reasons[info.not_read_text] = {"not_read": sum(info.not_read.values())}
        yield from _lost((group for group in ALL[:5] if group not in facts.recorded), info.not_read_text, {})
    counts = {"gpu_work": "kernels", "gpu_time": "kernel_time_ns", "launches": "launches"}
    for reason, evidence in reasons.items():
        for group in facts.among(*ALL):
            bounds = (facts.count(counts[group], more=None),) if group in counts else ()
            yield _bounded(group, reason, evidence, *bounds)
    if info.deep_events:
        what = f"{counted(info.deep_events, 'event')} of the host below 500 others: what is around some is not known"
        yield _bounded("host_time", what, {"deep_events": info.deep_events})
    trimmed = info.keys.get(TRIMMED_KEY)
    if "steps" in facts.recorded and isinstance(trimmed, dict) and trimmed.get("whole_steps") is False:
        yield Doubt("steps", "not_to_be_had", "parts of steps were trimmed")


def _missing_work(facts: Facts, place: str, text: str) -> Iterator[Doubt]:
    for row in facts.rows_at(_WORK, place):
        launches = row["launches"]
        reason = counted(launches, "launch", "es") + text
        if not facts.counts.kernels:
            yield from _lost(("gpu_work", "gpu_time", "gpu_idle", "links"), reason, row)
            return
        yield _bounded("gpu_work", reason, row, facts.count("kernels", more=launches))
        busy, idle = [], []
        for device in facts.rows_at(_TIME, place):
            name = device["device"]
            busy_ns, idle_ns = facts.devices[name].busy_ns, facts.devices[name].idle_ns
            inside_ns, outside_ns = device["inside_ns"], device["outside_ns"]
            busy.append(Bound(f"devices.{name}.busy_ns", busy_ns, busy_ns, busy_ns + inside_ns + outside_ns))
            idle.append(Bound(f"devices.{name}.idle_ns", idle_ns - inside_ns, idle_ns, idle_ns + outside_ns))
        yield _bounded("gpu_time", reason, row, *busy)
        yield _bounded("gpu_idle", reason, row, *idle)
        yield _bounded("links", reason, row, facts.count("launches_without_gpu_work", less=launches))
        if row["in_steps"] and facts.steps:
            yield _bounded("steps", reason, row, facts.per_step(more=row["in_steps"]))


_check("started_late", "the first launches have GPU work", _WORK)(
    partial(_missing_work, place="start", text=" at the start without GPU work: recorded too late")
)
_check("cut_end", "the last launches have GPU work", _WORK)(
    partial(_missing_work, place="end", text=" at the end without GPU work: recording cut")
)
_check("no_work", "launches have GPU work at all", _WORK)(
    partial(_missing_work, place="all", text=", all without GPU work")
)


@_check("dropped", "no activities were dropped", _WORK, _CALL)
def _dropped(facts: Facts) -> Iterator[Doubt]:
    yield from _missing_work(facts, "middle", " between others without GPU work: dropped")
    for row in facts.rows_at(_CALL, "later"):
        reason = f"{counted(row['kernels'], 'kernel')} without recorded call: dropped"
        yield _bounded("launches", reason, row, facts.count("launches", more=row["calls"]))
        yield _bounded("links", reason, row, facts.count("kernels_without_call", less=row["kernels"]))
        if facts.steps:
            yield _bounded("steps", reason, row, facts.per_step(more=row["kernels"]))
    logs = [facts.info.keys.get(key) for key in _LOG_KEYS]
    lines = [line for log in logs if isinstance(log, list) for line in log if isinstance(line, str)]
    if lost := [line for line in lines if _LOSSES.search(line)]:
        reason = "the profiler's log says that it dropped activities"
        yield _bounded("gpu_work", reason, {"log": lost[0]}, facts.count("kernels", more=None))


@_check("earlier_work", "GPU work has its call", _CALL)
def _earlier_work(facts: Facts) -> Iterator[Doubt]:
    for row in facts.rows_at(_CALL, "start"):
        reason = f"{counted(row['kernels'], 'kernel')} launched before the recording"
        yield _bounded("gpu_work", reason, row, facts.count("kernels", less=row["kernels"]))
        yield _bounded("gpu_time", reason, row, facts.count("kernel_time_ns", less=row["kernel_time_ns"]))
    for row in facts.rows_at(_CALL, "unnumbered"):
        reason = f"{counted(row['kernels'], 'kernel')} without correlation number"
        yield from _lost(facts.among("links", "steps", "graphs"), reason, row)
    for row in facts.rows_at(_CALL, "all"):
        known = facts.counts.launches + facts.counts.graph_launches
        reason = "no GPU work has the number of a recorded call" if known else "no launch calls are recorded"
        groups: list[Group] = [] if known else ["launches"]
        yield from _lost((*groups, "links", *(("steps",) if facts.steps else ())), reason, row)


@_check("overlap", "work on a stream does not overlap", _STREAMS)
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
    yield _bounded("gpu_time", reason, evidence, *bounds)


@_check("graphs", "graph launches have their kernels", _GRAPHS)
def _graphs(facts: Facts) -> Iterator[Doubt]:
    row = query_row(facts.engine, _GRAPHS)
    without, all_launches = row["without_work"], facts.counts.graph_launches
    if not without:
        return
    evidence = {"graph_launches": all_launches, "without_work": without}
    reason = f"{counted(without, 'graph launch', 'es')} of {count_text(all_launches)} without GPU work"
    if without == all_launches:
        yield from _lost(("graphs",), reason, evidence)
    else:
        mean = row["kernels"] / all_launches  # graphs differ, so nothing limits what is missing
        yield _bounded("graphs", reason, evidence, Bound("graphs.kernels_per_graph", mean, mean, None))
    if not facts.devices:
        yield from _lost(("gpu_work", "gpu_time", "gpu_idle"), reason, evidence)
        return
    yield _bounded("gpu_work", reason, evidence, facts.count("kernels", more=None))
    yield _bounded("gpu_time", reason, evidence, facts.count("kernel_time_ns", more=None))
    idle = (Bound(f"devices.{name}.idle_ns", 0, device.idle_ns, None) for name, device in facts.devices.items())
    yield _bounded("gpu_idle", reason, evidence, *idle)
    if facts.steps:
        yield _bounded("steps", reason, evidence, facts.per_step(more=None))


@_check("steps", "all steps of a kind have GPU work", _STEPS)
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
        yield _bounded("steps", reason, row, *bounds)


@_check("clocks", "times do not contradict each other", _CLOCK)
def _clocks(facts: Facts) -> Iterator[Doubt]:
    row = query_row(facts.engine, _CLOCK)
    if row["early_work"] or row["late_syncs"]:
        yield from _two_clocks(row)
    if row["backward_calls"]:
        cases = counted(row["backward_calls"], "case")
        reason = f"the host's clock goes back by up to {time_text(row['backward_ns'])} ({cases})"
        yield from _lost(facts.among("host_time", "links", "gpu_idle"), reason, row)


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
        yield from _lost(("links", "gpu_idle"), f"the clocks jump: {reason}", row)
        return
    if late_ns:
        low, high = mean_ns - delay_ns, mean_ns - late_ns
    else:
        low, high = mean_ns + early_ns, None if slack_ns is None else mean_ns + slack_ns
    yield _bounded("links", reason, row, Bound("mean_delay_ns", low, mean_ns, high))


@_check("cycles", "the file holds one run of the profiler", _RUNS, _IDLE, _RUN_PROCESSES)
def _cycles(facts: Facts) -> Iterator[Doubt]:
    runs = query_dicts(facts.engine, _RUNS)
    # A merged file has a run for each process; the check of ranks reports those.
    if len(runs) > 1 and len(runs) > query_row(facts.engine, _RUN_PROCESSES)["processes"]:
        gap_ns = sum(run["gap_ns"] or 0 for run in runs)
        reason = f"{len(runs)} runs of the profiler in one file, {time_text(gap_ns)} between them"
        between = dict(query_rows(facts.engine, _IDLE)[1])
        bounds = [
            Bound(f"devices.{name}.idle_ns", device.idle_ns - between.get(name, 0), device.idle_ns, device.idle_ns)
            for name, device in facts.devices.items()
        ]
        yield _bounded("gpu_idle" if bounds else "host_time", reason, {"runs": len(runs), "gap_ns": gap_ns}, *bounds)


@_check("ranks", "the file holds one process", _PROCESSES)
def _ranks(facts: Facts) -> Iterator[Doubt]:
    """Several processes were merged, mostly the ranks of a job."""
    processes = query_dicts(facts.engine, _PROCESSES)
    if len(processes) < 2:
        return
    job = facts.info.keys.get("distributedInfo")
    world_size = job.get("world_size") if isinstance(job, dict) else None
    evidence = {"processes": len(processes), "world_size": world_size}
    reason = f"{len(processes)} processes (ranks) in one file"
    yield _bounded("host_time", f"{reason}: their clocks are not aligned", evidence)
    if 0 < len(facts.devices) < sum(bool(process["gpu_calls"]) for process in processes):
        why = f"{reason} share {counted(len(facts.devices), 'device number')}"
        yield from _lost(("gpu_time", "gpu_idle"), why, evidence)


@_check("start", "host work begins after the profiler", _OVER)
def _start(facts: Facts) -> Iterator[Doubt]:
    row = query_row(facts.engine, _OVER)
    if row["count"]:
        cases, time_ns = counted(row["count"], "slice"), row["time_ns"]
        reason = f"{cases} of host work began up to {time_text(row['longest_ns'])} before the profiler"
        bound = Bound("work_over_start_ns", time_ns - row["before_ns"], time_ns, time_ns)
        yield _bounded("host_time", reason, row, bound)


@_check(PASSES, "the passes of a capture agree", _STEP_KERNELS, asks=False)
def _passes(facts: Facts) -> Iterator[Doubt]:
    """Tokens are those of the timed passes, and events those of the recorded one."""
    problems = (facts.info.manifest or {}).get("problems")
    for problem in problems if isinstance(problems, list) else ():
        yield _bounded("steps", str(problem), {"problem": str(problem)})


@_check("memory", "memory events are there if asked for", _MEMORY, asks=False)
def _memory(facts: Facts) -> Iterator[Doubt]:
    # torch writes 1; other writers true.
    if facts.info.keys.get("profile_memory") in (1, True) and not facts.info.memory_events:
        reason = "profile_memory was on, and no memory event is recorded"
        yield Doubt("allocations", "not_to_be_had", reason, (), {"events": 0})
