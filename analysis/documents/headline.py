"""The first lines of a report: what bounds the time, its largest parts, steps, classes of GPU work, idle time."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from molprof.analysis.documents.limits import busy_text, largest_cause, lost_times, odd_steps
from molprof.analysis.documents.program import paired_lines, program_lines, program_times
from molprof.analysis.documents.served import client_lines
from molprof.analysis.figures import Report
from molprof.analysis.figures.bottleneck import PARTS, parts_text
from molprof.analysis.figures.labels import report_label
from molprof.analysis.figures.run_model import PhaseFigures, Run
from molprof.common.document import Section, pairs
from molprof.common.values import by_unit, count_text, counted, per, percent_text, time_text

# A smaller part of what bounds the time is not named.
_LEAST_NAMED = 0.1
# Below this share of a phase host syncs are not worth a word.
_LEAST_WAITING_RATIO = 0.1
# Smaller parts of the time stand together.
_LEAST_PART = 0.01
# What a screen without room leaves out before it leaves out a finding.
_LEAST_ROWS = ("GPU work", "idle time")
# Classes of GPU work that are named.
_CLASSES = 3
_BOUNDS = {
    "gpu": "GPU-bound",
    "communication": "communication-bound",
    "transfer": "transfer-bound",
    "launch": "launch-bound",
    "input": "input-bound",
    "constraint": "constraint-bound",
    "host": "host-bound",
    "wait": "bound by waits",
}


def report_verdict(report: Report) -> tuple[str, ...]:
    """Return the lines that sum up one trace: what bounds its time; of a run, its time and what takes most of it."""
    if report.run is None:
        return (*client_lines(report), _trace(report), *program_lines(report))
    if report.trace.gpu_recorded:
        return (_run(report.run), *paired_lines(report.run), _trace(report))
    bound = _bound(report)
    return (_run(report.run), *paired_lines(report.run), *([f"{bound[0].upper()}{bound[1:]}."] if bound else ()))


def overview(report: Report) -> Section:
    """Return the section of time, steps, the largest classes of GPU work, and the main cause of idle time."""
    bottleneck = report.bottleneck
    title = "What was recorded"
    if bottleneck is not None and bottleneck.parts:
        of = "recorded steps, profiled" if report.run is not None else f"{bottleneck.of}, {time_text(bottleneck.of_ns)}"
        title = f"What sets the time ({of})"
    rows = _overview(report)
    least = [(number,) for number, (name, _) in enumerate(rows) if name in _LEAST_ROWS]
    return Section(title, table=replace(pairs(rows), later=((), (), tuple(reversed(least)))))


def overview_lines(report: Report) -> list[str]:
    """Return the rows of the overview as sentences."""
    return [f"{name[0].upper()}{name[1:]}: {text}." for name, text in _overview(report)]


def _overview(report: Report) -> list[tuple[str, str]]:
    bottleneck, lost = report.bottleneck, lost_times(report) is not None
    parts = {} if bottleneck is None or lost else bottleneck.parts
    rows = [
        ("time", parts_text(parts, _LEAST_PART) if parts else ""),
        ("steps", _steps(report)),
        ("GPU work", "" if lost else _classes(report)),
        ("idle time", "" if lost else largest_cause(report)),
    ]
    return [row for row in rows if row[1]]


def _run(run: Run) -> str:
    wall = run.wall_ns
    amount = f"{counted(run.molecules, run.noun)}, {counted(run.generated_tokens, 'token')}"
    if not run.has_answers:
        amount = f"{counted(run.steps, 'step')} whose tokens are not recorded"
    if wall.median is None:
        return f"{run.setup.label}: {amount}; no unprofiled times are recorded.{_cut_answers(run)}"
    named = [name for name in run.phases if name != "processor" or run.has_processor]
    shares = sorted(((run.phases[name].wall_ns or 0, name) for name in named), reverse=True)
    largest = "".join(
        f", {name} takes {percent_text(per(ns, wall.median))}{_waiting(run.phases[name])}"
        for ns, name in shares[:2]
        if ns
    )
    times = "the only timed pass" if wall.repeats == 1 else f"median of {wall.repeats} timed passes"
    times = program_times(run) or times
    whole, per_what = (run.generated_tokens, "token") if run.has_answers else (run.steps, "step")
    each = f"{time_text(per(wall.median, whole))} per {per_what}"
    tail = f"; {largest.removeprefix(', ')}" if largest else ""
    return f"{run.setup.label}: {amount} in {time_text(wall.median)} ({times}), {each}{tail}.{_cut_answers(run)}"


def _cut_answers(run: Run) -> str:
    """Return a note on answers that the token limit ended: their tokens and times are not of whole answers."""
    if not run.cut_answers:
        return ""
    number = "All" if run.cut_answers == run.molecules else f"{count_text(run.cut_answers)} of"
    answers = f"{number} {run.molecules:,} answers" if run.molecules > 1 else "The answer"
    return f" {answers} stopped at the token limit of {count_text(run.setup.max_new_tokens)}."


def _waiting(phase: PhaseFigures) -> str:
    """Return the share of a phase that is host syncs, if large: the time is spent waiting for work of other phases."""
    ratio = per(phase.sync_ns, phase.host_ns) or 0.0
    return f" ({percent_text(ratio)} of it in host syncs)" if ratio >= _LEAST_WAITING_RATIO else ""


def _trace(report: Report) -> str:
    counts, devices, label = report.counts, report.devices.values(), report_label(report)
    span_ns = sum(device.span_ns for device in devices)
    busy_ns = sum(device.busy_ns for device in devices)
    if not report.trace.gpu_recorded:
        if unread := report.doubts_on(["gpu_work"]):
            return f"No GPU calls and no GPU work were read of {label}: {unread[0].reason}."
        return f"{label}: {_of_cpu(report)}"
    launches = counted(counts.launches, "launch", "es")
    if counts.graph_launches:
        launches = f"{counted(counts.graph_launches, 'graph launch', 'es')}, {launches}"
    if not devices:
        if counts.launches or counts.graph_launches:
            return f"{label} recorded {launches}, but no GPU work."
        return f"{label}: {_of_cpu(report)} GPU calls are recorded, but no launch and no GPU work."
    if not busy_ns:
        kernels = counted(counts.kernels, "kernel")
        return f"{label} recorded {launches}, {kernels}; how long the GPU's work took is not recorded."
    if (reason := lost_times(report)) is not None:
        recorded = (
            f"{counted(counts.launches + counts.graph_launches, 'launch', 'es')}, {counted(counts.kernels, 'kernel')}"
        )
        return f"{label} recorded {recorded}; how long the GPU was busy is not to be had: {reason}."
    bound = f"{verdict}; " if (verdict := _bound(report)) else ""
    gpus = f"{len(devices)} GPUs together were" if len(devices) > 1 else "the GPU was"
    busy = f"{gpus} busy for {busy_text(report, busy_ns, span_ns)} of {time_text(span_ns)}, first work to last"
    return f"{label}: {odd_steps(report)}{bound}{busy}."


def _bound(report: Report) -> str:
    """Return the verdict with the share of the time that it takes; empty where there is none."""
    bottleneck = report.bottleneck
    if bottleneck is None or bottleneck.bound is None or bottleneck.ratio is None:
        return ""
    if bottleneck.bound == "gpu" and report.run is None:  # how long it was busy follows
        return _BOUNDS["gpu"]
    parts = {name: bottleneck.parts.get(name, 0) for name, (_, bound) in PARTS.items() if bound == bottleneck.bound}
    whole = sum(parts.values())
    names = [PARTS[name][0] for name, value in parts.items() if name != "pauses" and value >= _LEAST_NAMED * whole]
    if not bottleneck.parts:  # of the CPU alone
        names = ["masks and logits processors"]
    of = "the time" if report.run is None else f"the {bottleneck.of}"
    return f"{_BOUNDS[bottleneck.bound]} ({' and '.join(names)}: {percent_text(bottleneck.ratio)} of {of})"


def _of_cpu(report: Report) -> str:
    """Return what bounds a trace without GPU work, if phases show it, and the time of its operators."""
    rows: Any = report.table("operator_time").to_json()
    bound = f", {verdict}" if (verdict := _bound(report)) else ""
    if not rows:
        return f"a CPU-only trace without operators{bound}."
    (row,) = rows
    first: Any = report.table("top_cpu_operations").to_json()[0]
    took = f"{counted(row['count'], 'operator')} took {time_text(row['time_ns'])}, all threads together"
    most = f"{first['name']} {percent_text(per(first['own_ns'], row['time_ns']))} of it"
    span = "" if report.bottleneck is None else f" {time_text(report.bottleneck.of_ns)} are recorded."
    return f"a CPU-only trace{bound}; {took}, {most}.{span}"


def _steps(report: Report) -> str:
    """Return the number of steps of each kind, their durations, and a first one that is unlike the rest."""
    rows: Any = report.table("step_lengths").to_json()
    if not rows or (report.run is not None and report.run.wall_ns.median):  # figures have unprofiled times of steps
        return ""
    host, gpu = ([row for row in rows if row["measure"] == measure] for measure in ("host", "gpu"))
    of_work = f"; GPU work from first to last {_lengths(gpu, False)}" if gpu else ""
    inferred = "; prefill and decode distinguished by length" if any(row["is_inferred"] for row in rows) else ""
    return f"{_lengths(host, True)} on the host{of_work}{inferred}"


def _lengths(rows: list[dict[str, Any]], is_named: bool) -> str:
    """Return the median of each kind of step, its range, and a first step that is unlike the rest."""
    texts = []
    for row in rows:
        name = f"{row['kind']} step" if row["kind"] else "step"
        text = time_text(row["median_ns"])
        if is_named:
            text = f"{counted(row['steps'], name)} of {text}"
        if row["steps"] > 1:
            first = f"; the first {time_text(row['first_ns'])}" if row["first_is_unlike"] else ""
            span = by_unit("ns", (row["shortest_ns"], row["longest_ns"]))
            text += f" (median; {span}{first})"
        texts.append(text)
    return ", ".join(texts)


def _classes(report: Report) -> str:
    """Return the largest classes of GPU work."""
    rows: Any = report.table("kernel_classes").to_json()[:_CLASSES]
    shares = [(row["class"], row["time_ratio"]) for row in rows if isinstance(row["time_ratio"], float)]
    return ", ".join(f"{name} {percent_text(share)}" for name, share in shares)
