"""Categories of events: those that SQL reads, their aliases, and those that are known to be no GPU work."""

from __future__ import annotations

from molprof.analysis.facts import GPU_CALLS, GPU_WORK

# Kineto before torch 1.12.
_BEFORE = {
    "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime", "Operator": "cpu_op",
    "User": "gpu_user_annotation", "gpu_user_Annotation": "gpu_user_annotation", "Net": "Trace",
}  # fmt: skip
# Devices whose calls and copies have their names: xpu_runtime, mlu_memcpy. Those of Kineto, and of its forks.
_DEVICES = ("xpu", "mtia", "privateuse1", "glow", "gcu", "mlu")
_OF_DEVICES = {
    "runtime": "cuda_runtime", "driver": "cuda_driver", "memcpy": "gpu_memcpy", "memset": "gpu_memset",
    "user_annotation": "gpu_user_annotation", "sync": "cuda_sync", "profiler_range": "cuda_profiler_range",
}  # fmt: skip
_READ_AS = {
    **_BEFORE,
    **{f"{device}_{what}": category for device in _DEVICES for what, category in _OF_DEVICES.items()},
    **{f"GCU_{what.upper()}": category for what, category in _OF_DEVICES.items()},
    "mlu_notifier": "cuda_event",
    "mtia_ccp_events": "kernel",  # but for those below
}
# Categories of operators.
OPERATORS = frozenset({"cpu_op", *(name for name, category in _READ_AS.items() if category == "cpu_op")})
# Events whose name tells more: copies and waits of MTIA, its submission queue; steps before there were annotations.
_NAMED: dict[tuple[str, str | None], str] = {
    ("mtia_ccp_events", "dma_request"): "gpu_memcpy",
    ("mtia_ccp_events", "event_record"): "cuda_event",
    ("mtia_ccp_events", "event_wait"): "cuda_sync",
    ("mtia_runtime", "synchronize"): "cuda_sync",
}
_STEP = "ProfilerStep#"
# Complete events alone are GPU work, calls and operators.
_COMPLETE = frozenset({*GPU_WORK, *GPU_CALLS, "cpu_op"})
# Those whose complete events are read, or known to be no work of a device, no call and no operator. Any other may be.
KNOWN = _COMPLETE | {
    "user_annotation", "python_function", "molprof.sequence", "molprof.token",
    "Trace", "gpu_user_annotation", "overhead", "cuda_sync", "cuda_event", "cuda_profiler_range", "cpu_instant_event",
    "external_correlation", "collective_comm", "hardware_counters", "mtia_counters", "xpu_scope_profiler",
    "gpu_pm_counter", "fwdbwd", "ac2g", "async",
}  # fmt: skip
# GPU work, calls and operators that are not complete events: none of them is counted.
INCOMPLETE = frozenset(f"{name} (incomplete)" for name in _COMPLETE)


def is_renamed(category: object) -> bool:
    """Return True if the category is an alias of another."""
    return category in _READ_AS


def fed_category(category: str | None, phase: str | None, name: str | None) -> str | None:
    """Return the category that the engine gets events under: the one that SQL reads, unless they are incomplete."""
    if category is None:
        return None
    if category in _READ_AS:
        if category == "Operator" and (name or "").startswith(_STEP):
            return "user_annotation"
        category = _NAMED.get((category, name)) or _READ_AS[category]
    return f"{category} (incomplete)" if phase != "X" and category in _COMPLETE else category
