"""The answer in a sentence or two: what a document says first."""

from __future__ import annotations

from molprof.analysis.compare import Comparison, report_label
from molprof.analysis.compare.model import Difference, TraceDifference
from molprof.analysis.compare.parts import PART_LABELS
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import Run, Spread
from molprof.common.values import (
    count_text,
    factor_text,
    per,
    percent_text,
    signed_percent_text,
    signed_time_text,
    time_text,
)

# Name parts until they account for this share of the difference, at most this number.
_ENOUGH_RATIO = 0.8
_MOST_PARTS = 3
_FEW_REPEATS = 3
# Below this share of the span the cause does not matter.
_LEAST_IDLE_RATIO = 0.001
# A run whose share of valid molecules is smaller by this did not do the same work.
_VALID_RATIO = 0.25
# If less than this share is valid in both runs, neither did its work.
_LOW_VALID_RATIO = 0.5
# As queries/idle_causes.sql defines them.
_CAUSES = {
    "cpu_waited": "the CPU waited for the GPU and had queued nothing",
    "cpu_busy": "the CPU had queued nothing (launch-bound)",
    "short": "pauses below 5 µs between pieces of work",
    "not_recorded": "the call of the next work is not recorded",
    "other_stream": "work waited for another stream",
    "other": "the device did not start queued work",
}


def comparison_verdict(comparison: Comparison) -> tuple[str, ...]:
    """One statement for each run after the first."""
    first_label, first = comparison.labels[0], comparison.runs[0]
    wall = next(row for row in comparison.rows if row.figure.id == "wall_ns")
    return tuple(
        _recorded(label, recorded, first_label)
        if recorded is not None
        else _against(label, report, difference, first_label, first, wall.within_noise(index))
        + _validity(label, report.run, first_label, first.run)
        for index, (label, report, difference, recorded) in enumerate(
            zip(
                comparison.labels[1:],
                comparison.runs[1:],
                comparison.differences,
                comparison.trace_differences,
                strict=True,
            ),
            1,
        )
    )


def report_verdict(report: Report) -> tuple[str, ...]:
    """What one trace shows: of a run, its time and what takes most of it; of another trace, what the GPU did."""
    if report.run is None:
        return (_trace(report),)
    return (_run(report.run), _trace(report)) if report.trace.gpu_recorded else (_run(report.run),)


def _against(
    label: str, report: Report, difference: Difference | None, first_label: str, first: Report, noise: bool
) -> str:
    if difference is None or report.run is None or first.run is None:
        return (
            f"{label} against {first_label}: which is faster is not recorded, "
            "because one of them holds no unprofiled times; the tables compare what the traces recorded."
        )
    here, there = report.run.wall_ns, first.run.wall_ns
    times = f"{time_text(here.median)} against {time_text(there.median)}"
    if noise:
        return (
            f"No difference beyond noise between {label} and {first_label}: {times}; timed passes range over "
            f"{_range(here)} and {_range(there)}."
        )
    ratio = per(here.median, there.median)
    if ratio is None:
        return f"{label} against {first_label}: {times}."
    measured = f"{times}, {_repeats(here, there)}"
    return f"{label} takes {factor_text(ratio)} the time of {first_label} ({measured}){_parts(difference)}."


def _recorded(label: str, difference: TraceDifference, first_label: str) -> str:
    """Of traces without unprofiled times only what was recorded can be told."""
    longer = "longer" if difference.span_ns >= 0 else "shorter"
    several = max(difference.devices) > 1
    span = "GPU spans, first work to last, are together" if several else "GPU span, first work to last, is"
    busy_ns = difference.parts.get("busy", 0)
    idle_ns = sum(ns for name, ns in difference.parts.items() if name.startswith("idle."))
    return (
        f"{label}: the recorded {span} {time_text(abs(difference.span_ns))} {longer} than of {first_label} (busy "
        f"{signed_time_text(busy_ns)}, idle {signed_time_text(idle_ns)}); which is faster is not recorded, because one "
        "of them holds no unprofiled times."
    )


def _validity(label: str, run: Run | None, first_label: str, first: Run | None) -> str:
    """Valid molecules where a run has few, or far fewer: a time says little about unusable answers."""
    if run is None or first is None:
        return ""
    ratios = [per(item.valid_molecules, item.molecules) for item in (run, first)]
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios) or (max(known) - min(known) < _VALID_RATIO and max(known) >= _LOW_VALID_RATIO):
        return ""
    here, there = (
        f"{count_text(item.valid_molecules)} of {_counted(item.molecules, 'molecule')}" for item in (run, first)
    )
    return f" Valid: {here} of {label}, {there} of {first_label}."


