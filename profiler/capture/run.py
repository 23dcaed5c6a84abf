"""One run of a capture: its warm-up, its timed passes one by one, and the trace of its recorded pass."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from msgspec import UNSET

from molprof.common.drafts import MaskFills
from molprof.common.engine_settings import AUTO, CONTINUOUS, GENERATE
from molprof.common.errors import MolprofError, ProcessorError, RunError, UsageError
from molprof.common.installed import install_command
from molprof.common.manifest import (
    INCOMPLETE_KEY,
    Machine,
    MachineSpan,
    Manifest,
    Repeat,
    Session,
    Window,
)
from molprof.common.memory import processors
from molprof.common.sampled import SampledFunctions
from molprof.common.settings import CaptureSettings
from molprof.common.values import counted
from molprof.profiler.capture.account import overhead_notes, resolved, sequence_runs, static_cache_notes
from molprof.profiler.capture.passes import Passes, Report, Started
from molprof.profiler.capture.watched import Masked, replayed
from molprof.profiler.constraints import processor_of
from molprof.profiler.constraints.own import UserProcessor
from molprof.profiler.engines.backends import graph_breaks, is_compiled
from molprof.profiler.engines.generation import followed, note
from molprof.profiler.engines.runner import PassResult, Runner
from molprof.profiler.machine import Watch
from molprof.profiler.models.device import Peak
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.molecules.prompts import Prompts, with_chats
from molprof.profiler.recording.clock import WINDOW_STEPS, Clock, StepPlan, recording, usual_window
from molprof.profiler.recording.manifest import manifest_of, signature_cost_ns, write_run
from molprof.profiler.recording.sequences import Generated
from molprof.profiler.recording.tracefile import (
    NO_EVENTS,
    ExportedFile,
    OutputFile,
    beside,
    incomplete_path,
    is_incomplete,
    read_exported,
    write_trace,
)

# Key of a trace of the capture of graphs: what it was recorded for.
GRAPHS_KEY = "molprof_graphs"
# Modes of torch.compile that capture graphs; transformers' own mode is reduce-overhead.
_GRAPH_MODES = (AUTO, "reduce-overhead", "max-autotune")
# torch compiles the forward in its first call, captures it in the second, and replays it from the third on. The first
# decode step is step 1. Compiling is left out: it traces all of torch's compiler.
_GRAPH_STEPS = Window(False, 0, 2, 3)


@dataclass(frozen=True)
class CaptureResult:
    """A finished run: the trace's path, remarks, and reasons that make it a failure, one line each."""

    path: Path
    manifest: Manifest
    notes: tuple[str, ...]
    failures: tuple[str, ...] = ()


def choose_window(window: tuple[int, int] | None, full: bool, result: PassResult) -> Window:
    """Return the steps to record.

    By default these are 20 decode steps of the first batch, from step 20 on if the answers are that long, before any
    row is finished: a run mostly consists of such steps.
    """
    batch = result.batches[0]
    if full:
        return Window(True, 0, 0, batch.steps - 1)
    if window is not None:
        check_window(window, batch.steps)
        return Window(False, 0, window[0], min(window[1], batch.steps - 1))
    steps = min(map(batch.busy_steps, range(len(batch.rows))))
    first, last = usual_window(steps)
    return Window(False, 0, first, min(last, steps - 1))


def check_window(window: tuple[int, int], steps: int) -> None:
    """Raise UsageError if a window (first and last step) begins after the last of `steps` steps."""
    if window[0] >= steps:
        raise UsageError(
            f"window {window[0]}:{window[1]} begins after the first batch's last step {steps - 1}",
            hint=f"--window within 0:{steps - 1}",
        )


def captures_graphs(settings: CaptureSettings, gpu: bool) -> bool:
    """Return True if torch captures CUDA graphs with these settings."""
    return gpu and is_compiled(settings, gpu) and settings.compile in _GRAPH_MODES


