"""The finding on a run's constraint: its cost, its work, and its effect on the text. It comes first.

Of a run of molprof it is the phase `processor`; of an engine the phases of masks and grammars; of another program's
`generate` the logits processors that are not transformers' own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from molprof.analysis.figures.figure import any_masks
from molprof.analysis.figures.model import Gain
from molprof.analysis.figures.run_model import Run, StepPhase
from molprof.analysis.findings.constraint_text import EvidencePart, done_to_text
from molprof.analysis.findings.engine import FILLING, MASKS, phase_times, scheduler_waits, summed_over
from molprof.analysis.findings.functions import NOT_OWN, OF_ENGINE, by_sample, functions_of, sampled_functions
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.places import Location
from molprof.analysis.findings.processor import PROCESSOR, gain_of_processor, row_loop, waiting_ns
from molprof.analysis.findings.remedy import (
    SMALL,
    ConstraintContext,
    constraining,
    remedy_of_engine,
    remedy_of_loop,
    remedy_of_run,
)
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.trace_processor.package import Query
from molprof.common.manifest import STEP_PHASES, ProgramTotals
from molprof.common.values import (
    bytes_text,
    counted,
    cut,
    number_text,
    numbered,
    per,
    percent_text,
    short_source,
    time_text,
)

_STEP = (*STEP_PHASES, "prefill")
_LONGEST_NAME, _OPERATORS_SHOWN, _FUNCTIONS_SHOWN = 40, 2, 3
# Operators with less of its time are not named.
_LEAST_OPERATOR = 0.02
# Reads a number of a tensor back into Python.
_READ = "aten::item"
_OPERATORS = Query(
    "call_phases",
    """
INCLUDE PERFETTO MODULE molprof.phases;
SELECT slice.id, slice.name
FROM molprof_call_phase AS place
JOIN molprof_phase AS phase ON phase.id = place.phase_id
JOIN slice ON slice.id = place.id
WHERE phase.phase = 'processor' AND slice.category = 'cpu_op'
ORDER BY slice.id
""",
)
_COPIES = Query(
    "memory_copies",
    """
