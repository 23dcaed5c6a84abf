"""The logits processor: its share of the time, its loop over rows, its host syncs, and the building of templates."""

from __future__ import annotations

from molprof.analysis.figures.run_model import PhaseFigures
from molprof.analysis.findings.rule import Found, Known, rule
from molprof.analysis.trace_processor.package import Query
from molprof.common.manifest import STEP_PHASES
from molprof.common.values import count_text, number_text, numbered, per, percent_text, time_text

PROCESSOR = "processor"
# Share of the steps' unprofiled time.
LEAST_SHARE = 0.1
# With fewer rows, as many calls of one operator per step are no proof of a loop.
LEAST_ROWS = 8
LEAST_SYNCS_PER_STEP = 0.5
# Share of unprofiled wall time that templates take.
LEAST_TEMPLATES_SHARE = 0.02

# Operators that take one row of a tensor. Of each, calls per row in the step with the fewest; the largest of these.
_LOOP = Query(
    "call_phases",
    """
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.tokens;
WITH
  call AS (
    SELECT phase.batch, phase.step, slice.name, COUNT() AS calls
    FROM molprof_call_phase AS place
    JOIN molprof_phase AS phase ON phase.id = place.phase_id
    JOIN slice ON slice.id = place.id
    WHERE phase.phase = 'processor' AND slice.name IN ('aten::select', 'aten::slice', 'aten::index_put_')
    GROUP BY phase.batch, phase.step, slice.name
  ),
  size AS (
    SELECT batch, COUNT() AS rows FROM molprof_sequence GROUP BY batch
  ),
  steps AS (
    SELECT COUNT() AS steps FROM molprof_phase WHERE phase = 'processor'
  )
SELECT call.name, MIN(size.rows) AS rows, SUM(call.calls) AS calls, MIN(1.0 * call.calls / size.rows) AS calls_per_row
FROM call JOIN size USING (batch)
GROUP BY call.name
HAVING COUNT() = (SELECT steps FROM steps)
ORDER BY calls_per_row DESC, call.name
LIMIT 1
""",
)


def _waiting_ns(phase: PhaseFigures) -> int:
    """Time in host syncs while the GPU was busy: without the sync, a later phase waits for the same work."""
    return 0 if phase.bound is None else max(0, (phase.sync_ns or 0) - phase.bound.sync_idle_ns)


def _whole(known: Known) -> float:
    """The gain of a processor without cost: its host time, and its GPU time, which may run after it.

    Waiting for a busy GPU counts up to the GPU's idle time: the GPU's work remains.
    """
    phase, scope = known.run.phases[PROCESSOR], known.scope
    waiting_ns = _waiting_ns(phase)
    own = scope.host_part((phase.host_ns or 0) - waiting_ns, PROCESSOR)
    waiting = min(scope.host_part(waiting_ns, PROCESSOR), scope.idle_ratio)
    return min(1.0, own + waiting + scope.gpu_part(phase.gpu_ns or 0))


@rule(
    id="processor_share",
    title="The logits processor takes a large part of every step",
    fix="Build the masks in advance, for all rows at once, and apply them with one operation per step.",
    explanation="The processor runs between two forwards, eagerly and in Python. No graph covers it.",
    query="phase_work",
    needs=("processor", "time"),
    rests_on=("host_time",),
    least_gain=0,
)
def processor_share(known: Known) -> Found | None:
    run, phase = known.run, known.run.phases[PROCESSOR]
    steps_ns = sum(run.phases[name].wall_ns or 0 for name in (*STEP_PHASES, "prefill"))
    wall_ns = phase.wall_ns
    waiting_ratio = per(_waiting_ns(phase), phase.host_ns) or 0.0
    if not wall_ns or steps_ns <= 0 or not run.steps or wall_ns * (1 - waiting_ratio) < LEAST_SHARE * steps_ns:
        return None
    waiting = f"; {percent_text(waiting_ratio)} of it waits for a busy GPU" if waiting_ratio else ""
    return Found(
        f"{time_text(wall_ns)} of {time_text(steps_ns)} in steps, unprofiled: "
        f"{percent_text(wall_ns / steps_ns)}, {time_text(wall_ns / run.steps)} per step{waiting}",
        {
            "processor_wall_ns": wall_ns,
            "steps_wall_ns": steps_ns,
            "share_ratio": wall_ns / steps_ns,
            "waiting_ratio": waiting_ratio,
        },
        known.gain(_whole(known), "host and GPU time of the processor"),
    )


