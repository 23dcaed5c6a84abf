"""Facts about what marks phases of programs: the outermost marks, loops of transformers, single logits processors."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from molprof.analysis.facts import loops
from molprof.analysis.facts.gaps import Array
from molprof.analysis.facts.processors import ProcessorCalls, single_processors
from molprof.analysis.facts.work import WorkFacts

_MARKS = """
SELECT id, program, part, phase, IIF(phase = 'forward', name, NULL) AS model
FROM molprof_phase_slice
ORDER BY id
"""
# Phases of a captured run count, and no others.
_IS_CAPTURED = "SELECT EXISTS(SELECT 1 FROM molprof_annotation WHERE role = 'phase')"
_CHOOSING = """
SELECT id, name = 'aten::topk' AS is_topk
FROM slice
WHERE category = 'cpu_op' AND name IN ('aten::argmax', 'aten::multinomial', 'aten::topk')
ORDER BY id
"""
_PROCESSOR_PHASES = """
SELECT id, program = 'transformers' AND batch IS NOT NULL AS is_list
FROM molprof_phase
WHERE phase = 'processor'
ORDER BY id
"""
_PROCESSOR_CALLS = """
SELECT
  id,
  name GLOB '*transformers/generation/logits_process.py(*' AS is_list,
  name GLOB '*/cb_logits_processors.py(*' AS is_wrapper
FROM molprof_phase_slice
WHERE phase IS NULL OR phase = 'processor'
ORDER BY id
"""


class MarkFacts(WorkFacts):
    """Marks of phases and what they show."""

    @cached_property
    def engine_phases(self) -> Array:
        """Slices that mark phases of engines, without those inside another one of the same phase."""
        marks = self._marks[0].some(~self._marks[1])
        return np.sort(marks.id[loops.outermost(marks)])

    @cached_property
    def loop_marks(self) -> loops.Marks:
        """Marks of transformers' loops; none in a captured run."""
        marks = self._marks[0].some(self._marks[1] & (not self.rows(_IS_CAPTURED, "annotations")[0][0]))
        return loops.loop_marks(marks.some(loops.outermost(marks)))

    @cached_property
    def loop_calls(self) -> loops.Calls:
        """The calls of generate that they are in."""
        return loops.find_calls(self.loop_marks)

    @cached_property
    def generate_steps(self) -> loops.LoopSteps:
        """Steps of generate."""
        return loops.generate_steps(self.loop_marks, self.loop_calls)

    @cached_property
    def loop_phases(self) -> loops.LoopPhases:
        """Phases of loops."""
        return loops.loop_phases(self.loop_marks, self.loop_calls)

    @cached_property
    def choices(self) -> loops.Choices:
        """How tokens were chosen in steps of generate."""
        samplings = loops.find_samplings(self.loop_marks, self.loop_phases, self.generate_steps)
        ids, is_topk = np.empty((2, 0), dtype=np.int64)
        if len(samplings.ts):
            ids, is_topk = self.numbers(_CHOOSING, None)
        operators = loops.Choosing(ids, self._threads_of(ids), self.slices.ts[ids], is_topk != 0)
        marks, is_loop = self._marks
        is_criterion = [phase in (None, "sampling") for phase in marks.phase.tolist()]
        criteria = marks.some(is_loop & np.array(is_criterion, dtype=bool))
        return loops.find_choices(samplings, operators, (criteria.thread, criteria.ts))

    @cached_property
    def single_processors(self) -> Array:
        """Slices of the outermost calls of single logits processors."""
        ids, is_list = self.numbers(_PROCESSOR_PHASES, "phases")
        if not len(ids):
            return ids
        calls, in_list_file, is_wrapper = self.numbers(_PROCESSOR_CALLS, "phase_slices")
        both = np.append(ids, calls)
        phase_ts, phase_end = self.slices.ts[both], self.slices.ts_end[both]
        return single_processors(
            ProcessorCalls(
                both, self._threads_of(both), phase_ts, phase_end, np.arange(len(both)) < len(ids),
                np.append(is_list, in_list_file) != 0, np.append(np.zeros_like(ids), is_wrapper) != 0,
            )
        )  # fmt: skip

    @cached_property
    def _marks(self) -> tuple[loops.Marks, Array]:
        """All marks of phases, and whether each is one of transformers."""
        columns = self._read(_MARKS, "phase_slices")
        ids = columns["id"].astype(np.int64)
        ts, ts_end, thread = self.slices.ts[ids], self.slices.ts_end[ids], self._threads_of(ids)
        order = np.lexsort((ids, -ts_end, ts, thread))
        program, *texts = (columns[name].astype(object)[order] for name in ("program", "part", "phase", "model"))
        marks = loops.Marks(ids[order], thread[order], ts[order], ts_end[order], *texts)
        return marks, program == "transformers"

    def _threads_of(self, ids: Array) -> Array:
        """The track of the thread of each slice."""
        return self._own_tracks(self.slices.track[ids])
