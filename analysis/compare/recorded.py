"""Differences of recorded time, which the profiler slows: all that traces without unprofiled times can show."""

from __future__ import annotations

from math import fsum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from molprof.analysis.figures.model import Report

# Of all GPU time, what may lie outside steps where figures of whole traces are divided by their number.
_MOST_OUTSIDE = 0.05


class TraceDifference(Struct, frozen=True):
    """Recorded (profiled) device time of a trace minus the first's, for traces without unprofiled time."""

    span_ns: int
    parts: dict[str, int]  # `busy`, and `idle.` with a cause of molprof_idle_cause, ns
    residual_ns: int  # unexplained time
    devices: tuple[int, int]
    per_step: StepDifference | None = None  # None unless both have steps of one kind, and next to all work is of steps


class StepDifference(Struct, frozen=True):
    """The same per step."""

    first_ns: float  # recorded span of the first, per step
    span_ns: float
    parts: dict[str, float]
    steps: tuple[int, int]


class PhaseDifference(Struct, frozen=True):
    """Recorded (profiled) host time per step, or token, of an engine's trace minus the first's."""

    first_ns: float  # recorded span of the first, per step
    span_ns: float
    parts: dict[str, float]  # own time of each phase that both record, and `outside` all these; the sum is `span_ns`
    per_token: PhaseDifference | None = None  # the same per generated token; None where the number is not known


def trace_difference(first: Report, other: Report) -> TraceDifference | None:
    """Return `other` minus `first` in the devices' recorded spans; None where either records no GPU work."""
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
        per_step=_per_step(first, other),
    )


def _per_step(first: Report, other: Report) -> StepDifference | None:
    counts = step_counts(first, other)
    if counts is None:
        return None
    before, after = (
        {part: ns / count for part, ns in _recorded_parts(report).items()}
        for report, count in zip((first, other), counts, strict=True)
    )
    spans = [
        sum(device.span_ns for device in report.devices.values()) / count
        for report, count in zip((first, other), counts, strict=True)
    ]
    parts = {part: after.get(part, 0.0) - before.get(part, 0.0) for part in sorted(before.keys() | after.keys())}
    return StepDifference(spans[0], spans[1] - spans[0], parts, counts)


def step_counts(first: Report, other: Report) -> tuple[int, int] | None:
    """Return the numbers of steps by which the whole-trace figures of two traces may be divided.

    All steps are of one kind, with next to all GPU work. None where a trace has no steps or several kinds of them, or
    the traces have different kinds.
    """
    kinds_of = []
    for report in (first, other):
        rows: Any = report.table("steps").to_json()
        kinds = [row for row in rows if row["steps"]]
        outside_ns = sum(row["gpu_ns"] or 0 for row in rows if not row["steps"])
        all_ns = sum(row["gpu_ns"] or 0 for row in rows)
        if len(kinds) != 1 or outside_ns > _MOST_OUTSIDE * all_ns:
            return None
        kinds_of.append(kinds[0])
    one, two = kinds_of
    if (one["source"], one["kind"]) != (two["source"], two["kind"]):
        return None
    return one["steps"], two["steps"]


class ClassTime(Struct, frozen=True):
    """GPU work of one class in two traces: number, time, and the location that has most of it."""

    name: str
    counts: tuple[float, float]
    times_ns: tuple[float, float]
    location: str | None  # None: not recorded

    @property
    def change_ns(self) -> float:
        """The time of the second trace minus that of the first, ns."""
        return self.times_ns[1] - self.times_ns[0]


def class_times(first: Report, other: Report, counts: tuple[int, int] | None) -> list[ClassTime]:
    """Return the classes of GPU work of two traces, the largest change of time first.

    Per step where `counts` has their steps.

    The location is the operator, or else the function or module, whose calls started most of that class's time.
    """
    steps = counts or (1, 1)
    rows: list[dict[str, Any]] = [
        {str(row["class"]): row for row in report.table("kernel_classes").to_json()} for report in (first, other)
    ]
    locations_of = [
        {row["class"]: row["location"] for row in _rows(report, "class_locations")} for report in (first, other)
    ]
    class_rows = []
    for name in dict.fromkeys([*rows[0], *rows[1]]):
        amounts = [of.get(name, {"count": 0, "time_ns": 0}) for of in rows]
        times = tuple(row["time_ns"] / count for row, count in zip(amounts, steps, strict=True))
        runs = tuple(row["count"] / count for row, count in zip(amounts, steps, strict=True))
        more = int(times[1] > times[0])
        class_rows.append(ClassTime(name, (runs[0], runs[1]), (times[0], times[1]), locations_of[more].get(name)))
    return sorted(class_rows, key=lambda item: -abs(item.change_ns))


def _rows(report: Report, table: str) -> Any:
    return report.table(table).to_json()


def phase_difference(first: Report, other: Report) -> PhaseDifference | None:
    """Return `other` minus `first`; None where either marks no phases or no steps of an engine."""
    before, after = _phases(first), _phases(other)
    if before is None or after is None:
        return None
    tokens = before.tokens, after.tokens
    per_token = _divided(before, after, *tokens) if all(tokens) else None
    return replace(_divided(before, after, before.steps, after.steps), per_token=per_token)


class _PhaseTimes(Struct, frozen=True):
    """Recorded span and own time of each recorded phase, ns; steps, and the tokens that their names count.

    The first tokens of prompts are not in names; tokens is 0 where other steps do not tell theirs.
    """

    span_ns: float
    own_ns: dict[str, int]
    steps: int
    tokens: int


def _divided(before: _PhaseTimes, after: _PhaseTimes, first: int, other: int) -> PhaseDifference:
    first_ns = before.span_ns / first
    span_ns = after.span_ns / other - first_ns
    parts = {
        phase: after.own_ns[phase] / other - own_ns / first
        for phase, own_ns in before.own_ns.items()
        if phase in after.own_ns
    }
    return PhaseDifference(first_ns, span_ns, {**parts, "outside": span_ns - fsum(parts.values())})


def _phases(report: Report) -> _PhaseTimes | None:
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
    generated = 0 if None in tokens else sum(tokens)
    return _PhaseTimes(spans[0], {row["phase"]: row["own_ns"] for row in phases}, steps, generated)


def _recorded_parts(report: Report) -> dict[str, int]:
    parts = {"busy": sum(device.busy_ns for device in report.devices.values())}
    for row in report.table("idle_causes").to_json():
        part, time_ns = f"idle.{row['cause']}", row["time_ns"]
        if isinstance(time_ns, int):
            parts[part] = parts.get(part, 0) + time_ns
    return parts
