"""A whole capture: warm-up, timed repeats, the profiled pass, and the trace file with tokens and manifest."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils.import_utils import is_optimum_quanto_available

from molprof.common.errors import ProcessorError, UsageError
from molprof.common.files import check_output, scratch_file
from molprof.common.manifest import KEY, SCHEMA, Manifest, Repeat, Timings, Window
from molprof.common.settings import AUTO, CaptureSettings
from molprof.common.values import counted, now
from molprof.profiler.capture.account import molecule_runs, resolved
from molprof.profiler.capture.passes import Passes, Progress, Report
from molprof.profiler.capture.recorded_pass import check_window, choose_window, kept_recording, recorded_pass
from molprof.profiler.capture.tracefile import OutputFile, incomplete_path, is_incomplete, token_events, write_trace
from molprof.profiler.decoding.batches import PassResult
from molprof.profiler.decoding.marks import HostMarks, mark_cost_ns, signature_cost_ns
from molprof.profiler.decoding.runner import Runner
from molprof.profiler.environment import environment
from molprof.profiler.models.architecture import check_preset
from molprof.profiler.models.device import on_gpu, resolve_device
from molprof.profiler.models.load import LoadedModel, load
from molprof.profiler.molecules.prompts import Prompts, read_inputs
from molprof.profiler.processors import PROCESSORS, find_factory, make_processor
from molprof.profiler.processors.checked import UserProcessor


@dataclass(frozen=True)
class CaptureResult:
    """A finished capture: the trace's path, and remarks on the run, one line each."""

    path: Path
    manifest: Manifest
    notes: tuple[str, ...]


def capture(settings: CaptureSettings, output: OutputFile, report: Report = lambda progress: None) -> CaptureResult:
    """Makes a capture and writes its trace to `output`; an error leaves nothing there."""
    output.check()
    check_preset(settings)
    prompts = read_inputs(settings)
    if settings.processor not in (None, AUTO):
        find_factory(settings.processor)  # finds a mistyped name before the model is loaded
        if settings.processor not in PROCESSORS:
            left = incomplete_path(output.path)
            # What the last failure left may be replaced: fixing a processor takes many tries.
            check_output(left, output.force or is_incomplete(left))
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device = resolve_device(settings.device)
    _check_cache(settings.kv_cache, device)
    report(Progress("load", notes=prompts.notes()))
    loaded = load(settings, lambda layer, layers: report(Progress("weights", layer, layers)))
    return capture_loaded(settings, output, loaded, prompts, report)


def _check_cache(kv_cache: str, device: torch.device) -> None:
    """Raises UsageError where a KV cache needs a GPU, or a package that is not installed."""
    if kv_cache.startswith("offloaded") and not on_gpu(device):
        raise UsageError(
            f"kv-cache {kv_cache!r} needs a GPU: on the device {device.type!r} every cache is in host memory",
            hint="--kv-cache dynamic or static",
        )
    if kv_cache == "quantized" and not is_optimum_quanto_available():
        raise UsageError(
            "kv-cache 'quantized' needs the package optimum-quanto, which is not installed",
            hint="pip install optimum-quanto",
        )


def capture_loaded(
    settings: CaptureSettings,
    output: OutputFile,
    loaded: LoadedModel,
    prompts: Prompts,
    report: Report = lambda progress: None,
) -> CaptureResult:
    """`capture` of a loaded model and prompts."""
    processor = None if settings.processor is None else make_processor(settings.processor, loaded.target)
    runner = Runner(loaded, processor, settings)
    plans = runner.plan(prompts.prompts)
    if settings.window is not None:
        check_window(settings.window, plans[0].max_new_tokens)  # before the passes, as far as the bound tells
    passes = Passes(runner, plans, report)
    with ExitStack() as stack:
        # Made late: a capture that is killed before leaves nothing. A name of its own: torch replaces the file.
        raw = functools.cache(lambda: Path(f"{stack.enter_context(scratch_file(output.path))}.json"))
        try:
            return _capture(output, prompts, passes, raw)
        except ProcessorError as problem:
            raise kept_recording(output, passes, raw(), problem) from problem


