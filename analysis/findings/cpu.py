"""Findings on traces without a GPU: operators and functions that take the time, and their callers."""

from __future__ import annotations

from itertools import filterfalse

from molprof.analysis.findings.around import of_idle_time, of_operators
from molprof.analysis.findings.functions import is_of_masks
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.places import (
    NOWHERE,
    Location,
    Where,
    listed,
    location,
    placed,
    places_of,
    processor_places,
)
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.findings.waits import is_waiting
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import count_text, counted, percent_text, time_text

_LEAST_OPERATORS_PER_STEP = 20
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "mkldnn::_linear_pointwise")
_SMALL_MODEL = 1_000_000_000  # parameters
# Self time: without the operators that an operator calls.
_LONGEST = Query(
    "cpu_operations",
    "SELECT name, count, own_ns FROM molprof_top_cpu_operation ORDER BY own_ns DESC, name LIMIT 5",
)


@rule(
    id="host_operators",
    title="One operator takes a large part of the time on the CPU",
    fix="Look for a faster way to compute it: fewer bits, more threads, a compiled function, or a GPU.",
    explanation="Amdahl's law: no change of another operator can gain as much.",
    query="host_totals",
    needs=("time", "no_gpu"),
    rests_on=("host_time",),
    least_gain=0.1,
    weight=0.3,
)
def host_operators(known: TraceFacts) -> FindingEvidence | None:
    """Without a GPU, fire where the self time of one operator is 10 % of the time.

    Of a matrix product in a run of a model with fewer than a billion parameters it is a note: that is what such a model
    does on a CPU.

    Gain: the self time of that operator; that of several threads may pass the recorded time, and counts as all.
    """
    rows = known.rows(_LONGEST)
    if not rows or rows[0]["own_ns"] <= 0:
        return None
    run, first, others = known.report.run, rows[0], rows[1:4]
    share = known.scope.host_part(first["own_ns"])
    also = "; ".join(f"{row['name']} {time_text(row['own_ns'])}" for row in others)
    evidence = FindingEvidence(
        f"{first['name']}: {counted(first['count'], 'run')}, {time_text(first['own_ns'])} without the operators that "
        f"it calls, {percent_text(share)} of the time; then {also}",
        {"count": first["count"], "own_ns": first["own_ns"]},
        known.gain(share, "self time of that operator"),
        note=run is not None and first["name"] in _PRODUCTS and 0 < (run.setup.parameters or 0) < _SMALL_MODEL,
    )
    return placed(evidence, location(known, of_operators(known, first["name"])))


def _host_places(known: TraceFacts) -> list[Where]:
    """Return the locations of the thread with most time in operators while no thread is in one."""
    return [item for item in places_of(filterfalse(is_waiting, of_idle_time(known))) if item.label != NOWHERE]


@rule(
    id="host_functions",
    title="The CPU works outside operators",
    fix="Do that work for all rows at once, ahead in another thread, or in compiled code.",
    explanation="Python, and libraries that do not record what they do, run between the operators of torch.",
    query="idle_locations",
    needs=("time", "no_gpu"),
    rests_on=("host_time",),
    least_gain=0.1,
    weight=0.6,
)
def host_functions(known: TraceFacts) -> FindingEvidence | None:
    """Without a GPU, fire where one location has 10 % of the time while no thread is in an operator.

    Waiting does not count.

    Gain: the time at the place that takes most of it, while no thread is in an operator.
    """
    wheres = _host_places(known) if known.report.run is None else []
    if not wheres:
        return None
    time_ns, share = wheres[0].time_ns, known.scope.host_part(wheres[0].time_ns)
    all_ns = sum(item.time_ns for item in wheres)
    others = Location(wheres[0].label, 1.0, tuple(wheres))
    return FindingEvidence(
        f"{time_text(time_ns)} at one place, {percent_text(share)} of the time, while no thread is in an operator; "
        f"{time_text(all_ns)} in all{listed(others)}",
        {"time_ns": time_ns, "outside_ns": all_ns},
        known.gain(share, "time at that place"),
        part_of=("constraint",) if is_of_masks(known, wheres[0]) else (),
        location=others.name,
        location_ratio=others.ratio,
    )


@rule(
    id="processor_operators",
    title="The logits processor runs many small operators",
    fix="Use one operator on the whole batch, or compute on the host without tensors.",
    explanation="Each operator costs several microseconds of Python and torch, however small its tensor is.",
    query=(
        "SELECT slice.name, COUNT() AS calls FROM molprof_call_phase AS place JOIN molprof_phase AS phase"
        " ON phase.id = place.phase_id JOIN slice ON slice.id = place.id WHERE phase.phase = 'processor'"
        " AND slice.category = 'cpu_op' GROUP BY slice.name ORDER BY calls DESC, slice.name"
    ),
    needs=("processor", "steps"),
    rests_on=("host_time",),
    weight=0.7,
)
def processor_operators(known: TraceFacts) -> FindingEvidence | None:
    """Fire where the logits processor runs one operator from one location 20 times per step or more.

    Gain: the time of these operators in the processor's phase.
    """
    steps = known.scope.steps or 0
    wheres = processor_places(known)
    if not wheres or wheres[0].count < _LEAST_OPERATORS_PER_STEP * steps:
        return None
    most = [item for item in wheres if item.count >= _LEAST_OPERATORS_PER_STEP * steps]
    time_ns, count = sum(item.time_ns for item in most), sum(item.count for item in most)
    where = Location(most[0].label, most[0].time_ns / max(1, time_ns), tuple(most))
    return FindingEvidence(
        f"{count_text(round(count / steps))} operators per step in the processor, {time_text(time_ns / steps)} per "
        f"recorded step{listed(where)}",
        {"operators_per_step": count / steps, "time_ns": time_ns},
        known.gain(known.scope.host_part(time_ns, "processor"), "these operators in the processor"),
        part_of=("constraint",),
        location=where.name,
        location_ratio=where.ratio,
    )
