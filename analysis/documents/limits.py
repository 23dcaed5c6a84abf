"""Limits in the headline of a trace: figures that are not exact, or steps that are mostly unlike the others."""

from __future__ import annotations

import math
from collections import Counter

from molprof.analysis.figures.model import IDLE_CAUSES, Evidence, Group, Report, location_text
from molprof.common.values import count_text, per, percent_text, time_text

# A busy share that may be off by more of the time is shown from the least to the most.
_WIDE_RATIO = 0.05
# Of fewer steps one without work says little.
_LEAST_STEPS = 3
_OF_STEPS: tuple[Group, ...] = ("steps",)
# Below this share of the span the cause does not matter.
_LEAST_IDLE_RATIO = 0.001


def lost_times(report: Report) -> str | None:
    """Return why the GPU's busy and idle time are not known; None where they are."""
    doubted = report.doubts_on(("gpu_time", "gpu_idle"))
    reasons = [item.reason for item in doubted if item.verdict == "not_to_be_had" and item.reason]
    return "; ".join(dict.fromkeys(reasons)) or None


def limits_of(report: Report, figure: str, value_ns: int) -> tuple[float, float]:
    """Return the lower and upper bound of a time of all devices together, by the certificate."""
    low = high = float(value_ns)
    for bound in (bound for item in report.doubts_on(("gpu_time", "gpu_idle")) for bound in item.bounds):
        if bound.figure.startswith("devices.") and bound.figure.endswith(figure):
            low -= bound.value - (bound.low or 0)
            high += math.inf if bound.high is None else bound.high - bound.value
    return max(0.0, low), high


def busy_text(report: Report, busy_ns: int, span_ns: int) -> str:
    """Return the share of busy time; as a range where missing work may be much of it."""
    low, high = limits_of(report, ".busy_ns", busy_ns)
    if high - low < _WIDE_RATIO * span_ns:
        return percent_text(per(busy_ns, span_ns))
    return f"{percent_text(low / span_ns)} to {percent_text(min(1.0, high / span_ns))}"


def odd_steps(report: Report) -> str:
    """Return the sentence that most steps have no GPU work, and that one step's work takes most of the time."""
    said = [
        f"{count_text(doubt.evidence['steps_without_work'])} of {count_text(doubt.evidence['steps'])} steps have no "
        "GPU work"
        for item in report.doubts_on(_OF_STEPS)
        for doubt in item.doubts
        if doubt.check == "steps" and _are_most(doubt.evidence)
    ]
    said += [finding.evidence.partition(";")[0] for finding in report.findings if finding.id == "one_event"]
    return f"{', and '.join(said)}; " if said else ""


def _are_most(steps: Evidence) -> bool:
    """Return True if most steps have no GPU work."""
    return _LEAST_STEPS < int(steps["steps"] or 0) < 2 * int(steps["steps_without_work"] or 0)


def largest_cause(report: Report) -> str:
    """Return the main cause of idle time, if at least half of that time has a sure cause."""
    idle_ns = sum(device.idle_ns for device in report.devices.values())
    span_ns = sum(device.span_ns for device in report.devices.values())
    times: Counter[str] = Counter()
    for row in report.table("idle_causes").to_json():
        if isinstance(row["time_ns"], int):
            times[str(row["cause"])] += row["time_ns"]
    low, _ = limits_of(report, ".idle_ns", idle_ns)
    if not times or idle_ns < _LEAST_IDLE_RATIO * span_ns or low < 0.5 * idle_ns:
        return ""
    cause = max(times, key=lambda name: (times[name], name))
    share = percent_text(times[cause] / idle_ns)
    text = f"main cause {IDLE_CAUSES.get(cause, cause)}: {share} of {time_text(idle_ns)} between work"
    bottleneck = report.bottleneck
    if bottleneck is None or bottleneck.idle_cause != cause or bottleneck.idle_location_ratio is None:
        return text
    return f"{text}; {location_text(bottleneck.idle_location, bottleneck.idle_location_ratio)}"
