"""Findings on masks of constrained decoding in an engine, from its phases."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.facts import SCHEDULER_WAIT
from molprof.analysis.facts.phases import followed_by
from molprof.analysis.figures.figure import any_masks
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.frame import Frame
from molprof.analysis.trace_processor.package import Query
from molprof.analysis.union import Union
from molprof.common.values import counted, number_text, time_text

FILLING = ("mask_fill", "mask_fill_per_request")
MASKS = (*FILLING, "mask_accept_per_request", "mask_copy", "mask_apply")
# Own time of each phase; of a GPU's trace the part in which no device worked.
_TIMES = Query(
    "phase_bound",
    """
SELECT total.phase, total.count, total.time_ns, total.own_ns,
  IFNULL(bound.sync_idle_ns + bound.launch_ns, total.own_ns) AS exposed_ns
FROM molprof_phase_total AS total
LEFT JOIN molprof_phase_bound_summary AS bound ON bound.phase = total.phase
WHERE total.program != 'molprof'
ORDER BY total.phase
""",
)
# Step by step; of a GPU's trace also the work.
_STEPS = Query(
    "masks",
    "SELECT ts, ts + dur AS ts_end, IFNULL(span, -1) AS span, IFNULL(sequences, 0) AS sequences,"
    " IFNULL(masks, 0) AS masks, IFNULL(unconstrained, 0) AS unconstrained, IFNULL(fill_ns, 0) AS fill_ns,"
    " IFNULL(fill_exposed_ns, 0) AS fill_exposed_ns, mask_exposed_ns, IFNULL(forward_ns, 0) AS forward_ns"
    " FROM molprof_mask_step ORDER BY ts, step_id",
)
_WORK = Query("gpu_work", "SELECT ts, ts + dur AS ts_end FROM molprof_gpu_work ORDER BY ts")
_WAITS = Query(
    "phase_bound",
    f"""
SELECT phase.id, IFNULL(bound.sync_idle_ns + bound.launch_ns, phase.own_ns) AS exposed_ns
FROM molprof_phase AS phase
LEFT JOIN molprof_phase_bound AS bound ON bound.phase_id = phase.id
WHERE phase.phase = '{SCHEDULER_WAIT}'
ORDER BY phase.id
""",
)
_BITMASKS = Query(
    "work_totals",
    "SELECT IFNULL(SUM(count), 0) AS count FROM molprof_work_total"
    " WHERE category = 'kernel' AND LOWER(name) GLOB '*bitmask*'",
)
# Of each half of the steps, so that one jump is no growth.
_LEAST_OF_HALF = 8
# More pairs of steps tell no more, and are many.
_MOST_STEPS = 400
_QUANTILE = 1.96  # of the normal distribution, for 95 %


def _growth(values: np.ndarray) -> tuple[float, float, float] | None:
    """Return the slope of values, with its 95 % interval: the median of the slopes of all pairs (Sen, JASA 63, 1968).

    Nothing is assumed of their distribution but that errors are independent. None for too few.
    """
    count = len(values)
    if count < _LEAST_OF_HALF:
        return None
    first, second = np.triu_indices(count, 1)
    slopes = np.sort((values[second] - values[first]) / (second - first))
    cut = _QUANTILE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, int((len(slopes) - cut) / 2))
    return float(np.median(slopes)), float(slopes[low]), float(slopes[len(slopes) - 1 - low])


def _longest_span(steps: Frame) -> Frame | None:
    """Return the longest run of decode steps with the same sequences, in which masks are filled."""
    steps = steps.where((steps["span"] >= 0) & (steps["fill_ns"] > 0) & (steps["masks"] > 0))
    if not len(steps):
        return None
    numbers, counts = np.unique(steps["span"].astype(np.int64), return_counts=True)
    return steps.where(steps["span"] == numbers[counts.argmax()])


class SchedulerWaits(Struct, frozen=True):
    """How long workers wait for the scheduler's process while no device works, ns."""

    count: int
    all_ns: int
    masks_ns: int  # right before masks are applied: what was left of filling them there when the forward had ended


def scheduler_waits(known: TraceFacts) -> SchedulerWaits | None:
    """Return the waits of an engine's workers for its scheduler, in the recorded span; None where none are recorded."""
    waits, phases = known.frame(_WAITS), known.facts.phases
    first, last = known.facts.span
    whole = phases.id[(phases.ts >= first) & (phases.ts_end <= last)]
    waits = waits.where(np.isin(waits["id"].astype(np.int64), whole))
    if not len(waits):
        return None
    names = known.facts.phase_names
    kinds = np.array([names[phase] for phase in phases.id.tolist()], dtype=object)
    before = followed_by(phases, kinds == SCHEDULER_WAIT, kinds == "mask_apply")
    exposed_ns = waits["exposed_ns"].astype(np.int64)
    of_masks = np.isin(waits["id"].astype(np.int64), before)
    return SchedulerWaits(len(waits), int(exposed_ns.sum()), int(exposed_ns[of_masks].sum()))


