"""Where the recorded time of two traces differs, for traces without unprofiled time: device busy, and idle by cause."""

from __future__ import annotations

from molprof.analysis.compare.model import TraceDifference
from molprof.analysis.figures.model import Report


def trace_difference(first: Report, other: Report) -> TraceDifference | None:
    """`other` minus `first`, of the devices' recorded spans; None where either records no GPU work."""
    if not first.devices or not other.devices:
        return None
    before, after = _parts(first), _parts(other)
    span_ns = _span_ns(other) - _span_ns(first)
    # Busy first, then the causes by name.
    parts = {part: after.get(part, 0) - before.get(part, 0) for part in sorted(before.keys() | after.keys())}
    return TraceDifference(
        span_ns=span_ns,
        parts=parts,
        residual_ns=span_ns - sum(parts.values()),
        devices=(len(first.devices), len(other.devices)),
    )


def _span_ns(report: Report) -> int:
    return sum(device.span_ns for device in report.devices.values())


def _parts(report: Report) -> dict[str, int]:
    parts = {"busy": sum(device.busy_ns for device in report.devices.values())}
    for row in report.table("idle_causes").to_json():
        part, time_ns = f"idle.{row['cause']}", row["time_ns"]
        assert isinstance(time_ns, int)
        parts[part] = parts.get(part, 0) + time_ns
    return parts
