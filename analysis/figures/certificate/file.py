"""Checks of the file: is all of it there?"""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.figures.certificate.check import CheckedTrace, bounded, check, lost
from molprof.analysis.figures.model import ALL, Doubt, Evidence, Group
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


@check("file", "the file is whole", ALL, _EVENTS)
def _file(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report files that are cut, or broken inside (tests/goldens/given/cut.json.gz, pytorch/kineto#1184)."""
    info = trace.info
    lacking: Evidence = {"lost_events": info.lost_events}
    reasons = {} if info.complete else {"the file is damaged, and only its whole part was read": lacking}
    if info.lost_events:
        reasons[f"{counted(info.lost_events, 'event')} of the file did not reach the trace processor"] = lacking
    if info.not_read:  # may be what no group of the GPU holds
        reasons[info.not_read_text] = {"not_read": sum(info.not_read.values())}
        yield from lost((group for group in _OF_GPU if group not in trace.recorded), info.not_read_text, {})
    for reason, evidence in reasons.items():
        yield from _at_least(trace, reason, evidence)
    if info.deep_events:
        what = f"{counted(info.deep_events, 'event')} of the host below 500 others: the callers of some are not known"
        yield bounded("host_time", what, {"deep_events": info.deep_events})
    trimmed = info.keys.get(TRIMMED_KEY)
    if "steps" in trace.recorded and isinstance(trimmed, dict) and trimmed.get("whole_steps") is False:
        yield Doubt("steps", "not_to_be_had", "parts of steps were trimmed")


def _at_least(trace: CheckedTrace, reason: str, evidence: Evidence) -> Iterator[Doubt]:
    """Yield doubts that more happened than was recorded."""
    counts = {"gpu_work": "kernels", "gpu_time": "kernel_time_ns", "launches": "launches"}
    for group in trace.among(*ALL):
        bounds = (trace.count(counts[group], more=None),) if group in counts else ()
        yield bounded(group, reason, evidence, *bounds)


@check("sums", "sums that must hold do", ALL, _EVENTS)
def _sums(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report sums that differ where work is counted twice.

    Some viewers drop overlapping kernels (janestreet/perfetto#35).
    """
    for each in trace.sums:
        if not each.holds:
            evidence: Evidence = {"left": each.left, "right": each.right}
            reason = f"a check fails: {each.text} ({count_text(each.left)} and {count_text(each.right)})"
            yield from (bounded(group, reason, evidence) for group in trace.among(*each.groups) or each.groups)


@check(PASSES, "the passes of a capture agree", ("steps",), _STEP_LAUNCHES)
def _passes(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report that tokens are of the timed passes, events of the recorded one (traces/h100-qwen.json.gz)."""
    problems = (trace.info.manifest or {}).get("problems")
    for problem in problems if isinstance(problems, list) else ():
        yield bounded("steps", str(problem), {"problem": str(problem)})


@check("memory", "memory events are there if asked for", ("allocations",), _MEMORY)
def _memory(trace: CheckedTrace) -> Iterator[Doubt]:
    """Report missing memory events: vLLM asks for them in a worker that records none (mi300x_vllm_decode_graph)."""
    # torch writes 1; other writers true.
    if trace.info.keys.get("profile_memory") in (1, True) and not trace.info.memory_events:
        reason = "profile_memory was on, and no memory event is recorded"
        yield Doubt("allocations", "not_to_be_had", reason, (), {"events": 0})