def phase_times(known: TraceFacts) -> dict[str, dict[str, int | None]]:
    """Return `count`, `time_ns`, `own_ns` and `exposed_ns` (no device works) by phase of an engine."""
    return {row.pop("phase"): row for row in map(dict, known.rows(_TIMES))}


def summed_over(phases: dict[str, dict[str, int | None]], column: str, *names: str) -> int:
    """Return the sum of a column of some phases."""
    return sum(phases.get(name, {}).get(column) or 0 for name in names)


@rule(
    id="mask_fill_serial",
    title="Masks are filled one row after the other",
    fix="Fill the masks of all rows at once or in several threads, as XGrammar's BatchGrammarMatcher does.",
    explanation="The rows of a batch wait for each other's masks, though none depends on another.",
    query="phase_times",
    needs=("masks", "time"),
    rests_on=("host_time",),
    weight=0.5,
)
def mask_fill_serial(known: TraceFacts) -> FindingEvidence | None:
    """Fire where the masks of two rows per step or more are filled one by one.

    Rows that other threads fill do not count. Gain: all filling except that of one average row per step, of a GPU's
    trace while no device worked.
    """
    phases = phase_times(known)
    steps, rows = summed_over(phases, "count", "mask_fill"), summed_over(phases, "count", "mask_fill_per_request")
    fill_ns = summed_over(phases, "time_ns", "mask_fill")
    rows_ns = fill_ns - summed_over(phases, "own_ns", "mask_fill")
    if not rows_ns or rows < 2 * steps:
        return None
    # Filling that GPU work hides costs nothing.
    seen = summed_over(phases, "exposed_ns", *FILLING) / summed_over(phases, "own_ns", *FILLING)
    return FindingEvidence(
        f"{counted(rows, 'row')} in {counted(steps, 'step')}, {time_text(rows_ns / rows)} each, one by one: "
        f"{time_text(rows_ns)} of {time_text(fill_ns)} of filling",
        {"rows_per_step": rows / steps, "row_ns": rows_ns / rows, "fill_ns": fill_ns},
        known.gain(known.scope.host_part(seen * rows_ns * (1 - steps / rows)), "filling of all rows of a step but one"),
        part_of=("constraint",),
    )


@rule(
    id="mask_fill_waits",
    title="Masks are not filled while the forward runs",
    fix="Start the forward, then fill the masks on the host, and wait for both before sampling.",
    explanation="The mask of a step depends on the tokens before it, as the forward does, and not on its logits.",
    query="masks",
    needs=("masks", "time"),
    rests_on=("host_time",),
    weight=0.5,
)
def mask_fill_waits(known: TraceFacts) -> FindingEvidence | None:
    """Fire where masks are filled while no device works, and there is work that could hide it.

    Gain: step by step, the filling, at most the time of that work: of the GPU, else of the forward, if other cores fill
    meanwhile. Where no steps are marked, of all steps together.
    """
    phases, devices = phase_times(known), known.scope.devices
    fill_ns = summed_over(phases, "exposed_ns", *FILLING)
    forward_ns = known.scope.busy_ns // devices if devices else summed_over(phases, "time_ns", "forward")
    if not fill_ns or not forward_ns:
        return None
    steps, saved_ns, each = known.frame(_STEPS), min(fill_ns, forward_ns), ""
    if len(steps):
        room_ns = steps["forward_ns"]
        if devices:
            work = known.frame(_WORK)
            room_ns = Union(work["ts"], work["ts_end"]).covered(steps["ts"], steps["ts_end"])
            room_ns = room_ns - (steps["fill_ns"] - steps["fill_exposed_ns"])
        saved_ns = int(np.minimum(steps["fill_exposed_ns"], np.maximum(room_ns, 0)).sum())
        whole_ns, number = int((steps["ts_end"] - steps["ts"]).sum()), len(steps)
        if not saved_ns or whole_ns <= saved_ns:
            return None
        each = (
            f"; hidden step by step, a step of {time_text(whole_ns / number)} takes "
            f"{time_text((whole_ns - saved_ns) / number)} at least: {number_text(whole_ns / (whole_ns - saved_ns))} "
            "times as fast at most"
        )
    beside, behind = ("while no GPU works", "GPU work") if devices else ("in all", "the forwards")
    longer = "longer than" if fill_ns > forward_ns else "no longer than"
    return FindingEvidence(
        f"filling takes {time_text(fill_ns)} {beside}, {longer} {behind}, {time_text(forward_ns)}{each}",
        {"fill_ns": fill_ns, "forward_ns": forward_ns, "hidden_ns": saved_ns},
        known.gain(known.scope.host_part(saved_ns), f"the shorter of filling and {behind} in each step"),
        part_of=("constraint",),
    )