def _parts(difference: Difference) -> str:
    """What most of the difference is, and what works against it."""
    if not difference.wall_ns:
        return ""
    ordered = sorted(difference.parts.items(), key=lambda item: -abs(item[1]))
    along = [(name, ns) for name, ns in ordered if ns * difference.wall_ns > 0]
    named = []
    reached = 0
    for name, ns in along[:_MOST_PARTS]:
        named.append((name, ns))
        reached += ns
        if reached / difference.wall_ns >= _ENOUGH_RATIO:
            break
    if not named:
        return ""
    head = "most of it is" if reached / difference.wall_ns > 0.5 else "the largest parts are"
    text = f": {head} {', '.join(_part(name, ns, difference) for name, ns in named)}"
    counter = next(((name, ns) for name, ns in ordered if ns * difference.wall_ns < 0), None)
    if counter and abs(counter[1]) > 0.1 * abs(difference.wall_ns):
        text += f"; in the other direction: {_part(*counter, difference)}"
    return text


def _part(name: str, ns: int, difference: Difference) -> str:
    share = signed_percent_text(ns / difference.wall_ns).removeprefix("+")
    return f"{PART_LABELS.get(name, name)} ({signed_time_text(ns)}, {share})"


def _repeats(here: Spread, there: Spread) -> str:
    count = f"{here.repeats}" if here.repeats == there.repeats else f"{here.repeats} and {there.repeats}"
    if min(here.repeats, there.repeats) == 1:
        return f"{count} timed pass{'es' if count != '1' else ''}, too few to know the noise"
    few = ", which is few" if min(here.repeats, there.repeats) < _FEW_REPEATS else ""
    return f"medians of {count} timed passes{few}"


def _range(spread: Spread) -> str:
    return f"{time_text(spread.low)} to {time_text(spread.high)}"


def _run(run: Run) -> str:
    wall = run.wall_ns
    made = f"{_counted(run.molecules, 'molecule')}, {_counted(run.generated_tokens, 'token')}"
    if wall.median is None:
        return f"{run.setup.label}: {made}; no unprofiled times are recorded."
    shares = sorted(((phase.wall_ns or 0, name) for name, phase in run.phases.items()), reverse=True)
    largest = [f"{name} takes {percent_text(per(ns, wall.median))}" for ns, name in shares[:2] if ns]
    times = "the only timed pass" if wall.repeats == 1 else f"median of {wall.repeats} timed passes"
    each = time_text(per(wall.median, run.generated_tokens))
    tail = f"; {', '.join(largest)}" if largest else ""
    return f"{run.setup.label}: {made} in {time_text(wall.median)} ({times}), {each} for each token{tail}."


def _trace(report: Report) -> str:
    counts = report.counts
    span_ns = sum(device.span_ns for device in report.devices.values())
    busy_ns = sum(device.busy_ns for device in report.devices.values())
    if not report.trace.gpu_recorded:
        return f"{report_label(report)} holds no GPU calls and no GPU work."
    launches = f"{_counted(counts.launches, 'launch', 'es')}, {_counted(counts.kernels, 'kernel')}"
    if counts.graph_launches:
        launches = f"{_counted(counts.graph_launches, 'graph launch', 'es')}, {launches}"
    if not report.devices:
        return f"{report_label(report)} recorded {launches}, but no GPU work."
    devices = f"{len(report.devices)} GPUs together were" if len(report.devices) > 1 else "the GPU was"
    if not busy_ns:
        return f"{report_label(report)} recorded {launches}; how long the GPU's work took is not recorded."
    text = f"{report_label(report)} recorded {launches}; {devices} busy for {percent_text(per(busy_ns, span_ns))}"
    text += f" of {time_text(span_ns)}, first work to last"
    if largest := _largest_class(report):
        text += f"; {largest}"
    if cause := _largest_cause(report):
        text += f"; main cause of its idle time: {cause}"
    return text + "."


def _counted(count: int, name: str, plural: str = "s") -> str:
    return f"{count_text(count)} {name}{plural if count != 1 else ''}"


def _largest_class(report: Report) -> str:
    table = report.table("kernel_classes")
    if not table.rows:
        return ""
    row = dict(zip(table.columns, table.rows[0], strict=True))
    ratio = row["time_ratio"]
    if not isinstance(ratio, float):
        return f"largest kernel class: {row['class']}"
    return f"{percent_text(ratio)} of GPU time is {row['class']}"


def _largest_cause(report: Report) -> str:
    table = report.table("idle_causes")
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    idle_ns = sum(device.idle_ns for device in report.devices.values())
    times: dict[str, int] = {}
    for row in rows:
        if isinstance(row["time_ns"], int):
            times[str(row["cause"])] = times.get(str(row["cause"]), 0) + row["time_ns"]
    span_ns = sum(device.span_ns for device in report.devices.values())
    if not times or idle_ns < _LEAST_IDLE_RATIO * span_ns:
        return ""
    cause = max(times, key=lambda name: (times[name], name))
    return f"{_CAUSES.get(cause, cause)} ({percent_text(times[cause] / idle_ns)})"
