"""One run of a capture: its warm-up, its timed passes one by one, and the trace of its recorded pass."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molprof.common.errors import MolprofError, ProcessorError
from molprof.common.files import scratch_file
from molprof.common.manifest import (
    KEY,
    SCHEMA,
    Machine,
    MachineSpan,
    Manifest,
    MaskedLogits,
    Repeat,
    Session,
    Timings,
    Window,
)
from molprof.common.memory import processors
from molprof.common.settings import CaptureSettings
from molprof.common.values import counted, factor_text, now, time_text
from molprof.profiler.capture.account import resolved, sequence_runs, static_cache_notes
from molprof.profiler.capture.graph_pass import graph_pass
from molprof.profiler.capture.passes import Passes, Report
from molprof.profiler.capture.recorded_pass import check_window, choose_window, kept_recording, recorded_pass
from molprof.profiler.constraints import processor_of
from molprof.profiler.constraints.checked import UserProcessor
from molprof.profiler.engines.batches import PassResult
from molprof.profiler.engines.runner import Runner
from molprof.profiler.environment import environment
from molprof.profiler.machine import Watch
from molprof.profiler.models.device import Peak
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.molecules.prompts import Prompts
from molprof.profiler.recording.generate import signature_cost_ns
from molprof.profiler.recording.marks import HostMarks, mark_cost_ns
from molprof.profiler.recording.tracefile import OutputFile, incomplete_path, is_incomplete, token_events, write_trace


@dataclass(frozen=True)
class CaptureResult:
    """A finished run: the trace's path, and remarks on the run, one line each."""

    path: Path
    manifest: Manifest
    notes: tuple[str, ...]