@rule(
    id="mask_fill_grows",
    title="Filling a mask takes longer with every token",
    fix=(
        "Look at what the grammar holds there (maxLength, a long repetition, nested alternatives): write it shorter, "
        "or let the engine's grammar library keep masks of states that it was in."
    ),
    explanation="A matcher whose states multiply, or whose cache misses, does more work at every token.",
    query="SELECT position, span, masks, fill_ns, dur FROM molprof_mask_step WHERE span IS NOT NULL ORDER BY ts",
    needs=("masks", "time"),
    rests_on=("host_time", "steps"),
    weight=0.5,
)
def mask_fill_grows(known: TraceFacts) -> FindingEvidence | None:
    """Fire where the time to fill a mask grows with the step, in the longest run of steps with the same sequences.

    The 95 % interval of its slope is above 0 in the first half of the steps, and in the second.

    Gain: all filling above the median of the first quarter of those steps, of a GPU's trace while no device worked.
    """
    steps = _longest_span(known.frame(_STEPS))
    if steps is None:
        return None
    each_ns = (steps["fill_ns"] / steps["masks"]).astype(np.float64)
    thinned = each_ns[:: math.ceil(len(each_ns) / _MOST_STEPS)]
    half = len(thinned) // 2
    whole, halves = _growth(thinned), (_growth(thinned[:half]), _growth(thinned[half:]))
    if whole is None or any(growth is None or growth[1] <= 0 for growth in halves):
        return None
    stride, quarter = len(each_ns) / len(thinned), len(each_ns) // 4
    slope, low, high = (value / stride for value in whole)
    first_ns, last_ns = float(np.median(each_ns[:quarter])), float(np.median(each_ns[-quarter:]))
    above_ns = float((np.maximum(1 - first_ns / each_ns, 0) * steps["fill_exposed_ns"]).sum())
    return FindingEvidence(
        f"{time_text(first_ns)} per mask in the first quarter of {counted(len(each_ns), 'step')} with the same "
        f"{counted(int(steps['sequences'][0]), 'sequence')}, {time_text(last_ns)} in the last: {time_text(slope)} more "
        f"per step (95 %: {time_text(low)} to {time_text(high)})",
        {"slope_ns": slope, "low_ns": low, "high_ns": high, "first_ns": first_ns, "last_ns": last_ns,
         "steps": len(each_ns)},
        known.gain(known.scope.host_part(above_ns), "filling above its time at the beginning"),
        part_of=("constraint",),
    )  # fmt: skip


@rule(
    id="unconstrained_wait",
    title="Requests without constraints wait for masks",
    fix="Fill masks while the forward runs, or serve constrained requests by an instance of their own.",
    explanation="All rows of a step are sampled together, when the last mask is filled and applied.",
    query="SELECT * FROM molprof_mask_mix",
    needs=("masks", "time"),
    rests_on=("host_time", "steps"),
    weight=0.5,
)
def unconstrained_wait(known: TraceFacts) -> FindingEvidence | None:
    """Fire where decode steps have sequences with masks and others without.

    Gain: the time of masks in these steps, of a GPU's trace that in which no device worked, times the share of their
    sequences that are without.
    """
    steps = known.frame(_STEPS)
    steps = steps.where((steps["unconstrained"] > 0) & (steps["masks"] > 0) & (steps["mask_exposed_ns"] > 0))
    if not len(steps):
        return None
    waits = steps["mask_exposed_ns"]
    rows, without = int(steps["sequences"].sum()), int(steps["unconstrained"].sum())
    waited_ns = float((waits * steps["unconstrained"] / steps["sequences"]).sum())
    return FindingEvidence(
        f"{number_text(without / len(steps))} of {number_text(rows / len(steps))} sequences have no mask in "
        f"{counted(len(steps), 'step')}, and wait {time_text(float(waits.mean()))} in each for those of the others",
        {"steps": len(steps), "unconstrained": without / len(steps), "wait_ns": float(waits.mean())},
        known.gain(known.scope.host_part(waited_ns), "time of masks, by the share of sequences without"),
        part_of=("constraint",),
    )


