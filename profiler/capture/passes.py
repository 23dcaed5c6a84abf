"""The passes of a capture, and reports of their progress."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from molprof.common.molecule_records import Disagreement
from molprof.profiler.capture.disagreement import Watching
from molprof.profiler.decoding.batches import BatchPlan, BatchResult, PassResult
from molprof.profiler.decoding.marks import Marks
from molprof.profiler.decoding.runner import Runner


@dataclass(frozen=True)
class Progress:
    """How far a capture is."""

    stage: str  # `load`, `weights`, `verify`, `warmup`, `repeat`, `unmarked`, `profile`, `disagreement` or `write`
    number: int = 1  # pass of the stage, layer of `weights`
    of: int = 1
    batch: int = 0  # finished
    batches: int = 0
    step: int = 0  # the running one; 0 in passes that are timed
    max_steps: int = 0
    tokens: int = 0  # generated in finished batches of this pass
    elapsed_ns: int = 0  # since the pass began
    notes: tuple[str, ...] = ()  # on the input, one line each; with `load` only


Report = Callable[[Progress], None]


class Passes:
    """Runs passes and reports their progress."""

    def __init__(self, runner: Runner, plans: list[BatchPlan], report: Report) -> None:
        self.runner, self.plans, self.report = runner, plans, report
        self._at = Progress("load")
        self._began_ns = 0

    def run(self, stage: str, marks: Marks | None, number: int = 0, of: int = 1, only: int | None = None) -> PassResult:
        """Pass `number` of `of` of a stage: `Runner.run`."""
        self._begin(Progress(stage, number + 1, of, batches=len(self.plans)))
        result = self.runner.run(self.plans, marks, only)
        self.step(len(result.batches), 0, sum(len(row) for batch in result.batches for row in batch.rows))
        return result

    def watched(self) -> list[tuple[BatchResult, list[Disagreement]]]:
        """The untimed pass for disagreement: what each batch wrote, and the figures of its rows."""
        assert self.runner.processor is not None
        watching = Watching(self.runner.processor)
        # Step by step: of a forced run, the model never gives scores token by token.
        settings = dataclasses.replace(self.runner.settings, forced_runs=False, drop_finished=False)
        runner: Runner = dataclasses.replace(self.runner, processor=watching, settings=settings)  # type: ignore[arg-type]
        self._begin(Progress("disagreement", batches=len(self.plans)))
        found = []
        tokens = 0
        for number in range(len(self.plans)):
            (result,) = runner.run(self.plans, None, only=number).batches
            found.append((result, watching.batch.finish(result.rows)))
            tokens += sum(map(len, result.rows))
            self.step(number + 1, 0, tokens)
        return found

    def step(self, batch: int, step: int, tokens: int = 0) -> None:
        """Reports a step of a pass that is not timed."""
        bound = self.plans[min(batch, len(self.plans) - 1)].max_new_tokens
        elapsed = time.perf_counter_ns() - self._began_ns
        self.report(
            dataclasses.replace(self._at, batch=batch, step=step, max_steps=bound, tokens=tokens, elapsed_ns=elapsed)
        )

    def _begin(self, at: Progress) -> None:
        self._at, self._began_ns = at, time.perf_counter_ns()
        self.step(0, 0)
