"""The answer in a sentence or two: what a document says first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from molprof.analysis.compare import Comparison, report_label
from molprof.analysis.compare.comparable import one_file
from molprof.analysis.compare.difference import named_parts
from molprof.analysis.compare.model import Difference, TraceDifference
from molprof.analysis.compare.parts import MACHINE, PART_LABELS, group_of
from molprof.analysis.compare.rows import ComparedRow
from molprof.analysis.compare.statistics import Interval
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import IDLE_CAUSES
from molprof.analysis.figures.run_model import PhaseFigures, Run, Spread
from molprof.common.values import (
    count_text,
    counted,
    factor_text,
    per,
    percent_text,
    signed_percent_text,
    signed_time_text,
    time_text,
)

# Below this share of the difference the machine is not worth a word.
_LEAST_MACHINE_RATIO = 0.1
# Parts that cancel each other are many times their sum: their shares of it say nothing.
_MOST_SHARE = 5
_FEW_REPEATS = 3
# Below this share of the span the cause does not matter.
_LEAST_IDLE_RATIO = 0.001
# Below this share of a phase host syncs are not worth a word.
_LEAST_WAITING_RATIO = 0.1
# A run whose share of valid molecules is smaller by this did not do the same work.
_VALID_RATIO = 0.25
# If less than this share is valid in both runs, neither did its work.
_LOW_VALID_RATIO = 0.5


def comparison_verdict(comparison: Comparison) -> tuple[str, ...]:
    """One statement for each run after the first."""
    first_label, first = comparison.labels[0], comparison.runs[0]
    wall = next(row for row in comparison.rows if row.figure.id == "wall_ns")
    statements = []
    for place, (label, report) in enumerate(zip(comparison.labels[1:], comparison.runs[1:], strict=True)):
        recorded, difference = comparison.trace_differences[place], comparison.differences[place]
        if one_file(first, report):
            statements.append(f"{label} and {first_label} are one file, or copies of one: {report.trace.path}.")
        elif recorded is not None:
            statements.append(_recorded(label, recorded, first_label))
        elif difference is None or report.run is None or first.run is None:
            statements.append(
                f"{label} against {first_label}: which is faster is not recorded: that requires unprofiled "
                "times of both; the tables compare what the traces recorded."
            )
        else:
            statements.append(
                _against(label, report.run, difference, first_label, first.run, wall, place + 1)
                + _doubts(difference)
                + _validity(label, report.run, first_label, first.run)
            )
    return tuple(statements)


def report_verdict(report: Report) -> tuple[str, ...]:
    """What one trace shows: of a run, its time and what takes most of it; of another trace, what the GPU did."""
    if report.run is None:
        return (_trace(report),)
    return (_run(report.run), _trace(report)) if report.trace.gpu_recorded else (_run(report.run),)


def _against(
    label: str, run: Run, difference: Difference, first_label: str, first_run: Run, wall: ComparedRow, place: int
) -> str:
    here, there, interval = run.wall_ns, first_run.wall_ns, wall.ratio_intervals[place]
    times = f"{time_text(here.median)} against {time_text(there.median)}"
    measured = _measured(here, there, difference, interval)
    if wall.within_noise(place):
        said = f"timed passes range over {_range(here)} and {_range(there)}"
        if difference.paired and interval is not None:
            low, high = (signed_percent_text(end - 1) for end in (interval.low, interval.high))
            said = f"{measured}, by {low} to {high}"
        named = ", ".join(_named(difference, difference.causes, there.median))
        small = f"; but beyond noise, of the time of {first_label}: {named}" if named else ""
        return f"No difference beyond noise between {label} and {first_label}: {times}; {said}{small}."
    ratio = wall.ratios[place]
    if ratio is None:
        return f"{label} against {first_label}: {times}."
    return f"{label} takes {factor_text(ratio)} the time of {first_label} ({times}, {measured}){_parts(difference)}."


def _recorded(label: str, difference: TraceDifference, first_label: str) -> str:
    """Of traces without unprofiled times only what was recorded can be told."""
    several = max(difference.devices) > 1
    span = "GPU spans, first work to last, are together" if several else "GPU span, first work to last, is"
    longer = f"{'longer' if difference.span_ns >= 0 else 'shorter'} than {'those' if several else 'that'}"
    busy_ns = difference.parts.get("busy", 0)
    idle_ns = sum(ns for name, ns in difference.parts.items() if name.startswith("idle."))
    return (
        f"{label}: the recorded {span} {time_text(abs(difference.span_ns))} {longer} of {first_label} (busy "
        f"{signed_time_text(busy_ns)}, idle {signed_time_text(idle_ns)}); which is faster is not recorded: that "
        "requires unprofiled times of both."
    )


def _doubts(difference: Difference) -> str:
    """Why times of separate captures may mislead; rounds of paired runs meet the same machine."""
    if difference.paired or not difference.doubts:
        return ""
    return f" Not reliable: {'; '.join(difference.doubts)}."


def _validity(label: str, run: Run, first_label: str, first: Run) -> str:
    """Valid molecules where a run has few, or far fewer: a time says little about unusable answers."""
    ratios = [per(item.valid_molecules, item.molecules) for item in (run, first)]
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios) or (max(known) - min(known) < _VALID_RATIO and max(known) >= _LOW_VALID_RATIO):
        return ""
    here, there = (
        f"{count_text(item.valid_molecules)} of {counted(item.molecules, 'molecule')}" for item in (run, first)
    )
    return f" Valid: {here} of {label}, {there} of {first_label}."


def _parts(difference: Difference) -> str:
    """The causes, in both directions, and how much is the machine's."""
    if not difference.wall_ns:
        return ""
    parts = difference.parts
    along = [part for part in difference.causes if parts[part] * difference.wall_ns > 0]
    against = [part for part in difference.causes if parts[part] * difference.wall_ns < 0]
    text = ""
    if along:
        most = sum(parts[part] for part in along) / difference.wall_ns > 0.5
        text = f": {'most of it is' if most else 'the largest parts are'} {', '.join(_named(difference, along))}"
    if against:
        text += f"{'; ' if text else ': '}in the other direction: {', '.join(_named(difference, against))}"
    if not difference.causes:
        text = ": no part of unequal work differs beyond noise" if difference.intervals else _unknown(difference)
    machine_ns = sum(ns for part, ns in parts.items() if group_of(part) == MACHINE)
    share = machine_ns / difference.wall_ns
    if abs(share) < _LEAST_MACHINE_RATIO:
        return text
    told = f" ({percent_text(share)})" if abs(share) <= _MOST_SHARE else ""
    return f"{text}; {signed_time_text(machine_ns)}{told} is the same work at another speed: the machine"


