"""Tables about marks of phases: loops of transformers, single logits processors; phases in steps, time between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from molprof.analysis.facts import loops
from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.gaps import NONE
from molprof.analysis.facts.intervals import last_begun
from molprof.analysis.facts.phases import equal_spans
from molprof.analysis.facts.tables.table import Column, FactTable, known, transposed

_STEPS = """
SELECT id, ts, ts + dur AS ts_end, upid, kind, prompt_sequences + generating_sequences AS sequences
FROM molprof_any_step
ORDER BY upid, ts, id
"""
_FILLING = "SELECT id FROM _molprof_constraint_phase WHERE phase = 'mask_fill_per_request' ORDER BY id"


def _loop_phases(facts: Facts) -> Sequence[Column]:
    phases = facts.loop_phases
    return (
        facts.loop_marks.id[phases.mark], phases.ts, phases.ts_end - phases.ts, known(phases.call, NONE),
        known(phases.step, NONE),
    )  # fmt: skip


def _loop_steps(facts: Facts) -> Sequence[Column]:
    steps = facts.generate_steps, loops.other_steps(facts.loop_marks)
    mark, ts_end, call, step, is_prefill, outputs = (
        np.concatenate([getattr(one, name) for one in steps]) for name in loops.LoopSteps.__struct_fields__
    )
    ids = facts.loop_marks.id[mark]
    return (
        ids, ts_end - facts.slices.ts[ids], facts.loop_marks.part[mark], known(call, NONE), known(step, NONE),
        is_prefill.astype(np.int64), outputs,
    )  # fmt: skip


def _phase_steps(facts: Facts) -> Sequence[Column]:
    """Return the last begun step of each phase's process, if it has not ended when the phase begins."""
    rows = facts.rows(_STEPS, "steps")
    step, ts, ts_end, upid = (np.array(column, dtype=np.int64) for column in transposed(rows, 6)[:4])
    ids, begins = (
        np.concatenate([getattr(phases, name) for phases in (facts.phases, facts.inner_phases)])
        for name in ("id", "ts")
    )
    of = last_begun(upid, ts, facts.processes(facts.slices.track[ids]), begins)
    inside = (of != NONE) & (begins < np.append(ts_end, 0)[of])
    return ids[inside], step[of[inside]]


def _mask_steps(facts: Facts) -> Sequence[Column]:
    """Return the single requests' masks that each step filled, and its position among equal steps."""
    rows = facts.rows(_STEPS, "steps")
    filling = set(facts.numbers(_FILLING, "marked_phases")[0].tolist())
    masks = Counter(step for phase, step in zip(*_phase_steps(facts), strict=True) if phase in filling)
    filled = [masks[row[0]] if filling else None for row in rows]
    shapes = [(*row[4:], number) for row, number in zip(rows, filled, strict=True)]
    processes = np.array([row[3] for row in rows], dtype=np.int64)
    return [row[0] for row in rows], filled, *equal_spans(processes, shapes, (None, None, None))


def _step_periods(facts: Facts) -> Sequence[Column]:
    """Return the time from each step to the next one of its thread, but for the last one."""
    step, ts = facts.numbers("SELECT id, ts FROM molprof_any_step ORDER BY id", "steps")
    thread = facts.on_threads(step).thread
    order = np.lexsort((step, ts, thread))
    step, ts, thread = step[order], ts[order], thread[order]
    has_next = np.flatnonzero(thread[1:] == thread[:-1])
    return step[has_next], np.diff(ts)[has_next]


TABLES = {
    "engine_phase": FactTable(("id JOINID(slice.id)",), lambda facts: [facts.engine_phases]),
    "loop_phase": FactTable(
        ("id JOINID(slice.id)", "ts TIMESTAMP", "dur DURATION", "call LONG", "step LONG"), _loop_phases
    ),
    "loop_step": FactTable(
        (
            "id JOINID(slice.id)", "dur DURATION", "part STRING", "call LONG", "step LONG", "is_prefill LONG",
            "outputs LONG",
        ),
        _loop_steps,
    ),
    "step_choice": FactTable(
        ("call LONG", "step LONG", "operator_id JOINID(slice.id)", "criteria LONG"),
        lambda facts: [getattr(facts.choices, name) for name in loops.StepChoices.__struct_fields__],
    ),
    "single_processor": FactTable(("id JOINID(slice.id)",), lambda facts: [facts.single_processors]),
    "phase_step": FactTable(("phase_id JOINID(slice.id)", "step_id JOINID(slice.id)"), _phase_steps),
    "step_period": FactTable(("step_id JOINID(slice.id)", "period DURATION"), _step_periods),
    "mask_step": FactTable(
        ("step_id JOINID(slice.id)", "masks LONG", "span LONG", "position LONG"), _mask_steps
    ),
}  # fmt: skip
