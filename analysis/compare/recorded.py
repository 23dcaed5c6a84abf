"""Differences of recorded, so profiled, time: all that traces without unprofiled times can tell."""

from __future__ import annotations

from math import fsum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from molprof.analysis.figures.model import Report


class TraceDifference(Struct, frozen=True):
    """Recorded, so profiled, device time of a trace minus the first's: for traces without unprofiled time."""

    span_ns: int
    parts: dict[str, int]  # `busy`, and `idle.` with a cause of molprof_idle_cause, ns
    residual_ns: int  # unexplained time
    devices: tuple[int, int]


class PhaseDifference(Struct, frozen=True):
    """Recorded, so profiled, host time per step, or token, of an engine's trace minus the first's."""

    first_ns: float  # recorded span of the first, per step
    span_ns: float
    parts: dict[str, float]  # own time of each phase that both record, and `outside` all these; the sum is `span_ns`
    per_token: PhaseDifference | None = None  # the same per generated token; None where the number is not known


def trace_difference(first: Report, other: Report) -> TraceDifference | None:
    """`other` minus `first`, of the devices' recorded spans; None where either records no GPU work."""
    if not first.devices or not other.devices:
        return None
    before, after = _recorded_parts(first), _recorded_parts(other)
    span_ns = sum(device.span_ns for device in other.devices.values())
    span_ns -= sum(device.span_ns for device in first.devices.values())
    # Busy first, then the causes by name.
    parts = {part: after.get(part, 0) - before.get(part, 0) for part in sorted(before.keys() | after.keys())}
    return TraceDifference(
        span_ns=span_ns,
        parts=parts,
        residual_ns=span_ns - sum(parts.values()),
        devices=(len(first.devices), len(other.devices)),
    )


def phase_difference(first: Report, other: Report) -> PhaseDifference | None:
    """`other` minus `first`; None where either marks no phases or no steps of an engine."""
    before, after = _phases(first), _phases(other)
    if before is None or after is None:
        return None
    tokens = before.tokens, after.tokens
    per_token = _divided(before, after, *tokens) if all(tokens) else None
    return replace(_divided(before, after, before.steps, after.steps), per_token=per_token)


class _Phases(Struct, frozen=True):
    """Recorded span and own time of each phase that is recorded, ns; steps, and the tokens that their names tell.

    The first tokens of prompts are not in names; tokens is 0 where other steps do not tell theirs.
    """

    span_ns: float
    own_ns: dict[str, int]
    steps: int
    tokens: int


def _divided(before: _Phases, after: _Phases, first: int, other: int) -> PhaseDifference:
    first_ns = before.span_ns / first
    span_ns = after.span_ns / other - first_ns
    parts = {
        phase: after.own_ns[phase] / other - own_ns / first
        for phase, own_ns in before.own_ns.items()
        if phase in after.own_ns
    }
    return PhaseDifference(first_ns, span_ns, {**parts, "outside": span_ns - fsum(parts.values())})


def _phases(report: Report) -> _Phases | None:
    rows: Any = report.table("engine_phases").to_json()
    phases = [row for row in rows if row["count"] is not None]
    # The recorded span, which the table holds as the base of its shares.
    spans = [row["time_ns"] / row["time_ratio"] for row in phases if row["time_ratio"]]
    programs = {row["program"] for row in phases}
    by_source: Any = report.table("steps").to_json()
    kinds = [row for row in by_source if row["source"] in programs]
    steps = sum(row["steps"] for row in kinds)
    if not spans or not steps:
        return None
    tokens = [row["tokens"] for row in kinds if row["kind"] not in ("prefill", "idle")]
    known = 0 if None in tokens else sum(tokens)
    return _Phases(spans[0], {row["phase"]: row["own_ns"] for row in phases}, steps, known)


def _recorded_parts(report: Report) -> dict[str, int]:
    parts = {"busy": sum(device.busy_ns for device in report.devices.values())}
    for row in report.table("idle_causes").to_json():
        part, time_ns = f"idle.{row['cause']}", row["time_ns"]
        if isinstance(time_ns, int):
            parts[part] = parts.get(part, 0) + time_ns
    return parts