def graphs_path(output: Path) -> Path:
    """Return the path of the trace of the capture of graphs."""
    return beside(output, "graphs")


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
        settings = followed(settings, loaded.generation)
        began = time.perf_counter_ns()
        runner = Runner(loaded, processor_of(settings, loaded.target), settings)
        self.once_parts_ns = {**getattr(runner.processor, "made_ns", {})}
        took_ns = max(time.perf_counter_ns() - began, sum(self.once_parts_ns.values()))  # some parts are kept ones
        self.processor_once_ns = None if runner.processor is None else took_ns
        prompts = replace(prompts, prompts=with_chats(prompts.prompts, loaded.tokenizer))
        plans = runner.plan(prompts.prompts)
        if settings.window is not None:
            check_window(settings.window, plans[0].most_steps)  # before the passes, as far as the bound tells
        self.settings, self.output, self.prompts, self.name = settings, output, prompts, name
        self.passes = Passes(runner, plans, report, name)
        if notes := (*static_cache_notes(runner, plans), *filter(None, [note(settings, loaded.generation)])):
            self.passes.tell("warmup", *notes)
        self._looked_at: PassResult | None = None
        self._masked: list[list[Masked]] | None = None
        self._warmup: list[PassResult] = []
        self.results: list[PassResult] = []
        self.repeats: list[Repeat] = []
        self._memory: dict[str, Any] = {}
        self._unmarked: PassResult | None = None
        self._spans: list[MachineSpan] = []
        self._functions: SampledFunctions | None = None
        self.load_ns: int | None = None  # loading the model

    def warm_up(self) -> None:
        """Run the warm-up passes.

        With a processor the first counts what it masks, checks a user's, and is always made.
        """
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
            self._warmup.append(passes.run("warmup", Clock(on_step=passes.step), number, count))
        del self._warmup[count:]

    def timed_pass(self, watch: Watch) -> None:
        """Run the next timed pass, while `watch` observes the machine."""
        marks, settings = Clock(), self.settings
        peak = Peak(self.passes.runner.loaded.target.device)
        watch.begin()
        started = Started()
        result = self.passes.run("repeat", marks, len(self.results), settings.repeats, wrap=started)
        self._spans.append(watch.end())
        memory = peak.read()
        if (memory["peak_memory_bytes"] or 0) >= (self._memory.get("peak_memory_bytes") or 0):
            self._memory = memory
        self.results.append(result)
        fills = [batch.mask_fills for batch in result.batches if batch.mask_fills is not None]
        repeat = marks.repeat(
            result.wall_ns,
            compiles=result.compiles,
            compile_ns=result.compile_ns,
            draft_ns=sum(batch.draft_ns or 0 for batch in result.batches) if result.batches[0].drafts else None,
            mask_fills=sum(fills, MaskFills()) if fills else UNSET,
            constraint_ns=started.constraint_ns(),
        )
        assert repeat is not None  # nothing was profiled
        self.repeats.append(repeat)

    def unmarked_pass(self) -> None:
        """Run the timed pass without phase timestamps, which only a capture of one run makes."""
        self._unmarked = self.passes.run("unmarked", None)

    def record(self, session: Session | None = None, before: MachineSpan | None = None) -> CaptureResult:
        """Make the recorded pass and the trace file with tokens and manifest; `before` is of the machine."""
        with self.output.raw() as raw:
            try:
                return self._record(raw, session, Machine(processors(), before, self._spans))
            except ProcessorError as problem:
                raise self._kept(raw, problem) from problem

    def record_graphs(self) -> None:
        """Record the capture of CUDA graphs, with stacks and shapes; the run's own trace only replays them.

        It drops all that torch compiled in this process, so that graphs are captured again: nothing may be timed or
        recorded after it. A failure costs the trace of the capture alone, and is told.
        """
        if self.settings.timed_only or not captures_graphs(self.settings, self.passes.runner.loaded.on_gpu):
            return
        path, lost = graphs_path(self.output.path), "the capture of the graphs is not recorded"
        if (steps := self.results[0].batches[0].steps) <= _GRAPH_STEPS.last_step:
            self.passes.tell("graphs", f"{lost}: answers have {steps} steps, not {_GRAPH_STEPS.last_step + 1}")
            return
        torch._dynamo.reset()
        try:
            with self.output.raw() as raw:
                self._profiled(_GRAPH_STEPS, raw, "graphs", whole=True)
                account = {"replay": self.output.path.name, "command": list(self.output.command)}
                graphs = OutputFile(path, self.output.force, self.output.command)
                write_trace(read_exported(raw, self.output), graphs, (), {GRAPHS_KEY: account})
        except (MolprofError, RuntimeError) as problem:  # torch's own errors are the latter
            self.passes.tell("graphs", f"{lost}: {problem}")
        else:
            self.passes.tell("graphs", f"graphs: molprof report {self.output.path} --graph-capture {path}")

    def failed(self, problem: MolprofError) -> MolprofError:
        """Return the error for a failed pass before `record`; if a processor failed, its steps are kept."""
        if not isinstance(problem, ProcessorError):
            return problem
        with self.output.raw() as raw:
            return self._kept(raw, problem)

    def _kept(self, raw: Path, problem: ProcessorError) -> ProcessorError:
        """Keep the steps before a processor failed, and return the error to raise, which names their file.

        A failure in the recorded pass leaves a recording. After one in an earlier pass, its batch runs once more to
        record the steps before the failure, as many as a window has.
        """
        if not raw.exists() and problem.batch is not None and problem.step is not None:
            window = Window(False, problem.batch, max(0, problem.step - WINDOW_STEPS + 1), problem.step)
            with contextlib.suppress(ProcessorError):
                self._profiled(window, raw)
        if not raw.exists():
            return problem
        name = getattr(self.passes.runner.processor, "name", None)
        account = {"problem": str(problem), "processor": name, "command": list(self.output.command)}
        path = incomplete_path(self.output.path)
        write_trace(self._exported(raw), OutputFile(path, force=True), (), {INCOMPLETE_KEY: account})
        kept = f"the steps before the failure are kept, marked incomplete: {path}"
        hint = "\n".join(filter(None, (problem.hint, kept)))
        return ProcessorError(str(problem), hint, step=problem.step, batch=problem.batch)

    def _profiled(self, window: Window, raw: Path, stage: str = "profile", whole: bool = False) -> PassResult:
        """Run a pass under the profiler, exported to `raw` even if it fails; its batch ends with the window.

        whole: with stacks and shapes, whatever the settings say.
        """
        device, settings = self.passes.runner.loaded.target.device, self.settings
        stacks = whole or settings.stacks or settings.modules
        # The steps of continuous batching run in a thread of their own.
        threads = settings.engine_name == CONTINUOUS
        options = {
            "threads": threads,
            "stacks": stacks,
            "shapes": whole or settings.shapes,
            "memory": settings.memory,
            "functions": not whole and self.passes.runner.processor is not None and samples_functions(settings),
            "on_step": self.passes.step,
        }
        with recording(raw, device, StepPlan.of(window), **options) as marks:
            try:
                result = self.passes.run(stage, marks, only=None if window.full else window.batch)
            except ProcessorError:
                raise
            except RunError as problem:  # which leaves the same to keep
                raise ProcessorError(str(problem), problem.hint) from problem
        if marks.kept is None:
            raise RunError("the recorded pass ended before its window: the passes did not write the same text")
        self._functions = marks.kept.functions
        return result

    def _exported(self, raw: Path) -> ExportedFile:
        """Return the trace of `_profiled`.

        Torch records all Python functions or none; those of modules may be wanted.
        """
        return read_exported(raw, self.output, functions=self.settings.stacks or not self.settings.modules)

    def _recorded(self, window: Window, raw: Path) -> tuple[PassResult, ExportedFile]:
        """Return the recorded pass of the window, and its trace."""
        result = self._profiled(window, raw)
        exported = self._exported(raw)
        if window.full:
            wanted = {(index, step) for index, batch in enumerate(result.batches) for step in range(batch.steps)}
        else:
            wanted = {(window.batch, step) for step in range(window.first_step, window.last_step + 1)}
        if set(exported.steps) != wanted:
            recorded = sorted(exported.steps)
            raise RunError(f"the recorded pass was to record {len(wanted)} steps; the exported trace holds {recorded}")
        return result, exported

    def _record(self, raw: Path, session: Session | None, machine: Machine) -> CaptureResult:
        """Record a pass to `raw` and return the result with the trace of all passes."""
        settings, passes = self.settings, self.passes
        runner, plans, loaded = passes.runner, passes.plans, passes.runner.loaded
        reference = self.results[0]
        profiled: PassResult | None = None
        if settings.timed_only:
            window, exported = Window(False, 0, 0, -1), NO_EVENTS
        else:
            window = choose_window(settings.window, settings.full, reference)
            profiled, exported = self._recorded(window, raw)
        problems = _unlike([*self.results, *filter(None, [self._unmarked])], profiled, window)
        if self._looked_at is not None and self._looked_at.batches != reference.batches:
            lost = "masked logits are counted in that one"
            if isinstance(runner.processor, UserProcessor):
                lost = "nothing checked that the processor left every row a token there"
            problems.append(f"the timed passes wrote another text than the checking pass: {lost}")
        failures: list[str] = []
        if problems:
            failures = self._still_wrong()
            problems += failures
            failures = failures if loaded.on_gpu else problems
        seen = passes.watched() if settings.disagreement else None, self._masked or replayed(runner, plans, reference)
        passes.tell("write")
        molecules, texts = sequence_runs(runner, plans, reference, *seen)
        written = Generated(molecules, texts, [list(batch.rows_per_step) for batch in reference.batches])
        manifest = manifest_of(
            self.output,
            loaded.target.device,
            exported,
            window,
            written,
            self.repeats,
            timings={
                "warmup_ns": [result.wall_ns for result in self._warmup],
                "unmarked_wall_ns": None if self._unmarked is None else self._unmarked.wall_ns,
                "processor_once_ns": getattr(runner.engine, "once_ns", None) or self.processor_once_ns,
                "processor_parts_ns": self.once_parts_ns,
                "signature_ns": signature_cost_ns() if settings.engine_name == GENERATE else None,
                "warmup_compiles": [result.compiles for result in self._warmup],
                "warmup_compile_ns": [result.compile_ns for result in self._warmup],
                "profiled_wall_ns": profiled.wall_ns if profiled is not None and settings.full else None,
                "load_ns": self.load_ns,
                "kv_cache_bytes": max(passes.cache_bytes, default=None),
                "graph_breaks": graph_breaks(),
                **self._memory,
            },
            settings=settings,
            resolved=resolved(runner, plans, reference),
            skipped=list(self.prompts.skipped),
            session=session,
            machine=machine,
            problems=problems,
            functions=UNSET if self._functions is None else self._functions,
        )
        path = write_run(exported, self.output, manifest, written, settings.text_format)
        left = incomplete_path(self.output.path)
        if is_incomplete(left):
            left.unlink()  # of an earlier run that failed
        notes = [*loaded.notes, *problems]
        if problems and not failures:
            notes.append("a GPU may add numbers in another order, and near ties between tokens then fall otherwise")
        if profiled is not None and settings.window is not None and window.last_step < settings.window[1]:
            notes.append(f"the recorded steps end at step {window.last_step}, the last one")
        if settings.disagreement and (unlike := sum(run.disagreement is None for run in molecules)):
            text = f"another text for {counted(unlike, 'answer')}, for which none is recorded"
            notes.append(f"the pass for disagreement wrote {text}")
        if unchecked := sum(run.unchecked for run in molecules):
            missing = install_command("rdkit", "rdkit")
            notes.append(
                f"validity of {unchecked} of {counted(len(molecules), 'molecule')} not recorded: their skeletons are "
                f"not the prompts', and RDKit, which compares molecules, is not installed ({missing})"
            )
        notes += overhead_notes(settings, manifest.timings)
        if doubts := machine.doubts():
            notes.append(f"times are in doubt: during the timed passes {'; '.join(doubts)}")
        return CaptureResult(path, manifest, tuple(notes), tuple(failures))

    def _still_wrong(self) -> list[str]:
        """Return the mistakes of a user's processor that an extra pass with checks finds."""
        processor = self.passes.runner.processor
        if not isinstance(processor, UserProcessor):
            return []
        processor.verify = True
        try:
            self.passes.run("verify", Clock(on_step=self.passes.step))
        except MolprofError as problem:
            return [f"checked once more after the recorded pass: {problem}"]
        finally:
            processor.verify = False
        return []