@rule(
    id="row_masking",
    title="The logits processor masks row by row",
    fix="Use one tensor operation over the batch instead of a loop over its rows.",
    explanation="A loop repeats the same small operations for every row, so its cost grows with the batch.",
    query=(
        "SELECT phase.step, slice.name, COUNT() AS calls FROM molprof_call_phase AS place"
        " JOIN molprof_phase AS phase ON phase.id = place.phase_id JOIN slice ON slice.id = place.id"
        " WHERE phase.phase = 'processor' AND slice.category = 'cpu_op' GROUP BY phase.step, slice.name"
        " ORDER BY phase.step, calls DESC, slice.name"
    ),
    needs=("processor", "time"),
    rests_on=("host_time",),
    run_queries=(_LOOP,),
)
def row_masking(known: Known) -> Found | None:
    """Gain: all but one row's part, because masks of the whole batch cost at least as much as one row's."""
    found = next(iter(known.rows(_LOOP)), None)
    if found is None or found["rows"] < LEAST_ROWS or found["calls_per_row"] < 1:
        return None
    rows, calls, calls_per_row = found["rows"], found["calls"], found["calls_per_row"]
    phase, steps = known.run.phases[PROCESSOR], known.run.window.steps
    figures: dict[str, int | float] = {
        "rows": rows,
        "calls_per_step": calls / steps,
        "least_calls_per_row": calls_per_row,
        "leaf_operators_per_step": (phase.leaf_operators or 0) / steps,
    }
    work = f"{numbered(figures['leaf_operators_per_step'], 'leaf operator')} per step"
    if phase.launches is not None:
        figures["launches_per_step"] = phase.launches / steps
        work = f"{numbered(figures['launches_per_step'], 'launch', 'es')} per step"
    return Found(
        f"{found['name']} runs {number_text(calls / steps)} times per step in the processor, at least "
        f"{count_text(calls_per_row * rows)} times for {count_text(rows)} rows; {work}",
        figures,
        known.gain((1 - 1 / rows) * _whole(known), "the processor except for one row's part"),
    )


@rule(
    id="processor_syncs",
    title="The logits processor waits for the GPU",
    fix="Avoid .item(), .tolist(), .cpu(), nonzero and branches on tensors. Keep positions as Python ints.",
    explanation="A host sync drains the queue: the GPU has nothing to do until the CPU has launched again.",
    query="sync_phases",
    needs=("processor", "time"),
    rests_on=("host_time", "gpu_idle"),
)
def processor_syncs(known: Known) -> Found | None:
    """Gain: their time, at most the GPU's idle time: without them the CPU runs ahead, but the GPU's work remains."""
    phase, steps = known.run.phases[PROCESSOR], known.run.window.steps
    if not phase.syncs or not steps or phase.syncs < LEAST_SYNCS_PER_STEP * steps:
        return None
    sync_ns = phase.sync_ns or 0
    return Found(
        f"{numbered(phase.syncs / steps, 'host sync')} per step in the processor, "
        f"{time_text(sync_ns / steps)} per recorded step",
        {"syncs_per_step": phase.syncs / steps, "sync_ns": sync_ns, "steps": steps},
        known.gain(min(known.scope.host_part(sync_ns, PROCESSOR), known.scope.idle_ratio), "host syncs, and idle time"),
    )


@rule(
    id="templates",
    title="Building templates delays every batch",
    fix="Build templates in threads (--template-threads). Keep those of repeated molecules (--template-cache).",
    explanation="The model waits while the CPU builds templates and tokenizes them.",
    query="SELECT batch, phase, dur FROM molprof_phase WHERE phase IN ('template', 'tokenize') ORDER BY ts",
    needs=("timed",),
    least_gain=LEAST_TEMPLATES_SHARE,
)
def templates(known: Known) -> Found | None:
    run = known.run
    template_ns, wall_ns = run.phases["template"].wall_ns, run.wall_ns.median
    if template_ns is None or not wall_ns or not run.molecules:
        return None
    return Found(
        f"{time_text(template_ns)} of {time_text(wall_ns)} unprofiled time "
        f"({percent_text(template_ns / wall_ns)}), {time_text(template_ns / run.molecules)} per {run.noun}",
        {"template_ns": template_ns, "wall_ns": wall_ns, "molecules": run.molecules},
        known.gain(template_ns / wall_ns, "building templates"),
    )