class CapturedRun:
    """One run: `warm_up`, `timed_pass` as often as there are repeats, `unmarked_pass`, `record`, `record_graphs`.

    Passes of other runs may come between them, also of the same model.

    Args:
        name: for progress; empty where the capture has one run.

    Raises:
        UsageError: the settings, the processor and the prompts do not fit each other.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        output: OutputFile,
        loaded: LoadedModel,
        prompts: Prompts,
        report: Report = lambda progress: None,
        name: str = "",
    ) -> None:
        runner = Runner(loaded, processor_of(settings, loaded.target), settings)
        plans = runner.plan(prompts.prompts)
        if settings.window is not None:
            check_window(settings.window, plans[0].max_new_tokens)  # before the passes, as far as the bound tells
        self.settings, self.output, self.prompts, self.name = settings, output, prompts, name
        self.passes = Passes(runner, plans, report, name)
        if size := static_cache_notes(runner, plans):
            self.passes.tell("warmup", *size)
        self._looked_at: PassResult | None = None
        self._masked: list[list[MaskedLogits]] | None = None
        self._warmup: list[PassResult] = []
        self._results: list[PassResult] = []
        self._repeats: list[Repeat] = []
        self._memory: dict[str, Any] = {}
        self._unmarked: PassResult | None = None
        self._spans: list[MachineSpan] = []

    def warm_up(self) -> None:
        """The warm-up passes. With a processor the first counts what it masks, checks a user's, and is always made."""
        passes, processor = self.passes, self.passes.runner.processor
        if isinstance(processor, UserProcessor):
            processor.verify = True
            self._looked_at, self._masked = passes.counted("verify")
            processor.verify = False
        elif processor is not None:
            self._looked_at, self._masked = passes.counted("count")
        self._warmup = [] if self._looked_at is None else [self._looked_at]
        count = self.settings.warmup
        for number in range(len(self._warmup), count):
            self._warmup.append(passes.run("warmup", HostMarks(passes.step), number, count))
        del self._warmup[count:]

    def timed_pass(self, watch: Watch) -> None:
        """The next timed pass, while `watch` looks at the machine."""
        marks = HostMarks()
        peak = Peak(self.passes.runner.loaded.target.device)
        watch.begin()
        result = self.passes.run("repeat", marks, len(self._results), self.settings.repeats)
        self._spans.append(watch.end())
        memory = peak.read()
        if (memory["peak_memory_bytes"] or 0) >= (self._memory.get("peak_memory_bytes") or 0):
            self._memory = memory
        self._results.append(result)
        self._repeats.append(
            Repeat(result.wall_ns, marks.phases_ns(), marks.steps_ns(), result.compiles, result.compile_ns)
        )

    def unmarked_pass(self) -> None:
        """The timed pass without phase timestamps, which only a capture of one run makes."""
        self._unmarked = self.passes.run("unmarked", None)

    def record(self, session: Session | None = None, before: MachineSpan | None = None) -> CaptureResult:
        """The recorded pass, and the trace file with tokens and manifest; `before` is of the machine."""
        with ExitStack() as stack:
            # Made late: a capture that is killed before leaves nothing.
            raw = functools.cache(lambda: self.output.raw(stack.enter_context(scratch_file(self.output.path))))
            try:
                return self._record(raw, session, Machine(processors(), before, self._spans))
            except ProcessorError as problem:
                raise kept_recording(self.output, self.passes, raw(), problem) from problem

    def record_graphs(self) -> None:
        """The pass that records the capture of CUDA graphs, where the run has any. After all recorded passes."""
        graph_pass(self.passes, self.output, self._results[0].batches[0].steps)

    def failed(self, problem: MolprofError) -> MolprofError:
        """What to raise for a failure of a pass before `record`; the steps before a processor's failure are kept."""
        if not isinstance(problem, ProcessorError):
            return problem
        with scratch_file(self.output.path) as part:
            return kept_recording(self.output, self.passes, self.output.raw(part), problem)

    def _record(self, raw: Callable[[], Path], session: Session | None, machine: Machine) -> CaptureResult:
        """The recorded pass, exported to the path that `raw` returns, and the trace of all passes."""
        settings, passes = self.settings, self.passes
        runner, plans, loaded = passes.runner, passes.plans, passes.runner.loaded
        reference = self._results[0]
        window = choose_window(settings.window, settings.full, reference)
        profiled, recorded = recorded_pass(passes, window, raw(), self.output)
        steps = recorded.steps
        unmarked = [] if self._unmarked is None else [self._unmarked]
        problems = _unlike([*self._results, *unmarked], profiled, window)
        if self._looked_at is not None and self._looked_at.batches != reference.batches:
            lost = "masked logits are counted in that one"
            if isinstance(runner.processor, UserProcessor):
                lost = "nothing checked that the processor left every row a token there"
            problems.append(f"the timed passes wrote another text than the checking pass: {lost}")
        if problems:
            problems += self._still_wrong()
        watched = passes.watched() if settings.disagreement else None
        passes.tell("write")
        molecules, texts = sequence_runs(runner, plans, reference, watched, self._masked)
        same = [sum(repeat.steps_ns[batch][step] for batch, step in steps) for repeat in self._repeats]
        timings = Timings(
            warmup_ns=[result.wall_ns for result in self._warmup],
            repeats=self._repeats,
            mark_ns=mark_cost_ns(),
            unmarked_wall_ns=None if self._unmarked is None else self._unmarked.wall_ns,
            profiled_steps_ns=sum(span.duration_ns for span in steps.values()),
            unprofiled_steps_ns=round(statistics.median(same)),
            signature_ns=None if settings.own_loop else signature_cost_ns(),
            warmup_compiles=[result.compiles for result in self._warmup],
            warmup_compile_ns=[result.compile_ns for result in self._warmup],
            profiled_wall_ns=profiled.wall_ns if settings.full else None,
            **self._memory,
        )
        manifest = Manifest(
            schema=SCHEMA,
            created=now(),
            command=list(self.output.command),
            environment=environment(loaded.target.device),
            settings=settings,
            resolved=resolved(runner, plans, reference),
            timings=timings,
            window=window,
            steps_per_batch=[batch.steps for batch in reference.batches],
            molecules=molecules,
            skipped=list(self.prompts.skipped),
            rows_per_step=[list(batch.rows_per_step) for batch in reference.batches],
            session=session,
            machine=machine,
            problems=problems,
        )
        events = token_events(molecules, texts, steps, self.settings.text_format)
        path = write_trace(recorded, self.output, events, {KEY: manifest.to_json()})
        left = incomplete_path(self.output.path)
        if is_incomplete(left):
            left.unlink()  # of an earlier run that failed
        notes = [*loaded.notes, *problems]
        if not window.full and settings.window is not None and window.last_step < settings.window[1]:
            notes.append(f"the recorded steps end at step {window.last_step}, the last one")
        if settings.disagreement and (unlike := sum(run.disagreement is None for run in molecules)):
            notes.append(
                f"the pass for disagreement wrote another text for {unlike} molecules: none is recorded for them"
            )
        if unchecked := sum(run.unchecked for run in molecules):
            notes.append(
                f"validity of {unchecked} of {counted(len(molecules), 'molecule')} not recorded: their skeletons are "
                "not the prompts', and RDKit, which compares molecules, is not installed (pip install 'molprof[rdkit]')"
            )
        notes += _overhead(settings, timings)
        if doubts := machine.doubts():
            notes.append(f"times are in doubt: during the timed passes {'; '.join(doubts)}")
        return CaptureResult(path, manifest, tuple(notes))

    def _still_wrong(self) -> list[str]:
        """What one more checking pass finds in a user's processor, which the other passes do not look at."""
        processor = self.passes.runner.processor
        if not isinstance(processor, UserProcessor):
            return []
        processor.verify = True
        try:
            self.passes.run("verify", HostMarks(self.passes.step))
        except MolprofError as problem:
            return [f"checked once more after the recorded pass: {problem}"]
        finally:
            processor.verify = False
        return []


def _overhead(settings: CaptureSettings, timings: Timings) -> list[str]:
    """What recording modules or stacks cost."""
    if not (settings.stacks or settings.modules) or not timings.unprofiled_steps_ns:
        return []
    recorded_ns, timed_ns = timings.profiled_steps_ns, timings.unprofiled_steps_ns
    what = "Python stacks" if settings.stacks else "modules"
    return [
        f"with {what}, the recorded steps took {factor_text(recorded_ns / timed_ns)} their time in the timed passes "
        f"({time_text(recorded_ns)}, {time_text(timed_ns)}), which ran without the profiler"
    ]


def _unlike(results: list[PassResult], profiled: PassResult, window: Window) -> list[str]:
    """How the texts of the timed passes, and that of the recorded pass, differ."""
    problems = []
    reference = results[0].batches
    if any(result.batches != reference for result in results[1:]):
        problems.append("the timed passes did not all write the same text: their times measure different work")
    expected = reference if window.full else reference[window.batch : window.batch + 1]
    if any(
        batch.written(row, got.steps) != wrote
        for batch, got in zip(expected, profiled.batches, strict=True)
        for row, wrote in enumerate(got.rows)
    ):
        problems.append("the recorded pass wrote another text than the timed passes, whose tokens the trace shows")
    return problems
