"""Marks of programs' phases: the outermost marks, loops of transformers, single logits processors."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from molprof.analysis.facts import loops
from molprof.analysis.facts.gaps import Array
from molprof.analysis.facts.intervals import begins_inside
from molprof.analysis.facts.processors import single_processors
from molprof.analysis.facts.work import WorkFacts

_MARKS = """
SELECT id, program, part, phase, IIF(phase = 'forward', name, NULL) AS model
FROM molprof_phase_slice
ORDER BY id
"""
# Phases of a captured run count, and no others.
_HAS_OWN_PHASES = "SELECT EXISTS(SELECT 1 FROM molprof_annotation WHERE role = 'phase')"
_CHOOSING = """
SELECT id, name = 'aten::topk' AS is_topk
FROM slice
WHERE category = 'cpu_op' AND name IN ('aten::argmax', 'aten::multinomial', 'aten::topk')
ORDER BY id
"""
# Lists of criteria and the criteria in them: calls in any file may be some.
_CRITERIA = """
SELECT id
FROM molprof_phase_slice
WHERE program = 'transformers' AND IFNULL(phase, 'sampling') = 'sampling'
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
  name GLOB '*/cb_logits_processors.py(*' OR name GLOB '*profiler/recording/marks.py(*'
    OR name GLOB '*profiler/constraints/own.py(*' AS is_wrapper
FROM molprof_phase_slice
WHERE phase IS NULL OR phase = 'processor'
ORDER BY id
"""


class MarkFacts(WorkFacts):
    """Marks of phases and what they show."""

    @cached_property
    def engine_phases(self) -> Array:
        """Slices that mark phases of engines, without those inside another one of the same phase.

        Nor has a draft a forward in it: that of its model is the draft's.
        """
        marks = self._marks[0].some(~self._marks[1])
        marks = marks.some(loops.outermost(marks))
        in_draft = begins_inside(marks.thread, marks.ts, marks.ts_end, marks.is_phase("draft"))
        return np.sort(marks.id[~(in_draft & marks.is_phase("forward"))])

    @cached_property
    def loop_marks(self) -> loops.PhaseMarks:
        """Marks of transformers' loops; none in a captured run."""
        marks = self._marks[0].some(self._marks[1] & (not self.rows(_HAS_OWN_PHASES, "annotations")[0][0]))
        return loops.loop_marks(marks.some(loops.outermost(marks)))

    @cached_property
    def loop_calls(self) -> loops.GenerateCalls:
        """The calls of generate that enclose the loops' marks."""
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
    def choices(self) -> loops.StepChoices:
        """The kind of choice of tokens in each step of generate."""
        samplings = loops.find_samplings(self.loop_marks, self.loop_phases, self.generate_steps)
        ids, is_topk = np.empty((2, 0), dtype=np.int64)
        if len(samplings.ts):
            ids, is_topk = self.numbers(_CHOOSING, None)
        (criteria,) = self.numbers(_CRITERIA, "phase_slices")
        return loops.find_choices(samplings, self.on_threads(ids), is_topk != 0, self.on_threads(criteria))

    @cached_property
    def single_processors(self) -> Array:
        """Slices of the outermost calls of single logits processors."""
        ids, is_list = self.numbers(_PROCESSOR_PHASES, "phases")
        if not len(ids):
            return ids
        calls, in_list_file, is_wrapper = self.numbers(_PROCESSOR_CALLS, "phase_slices")
        phases, functions = self.on_threads(ids), self.on_threads(calls)
        return single_processors(phases, is_list != 0, functions, in_list_file != 0, is_wrapper != 0)

    @cached_property
    def _marks(self) -> tuple[loops.PhaseMarks, Array]:
        """All marks of phases, and True for each one of transformers."""
        columns = self._read(_MARKS, "phase_slices")
        slices = self.on_threads(columns["id"].astype(np.int64))
        order = np.lexsort((slices.id, -slices.ts_end, slices.ts, slices.thread))
        numbers = (getattr(slices, name)[order] for name in slices.__struct_fields__)
        program, *texts = (columns[name].astype(object)[order] for name in ("program", "part", "phase", "model"))
        return loops.PhaseMarks(*numbers, *texts), program == "transformers"

    def on_threads(self, ids: Array) -> loops.ThreadSlices:
        """Return slices by the track of their thread."""
        slices = self.slices
        return loops.ThreadSlices(ids, self.own_tracks(slices.track[ids]), slices.ts[ids], slices.ts_end[ids])
