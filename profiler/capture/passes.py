"""The passes of a capture, and reports of their progress."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from molprof.common.engine_settings import AUTO
from molprof.common.manifest import Disagreement
from molprof.profiler.capture.watched import CountedMasks, Masked, WatchedProcessor
from molprof.profiler.constraints.base import BatchProcessor, Laps
from molprof.profiler.constraints.own import Observed
from molprof.profiler.engines import BatchPlan, BatchResult
from molprof.profiler.engines.backends import held_bytes, kernels_told
from molprof.profiler.engines.runner import PassResult, Runner, Wrap
from molprof.profiler.recording.clock import Clock
from molprof.profiler.recording.marks import Marks, before_forward


@dataclass(frozen=True)
class CaptureProgress:
    """Progress of a capture."""

    # `load`, `weights`, `verify`, `warmup`, `machine`, `repeat`, `unmarked`, `profile`, `count`, `disagreement`,
    # `write`, `graphs`, `refused` or `failed`
    stage: str
    number: int = 1  # pass of the stage, layer of `weights`
    of: int = 1
    batch: int = 0  # finished
    batches: int = 0
    step: int = 0  # the running one; 0 in passes that are timed
    max_steps: int = 0
    tokens: int = 0  # generated in finished batches of this pass
    elapsed_ns: int = 0  # since the pass began
    notes: tuple[str, ...] = ()  # one line each: with `load` on the input, else on the stage
    run: str = ""  # name of the run; empty while models are loaded, and in a capture of one run


Report = Callable[[CaptureProgress], None]


class Started:
    """A `wrap` for `Runner.run` that keeps the processors of a pass and returns them unchanged."""

    def __init__(self) -> None:
        self._processors: list[BatchProcessor] = []

    def __call__(self, processor: BatchProcessor) -> BatchProcessor:
        """Keep and return a started processor."""
        self._processors.append(processor)
        return processor

    def constraint_ns(self) -> dict[str, int]:
        """Return `Repeat.constraint_ns`; empty if molprof's own decoding loop masks in another way."""
        sums: Counter[str] = Counter()
        for each in self._processors:
            laps = getattr(each, "laps", None)
            sums.update(laps.total_ns if isinstance(laps, Laps) and laps.calls else {})
        return dict(sums)


# What transformers leaves on a model for its next `generate`: a static cache, or its length.
_LEFT_ON_MODEL = ("_cache", "_previous_max_cache_length")


class Passes:
    """Runs the passes of a run, named `name`, and reports their progress."""

    def __init__(self, runner: Runner, plans: list[BatchPlan], report: Report, name: str = "") -> None:
        self.runner, self.plans, self.report = runner, plans, report
        self._at = CaptureProgress("load", run=name)
        self._began_ns = 0
        self._left: dict[str, Any] = {}
        self.cache_bytes: list[int] = []  # of a KV cache before each forward of warm-up passes, of a run without record

    def run(
        self,
        stage: str,
        marks: Marks | None,
        number: int = 0,
        of: int = 1,
        only: int | None = None,
        wrap: Wrap | None = None,
    ) -> PassResult:
        """Run pass `number` of `of` of a stage by `Runner.run`."""
        self._begin(stage, number + 1, of)
        warms_up = stage in ("verify", "count", "warmup") and self.runner.settings.timed_only
        with self._own_model(), self._looked_at() if warms_up else nullcontext():
            result = self.runner.run(self.plans, marks, only, wrap)
        self.step(len(result.batches), 0, _tokens(result.batches))
        return result

    def watched(self) -> list[tuple[BatchResult, list[Disagreement]]]:
        """Run the untimed pass for disagreement; return each batch's tokens, and the figures of its rows."""
        # Step by step: of a forced run, the model never gives scores token by token.
        settings = dataclasses.replace(
            self.runner.settings, engine=AUTO, assistant=None, free_drafts=False, forced_runs=False, drop_finished=False
        )
        runner = dataclasses.replace(self.runner, settings=settings)
        watched: list[WatchedProcessor] = []

        def wrap(studied: BatchProcessor) -> BatchProcessor:
            watched.append(WatchedProcessor())
            return Observed(studied, watched[-1])

        self._begin("disagreement")
        results: list[tuple[BatchResult, list[Disagreement]]] = []
        for number in range(len(self.plans)):
            with self._own_model():
                (result,) = runner.run(self.plans, None, only=number, wrap=wrap).batches
            results.append((result, watched.pop().finish(result.rows)))
            self.step(number + 1, 0, _tokens([batch for batch, _ in results]))
        return results

    def counted(self, stage: str) -> tuple[PassResult, list[list[Masked]]]:
        """Run an untimed pass that counts masked logits; return them by batch and prompt.

        The time of the pass is without that of counting.
        """
        wrapped: list[Observed] = []
        counted: list[CountedMasks] = []

        def wrap(studied: BatchProcessor) -> BatchProcessor:
            counted.append(CountedMasks())
            wrapped.append(Observed(studied, counted[-1]))
            return wrapped[-1]

        result = self.run(stage, Clock(on_step=self.step), wrap=wrap)
        eos = self.runner.loaded.eos
        result = dataclasses.replace(result, wall_ns=result.wall_ns - sum(seen.looked_ns for seen in wrapped))
        return result, [seen.of_rows(batch, eos) for seen, batch in zip(counted, result.batches, strict=True)]

    def step(self, batch: int, step: int, tokens: int = 0) -> None:
        """Report a step of a pass that is not timed."""
        bound = self.plans[min(batch, len(self.plans) - 1)].most_steps
        elapsed = time.perf_counter_ns() - self._began_ns
        self.report(
            dataclasses.replace(self._at, batch=batch, step=step, max_steps=bound, tokens=tokens, elapsed_ns=elapsed)
        )

    def tell(self, stage: str, *notes: str) -> None:
        """Report a stage that is not a pass."""
        self.report(CaptureProgress(stage, notes=notes, run=self._at.run))

    def _begin(self, stage: str, number: int = 1, of: int = 1) -> None:
        self._at = CaptureProgress(stage, number, of, batches=len(self.plans), run=self._at.run)
        self._began_ns = time.perf_counter_ns()
        self.step(0, 0)

    @contextmanager
    def _looked_at(self) -> Iterator[None]:
        """Record the size of the KV cache before each forward. UnsupportedError if the attention has no kernel."""
        model = self.runner.loaded.model
        note = lambda inputs: self.cache_bytes.append(held_bytes(inputs.get("past_key_values")))  # noqa: E731
        by_generate = hasattr(model, "prepare_inputs_for_generation")
        with kernels_told(), before_forward(model, note) if by_generate else nullcontext():
            yield

    @contextmanager
    def _own_model(self) -> Iterator[None]:
        """Restore the model's attributes of this run's last pass: another run's static cache has another length."""
        model = self.runner.loaded.model.__dict__
        others = {name: model.pop(name) for name in _LEFT_ON_MODEL if name in model}
        model.update(self._left)
        try:
            yield
        finally:
            self._left = {name: model.pop(name) for name in _LEFT_ON_MODEL if name in model}
            model.update(others)


def _tokens(batches: Sequence[BatchResult]) -> int:
    return sum(len(row) for batch in batches for row in batch.rows)