def _unknown(difference: Difference) -> str:
    """The largest parts of too few passes to tell them from noise."""
    largest = named_parts({part: ns for part, ns in difference.parts.items() if ns and group_of(part) != MACHINE})
    return f": largest parts, of unknown noise: {', '.join(_named(difference, largest))}" if largest else ""


def _named(difference: Difference, parts: Iterable[str], base_ns: int | None = None) -> Iterator[str]:
    """Each part with its time and its share of `base_ns`, else of the difference."""
    for part in parts:
        ns, whole_ns = difference.parts[part], base_ns or difference.wall_ns
        share = f", {percent_text(ns / whole_ns)}" if whole_ns and abs(ns / whole_ns) <= _MOST_SHARE else ""
        yield f"{PART_LABELS.get(part, part)} ({signed_time_text(ns)}{share})"


def _measured(here: Spread, there: Spread, difference: Difference, interval: Interval | None) -> str:
    """How the times were measured."""
    if not difference.paired:
        return f"{_repeats(here, there)}, unpaired"
    few = ", too few to know the noise" if interval is None else ""
    return f"paired, {counted(difference.rounds, 'round')}{few}"


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
    made = f"{counted(run.molecules, run.noun)}, {counted(run.generated_tokens, 'token')}"
    if wall.median is None:
        return f"{run.setup.label}: {made}; no unprofiled times are recorded.{_cut(run)}"
    shares = sorted(((phase.wall_ns or 0, name) for name, phase in run.phases.items()), reverse=True)
    largest = "".join(
        f", {name} takes {percent_text(per(ns, wall.median))}{_waiting(run.phases[name])}"
        for ns, name in shares[:2]
        if ns
    )
    times = "the only timed pass" if wall.repeats == 1 else f"median of {wall.repeats} timed passes"
    each = time_text(per(wall.median, run.generated_tokens))
    tail = f"; {largest.removeprefix(', ')}" if largest else ""
    return f"{run.setup.label}: {made} in {time_text(wall.median)} ({times}), {each} per token{tail}.{_cut(run)}"


