"""A whole capture: warm-up, timed repeats, the profiled pass, and the trace file with tokens and manifest."""

from __future__ import annotations

import contextlib
import datetime
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from molprof.errors import ProcessorError, RunError, UsageError
from molprof.files import check_output, scratch_file
from molprof.profiler.account import generation_account, model_account, molecule_runs
from molprof.profiler.decoding.batches import BatchPlan
from molprof.profiler.disagreement import disagreement_pass
from molprof.profiler.environment import environment
from molprof.profiler.generate import BatchResult, PassResult, Runner
from molprof.profiler.manifest import SCHEMA, Disagreement, Manifest, Repeat, Timings, Window
from molprof.profiler.marks import HostMarks, Marks, mark_cost_ns, signature_cost_ns
from molprof.profiler.models import LoadedModel, load, resolve_device, resolve_dtype
from molprof.profiler.processors import PROCESSORS, find_factory, make_processor
from molprof.profiler.processors.checked import UserProcessor
from molprof.profiler.prompts import Prompts, read_prompts, read_texts, repeated
from molprof.profiler.recording import ProfilerMarks
from molprof.profiler.settings import AUTO, CaptureSettings
from molprof.profiler.templates import default_threads
from molprof.profiler.tracefile import Steps, incomplete_path, is_incomplete, read_steps, write_incomplete, write_trace

WINDOW_FIRST, WINDOW_STEPS = 20, 20