def _capture(output: OutputFile, prompts: Prompts, passes: Passes, raw: Callable[[], Path]) -> CaptureResult:
    """The passes, and the trace of them; torch exports to the path that `raw` returns."""
    runner, plans, report = passes.runner, passes.plans, passes.report
    settings, loaded = runner.settings, runner.loaded
    looked_at: PassResult | None = None
    if isinstance(runner.processor, UserProcessor):
        # The checks cause host syncs, so they have a pass of their own, which is not timed.
        runner.processor.verify = True
        looked_at = passes.run("verify", HostMarks(passes.step))
        runner.processor.verify = False
    warmup = [
        passes.run("warmup", HostMarks(passes.step), number, settings.warmup) for number in range(settings.warmup)
    ]
    repeats, results = [], []
    for number in range(settings.repeats):
        marks = HostMarks()
        result = passes.run("repeat", marks, number, settings.repeats)
        repeats.append(Repeat(result.wall_ns, marks.phases_ns(), marks.steps_ns(), result.compiles, result.compile_ns))
        results.append(result)
    unmarked = passes.run("unmarked", None)
    reference = results[0]
    window = choose_window(settings.window, settings.full, reference)

    profiled, steps = recorded_pass(passes, window, raw(), output)
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
        signature_ns=None if settings.own_loop else signature_cost_ns(),
        warmup_compiles=[result.compiles for result in warmup],
        warmup_compile_ns=[result.compile_ns for result in warmup],
        profiled_wall_ns=profiled.wall_ns if settings.full else None,
    )
    manifest = Manifest(
        schema=SCHEMA,
        created=now(),
        command=list(output.command),
        environment=environment(loaded.target.device),
        settings=settings,
        resolved=resolved(runner, plans, reference),
        timings=timings,
        window=window,
        steps_per_batch=[batch.steps for batch in reference.batches],
        molecules=molecules,
        skipped=list(prompts.skipped),
        rows_per_step=[list(batch.rows_per_step) for batch in reference.batches],
    )
    path = write_trace(raw(), output, token_events(molecules, texts, steps, settings.text_format), KEY, manifest.to_json())
    left = incomplete_path(output.path)
    if is_incomplete(left):
        left.unlink()  # of an earlier run that failed
    notes = [*loaded.notes, *_notes(settings, [*results, unmarked], profiled, window)]
    if looked_at is not None and looked_at.batches != reference.batches:
        notes.append(
            "the timed passes wrote another text than the checking pass: nothing checked that the processor left "
            "every row a token there"
        )
    if settings.disagreement and (lost := sum(run.disagreement is None for run in molecules)):
        notes.append(f"the pass for disagreement wrote another text for {lost} molecules: none is recorded for them")
    if unchecked := sum(run.unchecked for run in molecules):
        notes.append(
            f"validity of {unchecked} of {counted(len(molecules), 'molecule')} not recorded: their skeletons are not "
            "the prompts', and RDKit, which compares molecules, is not installed (pip install 'molprof[rdkit]')"
        )
    return CaptureResult(path, manifest, tuple(notes))


def _notes(settings: CaptureSettings, results: list[PassResult], profiled: PassResult, window: Window) -> list[str]:
    notes = []
    if window.full is False and settings.window is not None and window.last_step < settings.window[1]:
        notes.append(f"the recorded steps end at step {window.last_step}, the last one")
    reference = results[0].batches
    if any(result.batches != reference for result in results[1:]):
        notes.append("the timed passes did not all write the same text: their times measure different work")
    expected = reference if window.full else reference[window.batch : window.batch + 1]
    if any(
        batch.written(row, got.steps) != wrote
        for batch, got in zip(expected, profiled.batches, strict=True)
        for row, wrote in enumerate(got.rows)
    ):
        notes.append("the recorded pass wrote another text than the timed passes, whose tokens the trace shows")
    return notes
