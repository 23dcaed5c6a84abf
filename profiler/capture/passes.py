"""The passes of a capture, and reports of their progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from molprof.common.molecule_records import Disagreement
from molprof.profiler.capture.disagreement import disagreement_pass
from molprof.profiler.decoding.batches import BatchPlan, BatchResult, PassResult
from molprof.profiler.decoding.marks import Marks
from molprof.profiler.decoding.runner import Runner


@dataclass(frozen=True)
class Progress:
    """How far a capture is.

    Attributes:
        stage: `load`, `weights`, `verify`, `warmup`, `repeat`, `unmarked`, `profile`, `disagreement` or `write`.
        number, of: pass of the stage; layer of `weights`.
        batch, batches: finished batches, and all.
        step: the running step, at most `max_steps`; 0 in passes that are timed.
        tokens: generated in finished batches of this pass.
        elapsed_ns: since the pass began.
        notes: remarks on the input, one line each; with `load` only.
    """

    stage: str
    number: int = 1
    of: int = 1
    batch: int = 0
    batches: int = 0
    step: int = 0
    max_steps: int = 0
    tokens: int = 0
    elapsed_ns: int = 0
    notes: tuple[str, ...] = ()


Report = Callable[[Progress], None]


class Passes:
    """Runs passes and reports their progress."""

    def __init__(self, runner: Runner, plans: list[BatchPlan], report: Report) -> None:
        self.runner, self.plans = runner, plans
        self.report = report
        self._at = Progress("load")
        self._began_ns = 0

    def run(self, stage: str, number: int, of: int, marks: Marks | None, only: int | None = None) -> PassResult:
        """Pass `number` of `of` of a stage: `Runner.run`."""
        self._at = Progress(stage, number + 1, of, batches=len(self.plans))
        self._began_ns = time.perf_counter_ns()
        self._tell(0, 0, 0)
        result = self.runner.run(self.plans, marks, only)
        self._tell(len(result.batches), 0, sum(len(row) for batch in result.batches for row in batch.rows))
        return result

    def watched(self) -> list[tuple[BatchResult, list[Disagreement]]]:
        """The untimed pass for disagreement."""
        self._at = Progress("disagreement", batches=len(self.plans))
        self._began_ns = time.perf_counter_ns()
        tokens = 0

        def tell(batch: int, result: BatchResult | None) -> None:
            nonlocal tokens
            tokens += sum(map(len, result.rows)) if result else 0
            self._tell(batch + (result is not None), 0, tokens)

        return disagreement_pass(self.runner, self.plans, tell)

    def step(self, batch: int, step: int) -> None:
        """Reports a step of a pass that is not timed."""
        self._tell(batch, step, 0)

    def _tell(self, batch: int, step: int, tokens: int) -> None:
        bound = self.plans[min(batch, len(self.plans) - 1)].max_new_tokens
        elapsed = time.perf_counter_ns() - self._began_ns
        at = self._at
        self.report(Progress(at.stage, at.number, at.of, batch, at.batches, step, bound, tokens, elapsed))