@rule(
    id="grammar_compile_waits",
    title="Compiling grammars delays first tokens",
    fix="Compile known grammars before requests come; send the same text for the same grammar, so that it is found.",
    explanation="A request cannot start before its grammar is compiled; compiling in the engine's loop delays all.",
    query="SELECT phase, ts, dur, tid FROM molprof_phase WHERE phase GLOB 'grammar_*' ORDER BY ts",
    needs=("masks", "time"),
    rests_on=("host_time",),
)
def grammar_compile_waits(known: TraceFacts) -> FindingEvidence | None:
    """Fire where an engine compiles grammars, or waits for that, while it and its GPU do nothing else.

    Gain: that time.
    """
    names, lanes, work = known.facts.phase_names, known.facts.innermost_phases, known.facts.work
    if "grammar_compile" not in names.values():
        return None
    kinds = ("grammar_compile", "grammar_wait")
    compiling = np.array([names[phase] in kinds for phase in lanes.id.tolist()], dtype=bool)
    union = Union(lanes.ts[compiling], lanes.ts_end[compiling])
    others = Union(np.append(lanes.ts[~compiling], work.ts), np.append(lanes.ts_end[~compiling], work.ts_end))
    alone_ns = union.length_ns - union.common_ns(others)
    phases = phase_times(known)
    count, lookups = summed_over(phases, "count", "grammar_compile"), summed_over(phases, "count", "grammar_lookup")
    time_ns, waited_ns = (summed_over(phases, "time_ns", name) for name in ("grammar_compile", "grammar_wait"))
    kept = f"; {lookups - count} of {lookups} were found in the cache" if lookups >= count > 0 else ""
    waited = f", and {time_text(waited_ns)} of waiting for it" if waited_ns else ""
    return FindingEvidence(
        f"{counted(count, 'grammar')} compiled in {time_text(time_ns)}{waited}: {time_text(alone_ns)} while nothing "
        f"else ran, before the first tokens of their requests{kept}",
        {"grammars": count, "compile_ns": time_ns, "wait_ns": waited_ns, "alone_ns": alone_ns},
        known.gain(known.scope.host_part(alone_ns), "compiling while nothing else ran"),
    )


@rule(
    id="scheduler_waits",
    title="The worker waits for the scheduler",
    fix=(
        "Record the scheduler too: molprof run --processes starts the server so (vLLM:"
        " VLLM_ENABLE_V1_MULTIPROCESSING=0 puts both into one process). Where it fills masks, fill fewer or cheaper"
        " ones; else more sequences per step share each schedule."
    ),
    explanation="The scheduler is another process, which fills masks, reads tokens and plans the next step.",
    query="SELECT ts, dur, tid FROM molprof_phase WHERE phase = 'scheduler_wait' ORDER BY ts",
    needs=("time",),
    rests_on=("host_time",),
    weight=0.5,
)
def waits_for_scheduler(known: TraceFacts) -> FindingEvidence | None:
    """Fire where workers of an engine wait for messages of its scheduler's process while no device works.

    Gain: that time. It has also what passes while no request is there.
    """
    waits = scheduler_waits(known)
    if waits is None or not waits.all_ns:
        return None
    before = f", {time_text(waits.masks_ns)} of it right before masks are applied" if waits.masks_ns else ""
    filled_ns = summed_over(phase_times(known), "time_ns", "mask_fill")
    other = (
        f"the other process fills masks for {time_text(filled_ns)}"
        if filled_ns
        else "the other process is not recorded"
    )
    return FindingEvidence(
        f"{counted(waits.count, 'wait')}, {time_text(waits.all_ns)} of {known.scope.recorded_text}{before}; {other}",
        {"waits": waits.count, "wait_ns": waits.all_ns, "before_masks_ns": waits.masks_ns},
        known.gain(known.scope.host_part(waits.all_ns), "time of waiting outside GPU work"),
        part_of=("constraint",) if waits.masks_ns else (),
    )


@rule(
    id="masks_not_recorded",
    title="The cost of masks is not recorded",
    fix=(
        "Record Python stacks (vLLM: torch_profiler_with_stack, SGLang: with_stack), also of the scheduler's process"
        " (molprof run --processes starts the server so)."
    ),
    explanation="The engine does not annotate the filling of masks: only its Python functions show it.",
    query="phase_times",
    note=True,
)
def masks_not_recorded(known: TraceFacts) -> FindingEvidence | None:
    """Fire where an engine's trace has no marks that could show masks.

    Without gain: the trace may be of requests without constraints, unless kernels apply masks.
    """
    rows = known.report.table("engine_phases").to_json()
    missing = sorted({str(row["phase"]) for row in rows if row["count"] is None})
    if "mask_fill" not in missing or any_masks(known.report.table("engine_phases")):
        return None  # with masks that are recorded, what they cost says what is missing
    kernels = known.row(_BITMASKS)["count"]
    applied = (
        f"; {counted(kernels, 'kernel')} that {'applies' if kernels == 1 else 'apply'} masks ran" if kernels else ""
    )
    return FindingEvidence(
        f"nothing marks these phases in the trace: {', '.join(missing)}{applied}",
        {"phases": len(missing), "mask_kernels": kernels},
    )
