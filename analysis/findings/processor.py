"""The logits processor: its share of the time, its loop over rows, and the waits for the GPU in it."""

from __future__ import annotations

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import query_rows
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.figures.run_model import STEP_PHASES, Run
from molprof.analysis.findings.scope import LEAST_GAIN, Scope
from molprof.common.values import count_text, number_text, percent_text, time_text

PROCESSOR = "processor"
# Share of the steps' unprofiled time.
LEAST_SHARE = 0.1
# With fewer rows, as many calls of one operator per step prove no loop.
LEAST_ROWS = 8
LEAST_SYNCS_PER_STEP = 0.5

# What takes one row of a tensor in Python. The one that was called most often in the step where it was called least
# often, against the rows of its batch.
_LOOP = """
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
"""
_LOOP_QUERY = (
    "SELECT phase.step, slice.name, COUNT() AS calls FROM molprof_call_phase AS place"
    " JOIN molprof_phase AS phase ON phase.id = place.phase_id JOIN slice ON slice.id = place.id"
    " WHERE phase.phase = 'processor' AND slice.category = 'cpu_op' GROUP BY phase.step, slice.name"
    " ORDER BY phase.step, calls DESC, slice.name"
)


def find(engine: Engine, report: Report, scope: Scope | None) -> tuple[Finding, ...]:
    """All three; none without a processor."""
    run = report.run
    if run is None or scope is None or run.setup.processor is None:
        return ()
    return (*_share(run, scope), *_rows(engine, run, scope), *_syncs(run, scope))


def _whole(run: Run, scope: Scope) -> float:
    """The most that a processor of no cost gains: its host time, and its GPU time, which may run behind it."""
    phase = run.phases[PROCESSOR]
    return min(1.0, scope.host_part(phase.host_ns or 0, PROCESSOR) + scope.gpu_part(phase.gpu_ns or 0))


def _share(run: Run, scope: Scope) -> tuple[Finding, ...]:
    """Fires from LEAST_SHARE of the steps' unprofiled time on. Gain: `_whole`."""
    walls = [run.phases[name].wall_ns for name in (*STEP_PHASES, "prefill")]
    steps_ns = sum(wall_ns or 0 for wall_ns in walls)
    wall_ns = run.phases[PROCESSOR].wall_ns
    if not wall_ns or steps_ns <= 0 or not run.steps or wall_ns < LEAST_SHARE * steps_ns:
        return ()
    return (
        Finding(
            id="processor_share",
            title="The logits processor is a large part of every step",
            evidence=(
                f"{time_text(wall_ns)} of {time_text(steps_ns)} in steps, unprofiled: "
                f"{percent_text(wall_ns / steps_ns)}, {time_text(wall_ns / run.steps)} per step"
            ),
            gain_ratio=_whole(run, scope),
            fix="build the masks beforehand, for all rows at once, and apply them with one operation per step",
            explanation="The processor runs between two forwards, eagerly and in Python: no graph covers it.",
            query="phase_work",
            figures={"processor_wall_ns": wall_ns, "steps_wall_ns": steps_ns, "share_ratio": wall_ns / steps_ns},
        ),
    )


def _rows(engine: Engine, run: Run, scope: Scope) -> tuple[Finding, ...]:
    """Fires where in every recorded step the processor takes single rows (aten::select and the like) at least once for
    each row of the batch, with LEAST_ROWS rows or more.

    Gain: all of the processor but one row's part, (1 - 1 / rows) times its share: masks of the whole batch cost at
    least what one row's cost.
    """
    _, found = query_rows(
        engine,
        "placement",
        f"INCLUDE PERFETTO MODULE molprof.phases;\nINCLUDE PERFETTO MODULE molprof.tokens;\n{_LOOP}",
    )
    if not found:
        return ()
    name, rows, calls, calls_per_row = found[0]
    gain = (1 - 1 / rows) * _whole(run, scope) if rows else 0.0
    if rows < LEAST_ROWS or calls_per_row < 1 or gain < LEAST_GAIN:
        return ()
    phase, steps = run.phases[PROCESSOR], run.window.steps
    figures: dict[str, int | float] = {
        "rows": rows,
        "calls_per_step": calls / steps,
        "least_calls_per_row": calls_per_row,
        "leaf_operators_per_step": (phase.leaf_operators or 0) / steps,
    }
    work = f"{number_text(figures['leaf_operators_per_step'])} leaf operators per step"
    if phase.launches is not None:
        figures["launches_per_step"] = phase.launches / steps
        work = f"{number_text(figures['launches_per_step'])} launches per step"
    return (
        Finding(
            id="row_masking",
            title="The processor masks row by row",
            evidence=(
                f"{name} runs {number_text(calls / steps)} times in the processor of a step, never fewer than "
                f"{count_text(calls_per_row * rows)} for {count_text(rows)} rows; {work}"
            ),
            gain_ratio=gain,
            fix="one tensor operation over the batch instead of a loop over its rows",
            explanation="A loop over rows runs the same small operations once per row: the cost grows with the batch.",
            query=_LOOP_QUERY,
            figures=figures,
        ),
    )


def _syncs(run: Run, scope: Scope) -> tuple[Finding, ...]:
    """Fires from LEAST_SYNCS_PER_STEP waits for the GPU in the processor on.

    Gain: the time in those waits, and no more than the idle time of the GPU: without them the CPU runs ahead, but the
    GPU's work remains.
    """
    phase, steps = run.phases[PROCESSOR], run.window.steps
    if not phase.syncs or not steps or phase.syncs < LEAST_SYNCS_PER_STEP * steps:
        return ()
    gain = min(scope.host_part(phase.sync_ns or 0, PROCESSOR), scope.idle_ratio)
    if gain < LEAST_GAIN:
        return ()
    return (
        Finding(
            id="processor_syncs",
            title="The processor waits for the GPU",
            evidence=(
                f"{number_text(phase.syncs / steps)} waits per step in the processor, "
                f"{time_text((phase.sync_ns or 0) / steps)} per step recorded"
            ),
            gain_ratio=gain,
            fix="no .item(), .tolist(), .cpu(), nonzero or Python branch on tensors; keep positions as Python integers",
            explanation=(
                "A wait drains the queue: until the CPU has launched again, the GPU has nothing to do. One per step "
                "is needed to see whether to stop; those of the processor come on top."
            ),
            query="sync_phases",
            figures={"syncs_per_step": phase.syncs / steps, "sync_ns": phase.sync_ns or 0, "steps": steps},
        ),
    )