def _cut(run: Run) -> str:
    """Answers that the token limit ended: their tokens and times are not of whole ones."""
    if not run.cut_answers:
        return ""
    number = "All" if run.cut_answers == run.molecules else f"{count_text(run.cut_answers)} of"
    answers = counted(run.molecules, "answer")
    return f" {number} {answers} stopped at the token limit of {count_text(run.setup.max_new_tokens)}."


def _waiting(phase: PhaseFigures) -> str:
    """A phase that waits for the GPU's work of other phases is not what takes the time."""
    ratio = per(phase.sync_ns, phase.host_ns) or 0.0
    return f" ({percent_text(ratio)} of it in host syncs)" if ratio >= _LEAST_WAITING_RATIO else ""


def _trace(report: Report) -> str:
    counts, devices, label = report.counts, report.devices.values(), report_label(report)
    span_ns = sum(device.span_ns for device in devices)
    busy_ns = sum(device.busy_ns for device in devices)
    if not report.trace.gpu_recorded:
        return f"{label} holds no GPU calls and no GPU work."
    launches = f"{counted(counts.launches, 'launch', 'es')}, {counted(counts.kernels, 'kernel')}"
    if counts.graph_launches:
        launches = f"{counted(counts.graph_launches, 'graph launch', 'es')}, {launches}"
    if not devices:
        return f"{label} recorded {launches}, but no GPU work."
    if not busy_ns:
        return f"{label} recorded {launches}; how long the GPU's work took is not recorded."
    gpus = f"{len(devices)} GPUs together were" if len(devices) > 1 else "the GPU was"
    busy = f"busy for {percent_text(per(busy_ns, span_ns))} of {time_text(span_ns)}, first work to last"
    return f"{label} recorded {launches}; {gpus} {busy}{_largest_class(report)}{_largest_cause(report)}."


def _largest_class(report: Report) -> str:
    rows = report.table("kernel_classes").to_json()
    if not rows:
        return ""
    row = rows[0]
    ratio = row["time_ratio"]
    if not isinstance(ratio, float):
        return f"; largest kernel class: {row['class']}"
    return f"; {percent_text(ratio)} of GPU time is {row['class']}"


def _largest_cause(report: Report) -> str:
    idle_ns = sum(device.idle_ns for device in report.devices.values())
    span_ns = sum(device.span_ns for device in report.devices.values())
    times: Counter[str] = Counter()
    for row in report.table("idle_causes").to_json():
        if isinstance(row["time_ns"], int):
            times[str(row["cause"])] += row["time_ns"]
    if not times or idle_ns < _LEAST_IDLE_RATIO * span_ns:
        return ""
    cause = max(times, key=lambda name: (times[name], name))
    return f"; main cause of idle time: {IDLE_CAUSES.get(cause, cause)} ({percent_text(times[cause] / idle_ns)})"
