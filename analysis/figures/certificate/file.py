"""Checks of the file: is all of it there, and once?"""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.figures.certificate.check import RUNS, Facts, bounded, check, lost
from molprof.analysis.figures.model import ALL, Doubt, Evidence, Group
from molprof.analysis.reader.categories import GPU_CALLS, GPU_WORK
from molprof.analysis.trace_processor.package import Query
from molprof.common.manifest import TRIMMED_KEY
from molprof.common.values import count_text, counted

_EVENTS = Query(
    "operation_totals",
    "SELECT category, SUM(count) AS events FROM molprof_operation_total GROUP BY category ORDER BY category",
)
_STEP_LAUNCHES = Query("step_launches", "SELECT step_id, kernels FROM molprof_step_launch ORDER BY step_id")
_MEMORY = Query("certificate_memory", "SELECT events FROM molprof_memory_event_count")
PASSES = "passes"  # the check that a capture whose passes differ does not pass
_OF_GPU: tuple[Group, ...] = ("gpu_work", "gpu_time", "gpu_idle", "launches", "links")
# Whose events differ at least by their number.
_BY_NUMBER = (*GPU_WORK, *GPU_CALLS)
# Starts that are multiples of this were written in microseconds, or with fewer digits than they had. Then operators of
# one name may have the same times, but no more of them than this part of their category.
_COARSE_START_NS = 100
_OFTEN = 0.01


@check("file", "the file is whole", _EVENTS)
def _file(facts: Facts) -> Iterator[Doubt]:
    info = facts.info
    lacking: Evidence = {"lost_events": info.lost_events}
    reasons = {} if info.complete else {"the file is damaged, and only its whole part was read": lacking}
    if info.lost_events:
        reasons[f"{counted(info.lost_events, 'event')} of the file did not reach the trace processor"] = lacking
    if info.not_read:  # may be what no group of the GPU holds
        reasons[info.not_read_text] = {"not_read": sum(info.not_read.values())}
        yield from lost((group for group in _OF_GPU if group not in facts.recorded), info.not_read_text, {})
    for reason, evidence in reasons.items():
        yield from _at_least(facts, reason, evidence)
    if info.deep_events:
        what = f"{counted(info.deep_events, 'event')} of the host below 500 others: what is around some is not known"
        yield bounded("host_time", what, {"deep_events": info.deep_events})
    trimmed = info.keys.get(TRIMMED_KEY)
    if "steps" in facts.recorded and isinstance(trimmed, dict) and trimmed.get("whole_steps") is False:
        yield Doubt("steps", "not_to_be_had", "parts of steps were trimmed")


def _at_least(facts: Facts, reason: str, evidence: Evidence) -> Iterator[Doubt]:
    """Whatever is recorded may be more."""
    counts = {"gpu_work": "kernels", "gpu_time": "kernel_time_ns", "launches": "launches"}
    for group in facts.among(*ALL):
        bounds = (facts.count(counts[group], more=None),) if group in counts else ()
        yield bounded(group, reason, evidence, *bounds)


@check("sums", "sums that must hold do", _EVENTS)
def _sums(facts: Facts) -> Iterator[Doubt]:
    for each in facts.sums:
        if not each.holds:
            evidence: Evidence = {"left": each.left, "right": each.right}
            reason = f"a check fails: {each.text} ({count_text(each.left)} and {count_text(each.right)})"
            yield from (bounded(group, reason, evidence) for group in facts.among(*each.groups) or each.groups)


@check("early_end", "the file has what the profiler writes last", RUNS)
def _early_end(facts: Facts) -> Iterator[Doubt]:
    """torch writes devices and a version ahead of all events, and the profiler's span and `traceName` behind them."""
    info, keys = facts.info, facts.info.keys
    if info.native or not info.complete or not facts.recorded or info.condition.has_span:
        return
    lacks_gpu = bool(info.devices) and "host_time" in facts.recorded and not facts.among(*_OF_GPU)
    if "traceName" in keys and not lacks_gpu:  # one step of a longer recording
        return
    missing = "the profiler's span is" if "traceName" in keys else "the profiler's span and traceName are"
    reason = f"the file ends early: {missing} missing, which torch writes last"
    evidence: Evidence = {"devices": len(info.devices)}
    yield from _at_least(facts, reason, evidence)
    if not facts.among(*_OF_GPU) and (info.devices or "schemaVersion" not in keys):
        yield from lost(_OF_GPU, reason, evidence)


@check("repeated", "no event stands twice", _EVENTS)
def _repeated(facts: Facts) -> Iterator[Doubt]:
    condition = facts.info.condition
    is_coarse = condition.host is not None and condition.host.start_step_ns >= _COARSE_START_NS
    found = {}
    for category, again in condition.repeated.items():
        all_events = facts.info.slices.get(category, again.events)
        if category in _BY_NUMBER or not is_coarse or again.events > _OFTEN * all_events:
            found[category] = again
    if not found:
        return
    most = sorted(found, key=lambda category: -found[category].events)
    counts = [f"{count_text(found[category].events)} {category}" for category in most[:3]]
    others = sum(found[category].events for category in most[3:])
    reason = f"events that stand twice: {', '.join(counts)}{f' and {count_text(others)} others' if others else ''}"
    evidence: Evidence = {category: again.events for category, again in found.items()}
    work = [category for category in found if category in GPU_WORK]
    calls = [category for category in found if category in GPU_CALLS]
    if kernels := found.get("kernel"):
        yield bounded("gpu_work", reason, evidence, facts.count("kernels", less=kernels.events))
        yield bounded("gpu_time", reason, evidence, facts.count("kernel_time_ns", less=kernels.time_ns))
    elif work:
        yield from (bounded(group, reason, evidence) for group in facts.among("gpu_work", "gpu_time"))
    if calls:
        less = min(facts.counts.launches, sum(found[category].events for category in calls))
        yield bounded("launches", reason, evidence, facts.count("launches", less=less))
    if work or calls:
        yield from (bounded(group, reason, evidence) for group in facts.among("links", "steps"))
    if len(found) > len(work):
        yield from (bounded(group, reason, evidence) for group in facts.among("host_time"))


@check(PASSES, "the passes of a capture agree", _STEP_LAUNCHES)
def _passes(facts: Facts) -> Iterator[Doubt]:
    """Tokens are those of the timed passes, and events those of the recorded one."""
    problems = (facts.info.manifest or {}).get("problems")
    for problem in problems if isinstance(problems, list) else ():
        yield bounded("steps", str(problem), {"problem": str(problem)})


@check("memory", "memory events are there if asked for", _MEMORY)
def _memory(facts: Facts) -> Iterator[Doubt]:
    # torch writes 1; other writers true.
    if facts.info.keys.get("profile_memory") in (1, True) and not facts.info.memory_events:
        reason = "profile_memory was on, and no memory event is recorded"
        yield Doubt("allocations", "not_to_be_had", reason, (), {"events": 0})