def samples_functions(settings: CaptureSettings) -> bool:
    """Return True if functions of the processor are sampled: by default unless stacks show them."""
    return not settings.stacks if settings.functions is None else settings.functions


def _unlike(results: list[PassResult], profiled: PassResult | None, window: Window) -> list[str]:
    """Return how the texts of the timed passes differ among each other and from the recorded pass."""
    problems = []
    reference = results[0].batches
    rows = [[wrote for batch in result.batches for wrote in batch.rows] for result in results]
    differ = sum(len(set(each)) > 1 for each in zip(*rows, strict=True))
    if differ or any(result.batches != reference for result in results[1:]):
        tokens = sorted({sum(map(len, each)) for each in rows})
        counts = f"{differ} of {counted(len(rows[0]), 'answer')} differ"
        counts += f", {tokens[0]:,} to {tokens[-1]:,} tokens" if len(tokens) > 1 else ""
        problems.append(
            f"the timed passes did not all write the same text ({counts}): their times measure different work"
        )
    if profiled is None:
        return problems
    expected = reference if window.full else reference[window.batch : window.batch + 1]
    if any(
        batch.written(row, got.steps) != wrote
        for batch, got in zip(expected, profiled.batches, strict=True)
        for row, wrote in enumerate(got.rows)
    ):
        problems.append("the recorded pass wrote another text than the timed passes, whose tokens the trace shows")
    return problems
