"""The recorded pass of a capture: which steps it records, and what is kept of it when a processor fails."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

from molprof.common.errors import ProcessorError, RunError, UsageError
from molprof.common.manifest import INCOMPLETE_KEY, Window
from molprof.profiler.capture.passes import Passes
from molprof.profiler.engines.batches import PassResult
from molprof.profiler.recording.tracefile import Exported, OutputFile, incomplete_path, read_exported, write_trace
from molprof.profiler.recording.window import ProfilerMarks, exported, profiler_of, set_up

WINDOW_FIRST, WINDOW_STEPS = 20, 20


def choose_window(asked: tuple[int, int] | None, full: bool, result: PassResult) -> Window:
    """The steps to record.

    By default these are 20 decode steps of the first batch, from step 20 on if the answers are that long, before any
    row is finished: a run mostly consists of such steps.
    """
    batch = result.batches[0]
    if full:
        return Window(True, 0, 0, batch.steps - 1)
    if asked is not None:
        check_window(asked, batch.steps)
        return Window(False, 0, asked[0], min(asked[1], batch.steps - 1))
    last = min(map(batch.busy_steps, range(len(batch.rows)))) - 1
    first = max(min(WINDOW_FIRST, last - WINDOW_STEPS + 1), min(1, last))
    return Window(False, 0, first, min(first + WINDOW_STEPS - 1, last))


def check_window(asked: tuple[int, int], steps: int) -> None:
    """Raises UsageError where a window (first and last step) begins after the last of `steps` steps."""
    if asked[0] >= steps:
        raise UsageError(
            f"window {asked[0]}:{asked[1]} begins after the first batch's last step {steps - 1}",
            hint=f"--window within 0:{steps - 1}",
        )


def recorded_pass(passes: Passes, window: Window, raw: Path, output: OutputFile) -> tuple[PassResult, Exported]:
    """The recorded pass, exported to `raw`, beside `output`; its batch ends with the window."""
    steps_asked = None if window.full else (window.batch, window.first_step, window.last_step)
    result = record_steps(passes, steps_asked, raw)
    recorded = read_exported(raw, output, functions=records_functions(passes))
    if window.full:
        wanted = {(place, step) for place, batch in enumerate(result.batches) for step in range(batch.steps)}
    else:
        wanted = {(window.batch, step) for step in range(window.first_step, window.last_step + 1)}
    if set(recorded.steps) != wanted:
        found = sorted(recorded.steps)
        raise RunError(f"the recorded pass was to record {len(wanted)} steps; the exported trace holds {found}")
    return result, recorded


def records_functions(passes: Passes) -> bool:
    """Whether Python functions are kept, of which torch records all or none: modules alone are asked for otherwise."""
    return passes.runner.settings.stacks or not passes.runner.settings.modules


def record_steps(
    passes: Passes, steps: tuple[int, int, int] | None, raw: Path, stage: str = "profile", whole: bool = False
) -> PassResult:
    """One pass under the profiler, exported to `raw`, also where it fails; `steps` as `ProfilerMarks.window`.

    whole: with stacks and shapes, whatever the settings say.
    """
    device, settings = passes.runner.loaded.target.device, passes.runner.settings
    set_up(device)
    profile = functools.partial(profiler_of, device, whole or settings.stacks or settings.modules, whole)
    marks = ProfilerMarks(profile, steps, passes.runner.synchronize, passes.step)
    with exported(marks, raw):
        try:
            result = passes.run(stage, marks, only=None if steps is None else steps[0])
        except ProcessorError:
            raise
        except RunError as problem:  # which leaves the same to keep
            raise ProcessorError(str(problem), problem.hint) from problem
    if marks.profiler is None:
        raise RunError("the recorded pass ended before its window: the passes did not write the same text")
    return result


def kept_recording(output: OutputFile, passes: Passes, raw: Path, problem: ProcessorError) -> ProcessorError:
    """Keeps the steps before a processor failed, and returns the error to raise, which names their file.

    A failure in the recorded pass leaves a recording. After one in an earlier pass, its batch runs once more to record
    the steps before the failure, as many as a window has.
    """
    if not raw.exists() and problem.batch is not None and problem.step is not None:
        steps = problem.batch, max(0, problem.step - WINDOW_STEPS + 1), problem.step
        with contextlib.suppress(ProcessorError):
            record_steps(passes, steps, raw)
    if not raw.exists():
        return problem
    name = getattr(passes.runner.processor, "name", None)
    account = {"problem": str(problem), "processor": name, "command": list(output.command)}
    path = incomplete_path(output.path)
    recorded = read_exported(raw, output, functions=records_functions(passes))
    write_trace(recorded, OutputFile(path, force=True), (), {INCOMPLETE_KEY: account})
    hint = f"the steps before the failure are kept, marked incomplete: {path}"
    return ProcessorError(str(problem), hint, step=problem.step, batch=problem.batch)