@dataclass(frozen=True)
class Progress:
    """Where a capture stands.

    Attributes:
        stage: `load`, `weights`, `verify`, `warmup`, `repeat`, `unmarked`, `profile`, `disagreement` or `write`.
        number, of: which pass of the stage; of `weights` which layer.
        batch, batches: batches done and in all.
        step: the running step, at most `max_steps`; warm-up and profiled pass only, for nothing is reported
            from inside a batch whose time counts.
        tokens: generated in this pass so far, in finished batches.
        elapsed_ns: since the pass began.
        notes: what the user should know before the work goes on, one line each; with `load` only.
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


@dataclass(frozen=True)
class CaptureResult:
    """A finished capture.

    Attributes:
        path: the trace.
        notes: what the user should know about the run, one line each.
    """

    path: Path
    manifest: Manifest
    notes: tuple[str, ...]


def capture(settings: CaptureSettings, report: Report = lambda progress: None) -> CaptureResult:
    """Makes a capture as `settings` say.

    Raises:
        UsageError: something that was asked for does not exist or does not fit; nothing was written.
        RunError: the run or the recording failed; nothing was written.
    """
    check_output(settings.output, settings.force)
    prompts = _prompts(settings)
    if settings.processor not in (None, AUTO):
        find_factory(settings.processor)  # a mistyped name is found before a model is loaded for it
        if settings.processor not in PROCESSORS:
            left = incomplete_path(settings.output)
            # What the last failure left may go: mending a processor takes many tries.
            check_output(left, settings.force or (left.is_file() and is_incomplete(left)))
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    resolve_dtype(settings.dtype, resolve_device(settings.device))
    report(Progress("load", notes=prompts.notes()))
    loaded = load(
        settings.model,
        settings.tokenizer,
        settings.dtype,
        settings.device,
        settings.attention,
        settings.trust_remote_code,
        settings.size,
        settings.weights,
        lambda layer, layers: report(Progress("weights", layer, layers)),
    )
    return capture_loaded(settings, loaded, prompts, report)


def _prompts(settings: CaptureSettings) -> Prompts:
    if settings.prompts is not None:
        found = read_texts(settings.prompts, settings.count)
    else:
        found = read_prompts(settings.smiles, settings.count, settings.strict)
    return repeated(found, settings.generations)


def capture_loaded(
    settings: CaptureSettings, loaded: LoadedModel, prompts: Prompts, report: Report = lambda progress: None
) -> CaptureResult:
    """`capture` with a model and prompts at hand."""
    name = loaded.default_processor if settings.processor == AUTO else settings.processor
    processor = None if name is None else make_processor(name, loaded.target)
    runner = Runner(
        loaded,
        processor,
        settings.decoding,
        settings.attention,
        settings.kv_cache,
        settings.loop,
        settings.template_threads or default_threads(),
        settings.template_cache,
    )
    plans = runner.plan(prompts.prompts, settings.batch_size, settings.max_new_tokens)
    if settings.window is not None:
        _check_window(settings.window, plans[0].max_new_tokens)  # before the passes, where that can be told
    passes = _Passes(runner, plans, report)
    with _scratch(settings.output) as raw:
        try:
            return _capture(settings, prompts, passes, raw)
        except ProcessorError as problem:
            raise _kept(settings, passes, raw, problem) from problem


def _capture(settings: CaptureSettings, prompts: Prompts, passes: _Passes, raw: Path) -> CaptureResult:
    """The passes, and the trace of them; torch exports to `raw`."""
    runner, plans, report, loaded = passes.runner, passes.plans, passes.report, passes.runner.loaded
    if isinstance(runner.processor, UserProcessor):
        # Looking at every row waits for the device: in a pass of its own, whose time nobody sees.
        runner.processor.verify = True
        passes.run("verify", 0, 1, HostMarks(passes.step))
        runner.processor.verify = False
    warmup = [
        passes.run("warmup", number, settings.warmup, HostMarks(passes.step)) for number in range(settings.warmup)
    ]
    repeats, results = [], []
    for number in range(settings.repeats):
        marks = HostMarks()
        result = passes.run("repeat", number, settings.repeats, marks)
        repeats.append(Repeat(result.wall_ns, marks.phases_ns(), marks.steps_ns(), result.compiles, result.compile_ns))
        results.append(result)
    unmarked = passes.run("unmarked", 0, 1, None)
    reference = results[0]
    window = choose_window(settings.window, settings.full, reference)

    profiled, steps = _profile(passes, window, raw)
    watched = passes.watched() if settings.disagreement else None
    report(Progress("write"))
    molecules, texts = molecule_runs(runner, plans, reference, watched)
    recorded = sum(span.duration_ns for span in steps.values())
    same = [sum(repeat.steps_ns[batch][step] for batch, step in steps) for repeat in repeats]
    timings = Timings(
        warmup_ns=[result.wall_ns for result in warmup],
        repeats=repeats,
        mark_ns=mark_cost_ns(),
        unmarked_wall_ns=unmarked.wall_ns,
        profiled_steps_ns=recorded,
        unprofiled_steps_ns=round(statistics.median(same)),
        signature_ns=None if settings.loop.own else signature_cost_ns(),
        warmup_compiles=[result.compiles for result in warmup],
        warmup_compile_ns=[result.compile_ns for result in warmup],
        profiled_wall_ns=profiled.wall_ns if settings.full else None,
    )
    manifest = Manifest(
        schema=SCHEMA,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=list(settings.command),
        environment=environment(loaded.target.device),
        model=model_account(settings, loaded),
        generation=generation_account(settings, runner, plans, reference),
        timings=timings,
        window=window,
        steps_per_batch=[batch.steps for batch in reference.batches],
        molecules=molecules,
        skipped=list(prompts.skipped),
        rows_per_step=[list(batch.rows_per_step) for batch in reference.batches],
    )
    try:
        write_trace(raw, settings.output, manifest, texts, steps)
    except OSError as problem:
        raise RunError(f"cannot write {settings.output}: {problem.strerror or problem}") from problem
    notes = [*loaded.notes, *_notes(settings, [*results, unmarked], profiled, window)]
    if settings.disagreement and (lost := sum(run.disagreement is None for run in molecules)):
        notes.append(f"the pass for disagreement wrote another text for {lost} molecules: theirs is not recorded")
    return CaptureResult(settings.output, manifest, tuple(notes))


def choose_window(asked: tuple[int, int] | None, full: bool, result: PassResult) -> Window:
    """The steps to record.

    By default 20 decode steps of the first batch, from step 20 on where the answers are that long, in which
    no row is finished yet: those are the steps that a run mostly consists of.

    Raises:
        UsageError: the window asked for begins after the last step.
    """
    batch = result.batches[0]
    if full:
        return Window(True, 0, 0, batch.steps - 1)
    if asked is not None:
        _check_window(asked, batch.steps)
        return Window(False, 0, asked[0], min(asked[1], batch.steps - 1))
    last = min(map(batch.busy_steps, range(len(batch.rows)))) - 1
    first = max(min(WINDOW_FIRST, last - WINDOW_STEPS + 1), min(1, last))
    return Window(False, 0, first, min(first + WINDOW_STEPS - 1, last))


def _check_window(asked: tuple[int, int], steps: int) -> None:
    if asked[0] >= steps:
        raise UsageError(
            f"window {asked[0]}:{asked[1]} begins after the first batch's last step {steps - 1}",
            hint=f"--window within 0:{steps - 1}",
        )


class _Passes:
    """Runs passes batch by batch, reporting where they stand."""

    def __init__(self, runner: Runner, plans: list[BatchPlan], report: Report) -> None:
        self.runner, self.plans = runner, plans
        self.report = report
        self._at = Progress("load")
        self._began_ns = 0

    def run(self, stage: str, number: int, of: int, marks: Marks | None, only: int | None = None) -> PassResult:
        self._at = Progress(stage, number + 1, of, batches=len(self.plans))
        self._began_ns = time.perf_counter_ns()
        self._tell(0, 0, 0)
        result = self.runner.run(self.plans, marks, only)
        self._tell(len(result.batches), 0, sum(len(row) for batch in result.batches for row in batch.rows))
        return result

    def watched(self) -> list[tuple[BatchResult, list[Disagreement]]]:
        """The untimed pass that records what the model would have chosen."""
        self._at = Progress("disagreement", batches=len(self.plans))
        self._began_ns = time.perf_counter_ns()
        tokens = 0

        def tell(batch: int, result: BatchResult | None) -> None:
            nonlocal tokens
            tokens += sum(map(len, result.rows)) if result else 0
            self._tell(batch + (result is not None), 0, tokens)

        return disagreement_pass(self.runner, self.plans, tell)

    def step(self, batch: int, step: int) -> None:
        """For passes whose time does not count."""
        self._tell(batch, step, 0)

    def _tell(self, batch: int, step: int, tokens: int) -> None:
        bound = self.plans[min(batch, len(self.plans) - 1)].max_new_tokens
        elapsed = time.perf_counter_ns() - self._began_ns
        at = self._at
        self.report(Progress(at.stage, at.number, at.of, batch, at.batches, step, bound, tokens, elapsed))


def _profile(passes: _Passes, window: Window, raw: Path) -> tuple[PassResult, Steps]:
    """The profiled pass, exported to `raw`; a window ends its batch where it ends."""
    steps_asked = None if window.full else (window.batch, window.first_step, window.last_step)
    result = _record(passes, steps_asked, raw)
    steps = read_steps(raw)
    if window.full:
        wanted = {(place, step) for place, batch in enumerate(result.batches) for step in range(batch.steps)}
    else:
        wanted = {(window.batch, step) for step in range(window.first_step, window.last_step + 1)}
    if set(steps) != wanted:
        raise RunError(f"{len(wanted)} steps were to be recorded; the exported trace holds {sorted(steps)}")
    return result, steps


def _record(passes: _Passes, steps: tuple[int, int, int] | None, raw: Path) -> PassResult:
    """One pass under the profiler, exported to `raw`, also where it fails.

    Args:
        steps: batch, first and last step to record; None: all.
    """
    device = passes.runner.loaded.target.device
    # Kineto announces on stderr every start and stop of a recording; it reads this when torch first profiles.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")

    def profile() -> torch.profiler.profile:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        return torch.profiler.profile(activities=activities)

    if device.type == "cuda":
        # The first recording of a process sets up CUPTI, which takes seconds: not between two steps of ours.
        with profile():
            torch.zeros(1, device=device).add_(1)
            passes.runner.synchronize()
    marks = ProfilerMarks(profile, steps, passes.runner.synchronize, passes.step)
    failure: ProcessorError | None = None
    try:
        result = passes.run("profile", 0, 1, marks, None if steps is None else steps[0])
    except ProcessorError as problem:
        failure = problem
    finally:
        marks.finish()
    if marks.profiler is not None:
        try:
            marks.profiler.export_chrome_trace(str(raw))
        except (OSError, RuntimeError) as problem:
            raise RunError(f"torch could not export its trace: {problem}", hint="is the disk full?") from problem
    if failure is not None:
        raise failure
    if marks.profiler is None:
        raise RunError("the profiled pass ended before its window: the run does not repeat itself")
    return result


def _kept(settings: CaptureSettings, passes: _Passes, raw: Path, problem: ProcessorError) -> ProcessorError:
    """Keeps what was recorded before a processor failed; what is to be raised, which names the file.

    A failure in the profiled pass leaves a recording. One in an earlier pass does not: the steps up to it are then
    recorded, as many as a window has, by running its batch once more.
    """
    if not raw.stat().st_size and problem.batch is not None and problem.step is not None:
        steps = problem.batch, max(0, problem.step - WINDOW_STEPS + 1), problem.step
        with contextlib.suppress(ProcessorError):
            _record(passes, steps, raw)
    if not raw.stat().st_size:
        return problem
    processor = passes.runner.processor
    account = {
        "problem": str(problem),
        "processor": None if processor is None else processor.name,
        "command": list(settings.command),
    }
    path = incomplete_path(settings.output)
    try:
        write_incomplete(raw, path, account)
    except OSError as failed:
        raise RunError(f"cannot write {path}: {failed.strerror or failed}") from problem
    hint = f"the trace up to there is kept, marked incomplete: {path}"
    return ProcessorError(str(problem), hint, step=problem.step, batch=problem.batch)


def _notes(
    settings: CaptureSettings,
    results: list[PassResult],
    profiled: PassResult,
    window: Window,
) -> list[str]:
    """What the user should know about this run, one line each."""
    notes = []
    if window.full is False and settings.window is not None and window.last_step < settings.window[1]:
        notes.append(f"the window ends at step {window.last_step}, the last one")
    reference = results[0].batches
    if any(result.batches != reference for result in results[1:]):
        notes.append("the timed passes did not all write the same text: their times are not of the same work")
    expected = reference if window.full else reference[window.batch : window.batch + 1]
    if any(
        batch.written(row, got.steps) != wrote
        for batch, got in zip(expected, profiled.batches, strict=True)
        for row, wrote in enumerate(got.rows)
    ):
        notes.append("the profiled pass wrote another text than the timed ones, whose tokens the trace shows")
    return notes


@contextlib.contextmanager
def _scratch(output: Path) -> Iterator[Path]:
    """A file beside the output for torch's own export, gone when the block ends."""
    raw = scratch_file(output, ".torch.json")
    try:
        yield raw
    finally:
        raw.unlink(missing_ok=True)
