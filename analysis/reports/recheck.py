"""Whether a stored report agrees with itself: someone may have edited it, or made it by other means."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.figures.checks import agree
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run
from molprof.analysis.figures.tables import METRICS


def contradiction(report: Report) -> str | None:
    """The first thing in `report` that cannot be, in a few words; None where all that can be told agrees."""
    return next((text for text in _contradictions(report)), None)


def _contradictions(report: Report) -> Iterator[str]:
    held = {table.name for table in report.tables}
    yield from (f"it has no table {metric.name!r}" for metric in METRICS if metric.name not in held)
    for name, value in _sizes(report):
        if value is not None and value < 0:
            yield f"{name} is {value}"
    for name, left, right in _sums(report):
        if left != right:
            yield f"{name}: {left} and {right}"
    for check in report.checks:
        if check.holds != agree(check.left, check.right, check.tolerance_ratio):
            yield f"the sum {check.id!r} of {check.left} and {check.right} has holds: {str(check.holds).lower()}"


def _sizes(report: Report) -> Iterator[tuple[str, int | None]]:
    """What cannot be negative."""
    for name, value in vars(report.counts).items():
        if isinstance(value, int):
            yield f"counts.{name}", value
    for operation, figures in report.counts.memory_operations.items():
        for name, value in vars(figures).items():
            yield f"counts.memory_operations.{operation}.{name}", value
    for device, times in report.devices.items():
        for name, value in vars(times).items():
            yield f"devices.{device}.{name}", value
    for category, count in report.trace.events_by_category.items():
        yield f"trace.events_by_category.{category}", count
    yield "trace.bytes", report.trace.bytes
    yield "trace.lost_events", report.trace.lost_events
    if report.run is not None:
        for name, value in vars(report.run).items():
            # The first pass may have been faster than the later ones.
            if isinstance(value, int) and name != "first_pass_extra_ns":
                yield f"run.{name}", value


def _sums(report: Report) -> Iterator[tuple[str, int | None, int | None]]:
    """Names of two figures that are one, and both."""
    counts = report.counts
    both = counts.kernels_with_call + counts.kernels_without_call
    yield "counts.kernels, and those with and without a call", counts.kernels, both
    for device, times in report.devices.items():
        yield f"devices.{device}.span_ns, and busy and idle", times.span_ns, times.busy_ns + times.idle_ns
    figures = _checked(report)
    for check in report.checks:
        left, right = figures.get(check.id, (None, None))
        if left is not None:
            yield f"the left side of the sum {check.id!r}, and the figure it is of", check.left, left
        if right is not None:
            yield f"the right side of the sum {check.id!r}, and the figure it is of", check.right, right
    if report.run is not None:
        for name in ("blocks", "junk_blocks", "junk_tokens", "filler_tokens"):
            parts = sum(getattr(item, name.removesuffix("_tokens")) for item in report.run.sequences)
            yield f"run.{name}, and the sum over sequences", getattr(report.run, name), parts


def _checked(report: Report) -> dict[str, tuple[int | None, int | None]]:
    """Sides of sums that are figures of the report, by the sum's id; None where a side is not."""
    kernels = report.counts.kernels_with_call + report.counts.kernels_without_call
    found: dict[str, tuple[int | None, int | None]] = {
        "kernels": (report.trace.events_by_category.get("kernel", 0), kernels)
    }
    return found if report.run is None else {**found, **_checked_of_run(report.run)}


def _checked_of_run(run: Run) -> dict[str, tuple[int | None, int | None]]:
    phases_ns = sum(phase.wall_ns or 0 for phase in run.phases.values())
    return {
        "tokens": (run.generated_tokens, None),
        "unfinished_rows": (run.generated_tokens, None),
        "kinds": (None, run.junk_tokens + run.filler_tokens),
        "wall_time": (run.wall_ns.median, phases_ns),
    }