INCLUDE PERFETTO MODULE molprof.call_phases;
INCLUDE PERFETTO MODULE molprof.phases;
SELECT copy.direction, COUNT() AS count, IFNULL(SUM(copy.bytes), 0) AS bytes
FROM molprof_memory_copy AS copy
JOIN molprof_call_phase AS place ON place.id = copy.call_id
JOIN molprof_phase AS phase ON phase.id = place.phase_id
WHERE phase.phase = 'processor' AND copy.direction IN ('HtoD', 'DtoH')
GROUP BY copy.direction
ORDER BY copy.direction DESC
""",
)
# What an engine does for masks, where a captured run has its functions too.
_IN_ENGINE = Query(
    "marked_phases",
    "SELECT phase, SUM(dur) AS time_ns FROM _molprof_engine_phase"
    " WHERE program != 'transformers' AND phase GLOB 'mask_*' GROUP BY phase ORDER BY phase",
)
_DIRECTIONS = {"HtoD": "to the GPU", "DtoH": "from it"}
# By key of the evidence, what an engine does for masks, in two forms, and the phases of it.
_KINDS = {
    "fill": ("to fill masks", "filling masks", FILLING),
    "apply": ("to apply masks", "applying masks", ("mask_apply",)),
    "accept": ("to accept tokens", "accepting tokens", ("mask_accept_per_request",)),
}
# Parts of making a processor once.
_MADE = {"package": "to import its package", "vocabulary": "for the vocabulary", "constraint": "for this constraint"}
_OF_GAIN = "host and GPU time of the processor"


@rule(
    id="constraint",
    title="What the constraint costs",
    fix="Take the engine that costs least on this constraint, and mask all rows at once with one operation per step.",
    explanation="A step's token is chosen when all of its masks are made, and the next forward begins with that token.",
    query="phase_work",
    rests_on=("host_time",),
    least_gain=0,
    leads=True,
)
def constraint(known: TraceFacts) -> FindingEvidence | None:
    """Fire where a run is constrained, however little it costs.

    By a logits processor, or arguments of `generate` that forbid or force tokens; by masks or grammars of an engine; by
    logits processors of another program's own.

    Gain: the processor's host and GPU time; of its host syncs while the GPU is busy, at most the GPU's idle time. Of an
    engine the time of filling, accepting and applying, with a GPU that in which no device worked.
    """
    run = known.report.run
    if run is not None:
        name = constraining(run)
        return None if name is None else _of_run(known, run, name)
    if known.any_scope is None:
        return None
    return _of_engine(known) if any_masks(known.report.table("engine_phases")) else _of_loop(known)


def _of_run(known: TraceFacts, run: Run, name: str) -> FindingEvidence:
    phase = run.phases[PROCESSOR]
    steps_ns = sum(run.phases[item].wall_ns or 0 for item in _STEP)
    course = ConstraintContext(name=name, is_by_row=row_loop(known) is not None)
    head, high = EvidencePart([], {}), None
    # What `generate` applies without a logits processor runs in other phases.
    has_phase = run.setup.processor is not None
    if has_phase and phase.wall_ns and steps_ns > 0 and run.steps:
        head, course.share = _timed(run, phase.wall_ns, steps_ns)
        if waiting_ratio := per(waiting_ns(phase), phase.host_ns) or 0.0:
            head.clauses.append(f"{percent_text(waiting_ratio)} of it waits for a busy GPU")
        head.figures["waiting_ratio"] = waiting_ratio
        if known.any_scope is not None:
            high = gain_of_processor(known) if phase.host_ns else per(phase.wall_ns, run.wall_ns.median)
    elif has_phase and phase.host_ns and run.wall_ns.median is None and known.any_scope is not None:  # no timed passes
        course.share = high = known.scope.host_part(phase.host_ns)
        head.clauses.append(
            f"{time_text(phase.host_ns)} of {known.scope.recorded_text}: {percent_text(high)}, profiled"
        )
        head.figures |= {"processor_host_ns": phase.host_ns, "recorded_ns": known.scope.recorded_ns}
    else:
        head.clauses.append("it has no time of its own: it runs in other phases, or no time is recorded")
    done, where = _work_in_steps(known, run, course, head) if has_phase else (EvidencePart([], {}), None)
    text, rest = done_to_text(known, run, course), _rest(run, steps_ns, course)
    parts = [head, done, _times_by_class(run), _construction(run), text, rest]
    figures: dict[str, int | float] = {"steps": run.steps}
    for part in parts:
        figures |= part.figures
    evidence = FindingEvidence(
        "; ".join(clause for part in parts for clause in part.clauses),
        figures,
        None if high is None else known.gain(high, _OF_GAIN),
        title=_title(name, course.share, _largest_part(run)),
        fix=remedy_of_run(run, course),
    )
    return evidence if where is None else replace(evidence, location=where.name, location_ratio=where.ratio)


def _title(name: str, share: float | None, rest: str) -> str:
    what = f"The constraint ({cut(name, _LONGEST_NAME)})"
    if share is None:
        return f"{what} has no time of its own"
    small = f": {rest} sets the time" if share < SMALL else ""
    return f"{what} takes {percent_text(share)} of the steps{small}"


def _largest_part(run: Run) -> str:
    """Return the largest part of the steps apart from the processor, as text."""
    times = {name: run.phases[name].wall_ns or 0 for name in _STEP if name != PROCESSOR}
    times["forward"] += times.pop("prefill")
    most = max(times, key=lambda name: times[name])
    return "the model" if most == "forward" else most


def _timed(run: Run, wall_ns: int, steps_ns: int) -> tuple[EvidencePart, float]:
    """Return the share of the unprofiled steps, with its range over passes, and the time per step and row."""
    share, step_ns = wall_ns / steps_ns, wall_ns / run.steps
    passes = [
        ns / all_ns
        for repeat in run.repeats
        if (all_ns := sum(repeat.phases_ns.get(name, 0) for name in _STEP)) and (ns := repeat.phases_ns.get(PROCESSOR))
    ]
    figures: dict[str, int | float] = {
        "processor_wall_ns": wall_ns, "steps_wall_ns": steps_ns, "share_ratio": share, "step_ns": step_ns,
    }  # fmt: skip
    spread = ""
    if len(passes) > 1:
        low, high = min(passes), max(passes)
        spread = f" ({percent_text(low)} to {percent_text(high)} in {len(passes)} passes)"
        figures |= {"share_low_ratio": low, "share_high_ratio": high}
    clauses = [
        f"{time_text(wall_ns)} of {time_text(steps_ns)} in steps, unprofiled: {percent_text(share)}{spread}, "
        f"{time_text(step_ns)} per step"
    ]
    if parts := {name: ns for name, ns in (run.constraint_ns or {}).items() if name in _KINDS}:
        figures |= {f"{name}_ns": round(ns) for name, ns in parts.items()}
        clauses.append(f"of that {', '.join(f'{time_text(ns)} {_KINDS[name][0]}' for name, ns in parts.items())}")
    rows = run.row_steps / run.steps
    course = next((item for item in run.step_phases or () if item.phase == PROCESSOR), None)
    if course is not None:
        figures |= {"step_p50_ns": course.p50_ns, "step_longest_ns": course.longest_ns}
        figures |= {"step_p99_ns": course.p99_ns} if course.p99_ns is not None else {}
        clauses.append(f"by step {_percentiles(_times_of(course))}")
    # Of steps that all have the same rows, percentiles are those of steps over their rows.
    is_even = run.shapes is not None and len(set(run.shapes.rows)) == 1 and run.shapes.rows[0] == rows
    if is_even and "num_beams" in (run.setup.processor_parameters or {}):
        rows = run.setup.batch_size  # a beam search computes other rows than it returns
    if rows > 1:
        figures["row_ns"] = step_ns / rows
        each = ""
        if course is not None and is_even:
            each = f", {_percentiles({key: per(ns, rows) for key, ns in _times_of(course).items()})}"
        clauses.append(f"per row, of {number_text(rows)}, {time_text(step_ns / rows)}{each}")
    return EvidencePart(clauses, figures), share


def _times_of(course: StepPhase) -> dict[str, int | None]:
    """Return the percentiles of a phase or a mask, by key."""
    return {key: getattr(course, key) for key in ("p50_ns", "p90_ns", "p99_ns", "longest_ns")}


def _percentiles(times: Mapping[str, Any]) -> str:
    """Return the median, the 99th (of few values the 90th) percentile and the longest time as text."""
    tail = "p99_ns" if times["p99_ns"] is not None else "p90_ns"
    said = [f"{key[:3]} {time_text(times[key])}" for key in ("p50_ns", tail) if times[key] is not None]
    return ", ".join([*said, f"longest {time_text(times['longest_ns'])}"])


def _work_in_steps(
    known: TraceFacts, run: Run, course: ConstraintContext, head: EvidencePart
) -> tuple[EvidencePart, Location | None]:
    """Return the constraint's work in the steps: operators, time outside them, functions, launches, syncs, copies.

    Sampled functions follow the first clause of `head`: they say what to change.
    """
    phase, steps, part = run.phases[PROCESSOR], run.window.steps, EvidencePart([], {})
    if not phase.host_ns or not steps:
        return part, None
    facts = known.facts
    rows = known.frame(_OPERATORS)
    ids, names = rows["id"].astype(np.int64), rows["name"].astype(str)
    is_leaf = np.isin(ids, facts.leaf_operators)
    outer = np.unique(facts.outermost_operators(ids[is_leaf]))
    times = facts.slices.ts_end - facts.slices.ts
    outside_ns = max(0, phase.host_ns - int(times[outer].sum()))
    part.figures |= {"operators": len(ids) / steps, "outside_operators_ns": outside_ns / steps}
    course.outside = outside_ns / phase.host_ns
    counts, sums = Counter[str](), Counter[str]()
    for name, ns in zip(names[is_leaf].tolist(), times[ids[is_leaf]].tolist(), strict=True):
        counts[name] += 1
        sums[name] += ns
    said = [
        f"{name} {time_text(ns / steps)} in {numbered(counts[name] / steps, 'run')}"
        for name, ns in sums.most_common(_OPERATORS_SHOWN)
        if ns >= _LEAST_OPERATOR * phase.host_ns
    ]
    outside = f"{time_text(outside_ns / steps)} outside operators (Python and libraries)"
    part.clauses.append(f"of {time_text(phase.host_ns / steps)} per recorded step {', '.join([outside, *said])}")
    in_engine = {row["phase"]: row for row in map(dict, known.rows(_IN_ENGINE))}
    if spent := {kind: ns for kind, (*_, of) in _KINDS.items() if (ns := _first_time(in_engine, of))}:
        part.figures |= {f"recorded_{kind}_ns": ns / steps for kind, ns in spent.items()}
        by_kind = ", ".join(f"{time_text(ns / steps)} {_KINDS[kind][0]}" for kind, ns in spent.items())
        part.clauses.append(f"per recorded step of the engine {by_kind}")
    is_read = names == _READ
    course.reads, course.reading = int(is_read.sum()) / steps, int(times[ids[is_read]].sum()) / phase.host_ns
    if course.reads:
        part.figures["reads"] = course.reads
        part.clauses.append(f"{numbered(course.reads, 'number')} per step read back from tensors (item)")
    if phase.syncs is not None:
        part.figures |= {"syncs": phase.syncs / steps, "launches": (phase.launches or 0) / steps}
        launches = numbered((phase.launches or 0) / steps, "launch", "es")
        part.clauses.append(f"{launches} and {numbered(phase.syncs / steps, 'host sync')} per step")
        for row in known.rows(_COPIES):
            each = numbered(row["count"] / steps, "copy").replace("copys", "copies")
            part.clauses.append(f"{each} per step {_DIRECTIONS[row['direction']]}, {bytes_text(row['bytes'])} in all")
            part.figures[f"{row['direction'].lower()}_copies"] = row["count"] / steps
    where = functions_of(known, (PROCESSOR,))
    if where is not None:
        course.function = where.places[0].label
        if (sampled := sampled_functions(known)) is None:
            part.clauses.append(_by_function(where))
        else:
            part.figures |= {"sampled_ns": sampled.sampled_ns, "samples": sampled.samples}
            head.clauses[1:1] = by_sample(sampled)
    return part, where


def _by_function(where: Location) -> str:
    """Return the first functions with their shares of the time as text."""
    whole = where.places[0].time_ns / where.ratio
    said = (f"{item.label} {percent_text(item.time_ns / whole)}" for item in where.places[:_FUNCTIONS_SHOWN])
    return f"by function: {', '.join(said)}"


def _times_by_class(run: Run) -> EvidencePart:
    """Return the unprofiled time per step of each logits processor of a program."""
    calls = run.program.processors if isinstance(run.program, ProgramTotals) else []
    timed = sorted((item for item in calls if item.time_ns), key=lambda item: -(item.time_ns or 0))
    said = ", ".join(f"{item.name} {time_text(per(item.time_ns, item.steps))}" for item in timed)
    return EvidencePart([f"by class, per timed step: {said}"] if said else [], {})


def _construction(run: Run) -> EvidencePart:
    """Return the text on the construction of the constraint, which no step contains."""
    part = EvidencePart([], {})
    if run.processor_once_ns:
        part.figures["once_ns"] = run.processor_once_ns
        parts = run.processor_parts_ns or {}
        each = ", ".join(f"{time_text(parts[name])} {word}" for name, word in _MADE.items() if name in parts)
        whole = f"making it took {time_text(run.processor_once_ns)}, once before all passes"
        part.clauses.append(f"{whole}: {each}" if each else whole)
    for name in ("compile", "template"):
        if (phase := run.phases.get(name)) is not None and phase.wall_ns and run.batches:
            part.figures[f"{name}_ns"] = phase.wall_ns / run.batches
            part.clauses.append(f"{name} {time_text(phase.wall_ns / run.batches)} per batch")
    return part


def _rest(run: Run, steps_ns: int, course: ConstraintContext) -> EvidencePart:
    """Return the text on the rest of a step, where the constraint is small."""
    if course.share is None or course.share >= SMALL or steps_ns <= 0:
        return EvidencePart([], {})
    forward_ns = sum(run.phases[name].wall_ns or 0 for name in ("forward", "prefill"))
    what = f"{percent_text(forward_ns / steps_ns)} are forwards"
    return EvidencePart([f"without it {percent_text(1 - course.share)} of the steps remain: {what}"], {})


def _of_engine(known: TraceFacts) -> FindingEvidence | None:
    """Return the finding on masks and grammars of an engine, by its phases."""
    phases, scope = phase_times(known), known.scope
    grammars = [name for name in phases if name.startswith("grammar_")]
    mask_ns, grammar_ns = summed_over(phases, "own_ns", *MASKS), summed_over(phases, "own_ns", *grammars)
    if not (mask_ns or grammar_ns):
        return None
    spent = MASKS if mask_ns else grammars
    times = {kind: _first_time(phases, names) for kind, (*_, names) in _KINDS.items()}
    by_kind = ", ".join(f"{time_text(ns)} {_KINDS[kind][0]}" for kind, ns in times.items() if ns is not None)
    forward_ns, share = summed_over(phases, "time_ns", "forward"), scope.host_part(mask_ns or grammar_ns)
    clauses = [
        f"{by_kind or 'no time of masks is recorded'}, against {time_text(forward_ns)} of forwards; "
        f"{percent_text(share)} of {scope.recorded_text}"
    ]
    figures: dict[str, int | float] = {
        f"{kind}_ns": ns for kind, ns in (*times.items(), ("forward", forward_ns)) if ns is not None
    }
    spreads: Any = known.report.table("mask_times").to_json()
    for row in spreads:
        if (row["measure"], row["per"]) == ("all", "step"):
            clauses.append(f"in a step {_percentiles(row)} of {counted(row['count'], 'step')}")
            figures |= {"step_p50_ns": row["p50_ns"], "step_longest_ns": row["longest_ns"]}
        elif (row["measure"], row["per"]) == ("fill", "request"):
            clauses.append(f"to fill one row {_percentiles(row)}")
            figures["row_p50_ns"] = row["p50_ns"]
    if compiled := summed_over(phases, "count", "grammar_compile"):
        compile_ns = summed_over(phases, "time_ns", "grammar_compile")
        clauses.append(f"{counted(compiled, 'grammar')} compiled in {time_text(compile_ns)}")
        figures |= {"grammars": compiled, "compile_ns": compile_ns}
    copies: Any = [row for row in known.report.table("mask_copies").to_json() if row["direction"] == "HtoD"]
    if copies:
        count, size = (sum(row[key] or 0 for row in copies) for key in ("count", "bytes"))
        clauses.append(f"masks copied to the GPU {counted(count, 'time')}, {bytes_text(size)} in all")
        figures["mask_copies"] = count
    where = functions_of(known, OF_ENGINE[0] if mask_ns else OF_ENGINE[1])
    if where is not None:
        clauses.append(_by_function(where))
    if missing := [_KINDS[kind][1] for kind, ns in times.items() if ns is None]:
        clauses.append(f"not recorded: {', '.join(missing)}")
    small = ": the model sets the time" if share < SMALL and forward_ns > mask_ns else ""
    what, exposed_ns = "masks" if mask_ns else "grammars", summed_over(phases, "exposed_ns", *spent)
    gain: Gain | None = known.gain(scope.host_part(exposed_ns), f"time of {what} outside GPU work")
    title = f"The constraint ({what}) takes {percent_text(share)} of the time{small}"
    fix = remedy_of_engine(phases, {kind: ns or 0 for kind, ns in times.items()}, _programs(known), share)
    if mask_ns and times["fill"] is None:  # what is recorded is no upper bound
        waits = scheduler_waits(known)
        if waits is not None:
            figures["wait_ns"] = waits.masks_ns
            waited = time_text(waits.masks_ns)
            clauses.insert(1, f"before applying them the worker waits {waited} for the process that fills them")
        most = None if waits is None else scope.host_part(exposed_ns + waits.masks_ns)
        gain = None if most is None else known.gain(most, "masks, and the wait before they are applied")
        title = f"The constraint (masks): filling is not recorded, the rest takes {percent_text(share)} of the time"
        fix = "Record the process that fills masks too (molprof run --processes); then compare backends."
    return FindingEvidence(
        "; ".join(clauses),
        figures,
        gain,
        title=title,
        fix=fix,
        query="phase_times",
        location=None if where is None else where.name,
        location_ratio=None if where is None else where.ratio,
    )


def _first_time(phases: Mapping[str, Mapping[str, int | None]], names: Sequence[str]) -> int | None:
    """Return the time of the first phase that occurred, ns; None where none is recorded."""
    times = [ns for name in names if (ns := phases.get(name, {}).get("time_ns")) is not None]
    return next(filter(None, times), 0) if times else None


def _programs(known: TraceFacts) -> set[str]:
    """Return the engines whose phases are recorded."""
    return {str(row["program"]) for row in known.report.table("engine_phases").to_json() if row["count"]}


def _of_loop(known: TraceFacts) -> FindingEvidence | None:
    """Return the finding on a program's own logits processors, by stacks or by a phase that its loop marks."""
    rows: Any = known.report.table("logits_processors").to_json()
    processors = [row for row in rows if not any(folder in row["source"] for folder in NOT_OWN)]
    if not processors:
        rows = known.report.table("engine_phases").to_json()
        marked = [row for row in rows if (row["program"], row["phase"]) == ("molprof", PROCESSOR) and row["time_ns"]]
        processors = [{**row, "source": f"phase {PROCESSOR}"} for row in marked]
    time_ns, scope = sum(row["time_ns"] for row in processors), known.scope
    if not time_ns:
        return None
    share, first = scope.host_part(time_ns), processors[0]
    small = ": the model sets the time" if share < SMALL else ""
    each = ", ".join(f"{short_source(row['source'])} {time_text(row['time_ns'])}" for row in processors[:3])
    where = functions_of(known, (PROCESSOR,))
    clauses = [
        f"{time_text(time_ns)} of {scope.recorded_text}: {percent_text(share)}",
        f"a call of {short_source(first['source'])} takes {_percentiles(first)}",
        *([f"by processor: {each}"] if len(processors) > 1 else []),
        *([_by_function(where)] if where is not None else []),
    ]
    return FindingEvidence(
        "; ".join(clauses),
        {"processor_ns": time_ns, **{key: first[key] for key in ("count", "p50_ns", "longest_ns")}},
        known.gain(share, "host time of the processors"),
        title=f"The constraint (logits processors) takes {percent_text(share)} of the time{small}",
        fix=remedy_of_loop(None if where is None else where.name, share < SMALL, first["source"]),
        query="phase_times",
        location=None if where is None else where.name,
        location_ratio=None if where is None else where.ratio,
    )
