"""The recorded pass of a capture: which steps it records, and what is kept of it when a processor fails."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from molprof.common.errors import ProcessorError, RunError, UsageError
from molprof.common.manifest import INCOMPLETE_KEY, Window
from molprof.profiler.capture.passes import Passes
from molprof.profiler.capture.tracefile import (
    OutputFile,
    Steps,
    check_whole,
    incomplete_path,
    read_steps,
    write_trace,
)
from molprof.profiler.decoding.batches import PassResult
from molprof.profiler.decoding.marks import Marks
from molprof.profiler.models.device import on_gpu

WINDOW_FIRST, WINDOW_STEPS = 20, 20
# A Python function that is no call of a module, and how torch begins and ends each event of its file.
_FUNCTION = re.compile(rb'"cat":\s*"python_function",\s*"name":\s*"(?!nn\.Module: )')
_BEGIN, _END, _LAST = b"  {\n", b"  },\n", b"  }"


class ProfilerMarks(Marks):
    """Annotations at the marks, inside a torch.profiler recording of all steps or of some.

    Args:
        profile: makes a profiler that has not started.
        window: (batch, first step, last step) to record; None records everything, set-up phases included.
        synchronize: waits for the device; called where recording begins and ends, never inside a step.
    """

    def __init__(
        self,
        profile: Callable[[], torch.profiler.profile],
        window: tuple[int, int, int] | None,
        synchronize: Callable[[], None],
        on_step: Callable[[int, int], None] | None = None,
    ) -> None:
        self.profiler: torch.profiler.profile | None = None  # None: nothing was recorded
        self._profile, self._window, self._synchronize, self._on_step = profile, window, synchronize, on_step
        self._recording = False
        self._batch, self._step = 0, -1
        self._open: list[Any] = []
        if window is None:
            self._start()

    def setup(self, name: str, batch: int) -> AbstractContextManager[None]:
        if not self._recording:
            return nullcontext()
        return torch.profiler.record_function(f"molprof.{name} batch={batch}")

    def begin(self, batch: int) -> None:
        self._batch, self._step = batch, -1
        if self._recording:
            self._push("setup", with_step=False)

    def forward(self) -> None:
        self._close()
        self._step += 1
        if self._on_step is not None:
            self._on_step(self._batch, self._step)
        if self._window is not None and self._window[:2] == (self._batch, self._step):
            self._start()
        if self._recording:
            self._push("step")
            self._push("prefill" if self._step == 0 else "forward")

    def processor(self) -> None:
        self._next("processor")

    def sampling(self) -> None:
        self._next("sampling")

    def bookkeeping(self) -> None:
        self._next("bookkeeping")

    def end(self) -> None:
        self._close()
        if self._window is not None:
            self.finish()

    def enough(self) -> bool:
        return self._window is not None and self._batch == self._window[0] and self._step >= self._window[2]

    def finish(self) -> None:
        """Stops a recording that still runs: a full one at its end, or any after an error."""
        self._close()
        if self._recording and self.profiler is not None:
            self._synchronize()
            self._recording = False
            self.profiler.stop()

    def _push(self, phase: str, with_step: bool = True) -> None:
        step = f" step={self._step}" if with_step else ""
        scope = torch.profiler.record_function(f"molprof.{phase} batch={self._batch}{step}")
        scope.__enter__()
        self._open.append(scope)

    def _next(self, phase: str) -> None:
        if self._recording:
            self._open.pop().__exit__(None, None, None)
            self._push(phase)

    def _close(self) -> None:
        while self._open:
            self._open.pop().__exit__(None, None, None)

    def _start(self) -> None:
        # Kernels of earlier steps must not reach into the recording.
        self._synchronize()
        self.profiler = self._profile()
        self.profiler.start()
        self._recording = True


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


def recorded_pass(passes: Passes, window: Window, raw: Path, output: OutputFile) -> tuple[PassResult, Steps]:
    """The recorded pass, exported to `raw`, beside `output`; its batch ends with the window."""
    steps_asked = None if window.full else (window.batch, window.first_step, window.last_step)
    result = record_steps(passes, steps_asked, raw)
    check_whole(raw, output)
    steps = read_steps(raw)
    if window.full:
        wanted = {(place, step) for place, batch in enumerate(result.batches) for step in range(batch.steps)}
    else:
        wanted = {(window.batch, step) for step in range(window.first_step, window.last_step + 1)}
    if set(steps) != wanted:
        raise RunError(f"the recorded pass was to record {len(wanted)} steps; the exported trace holds {sorted(steps)}")
    return result, steps


def profiler_of(device: torch.device, stacks: bool = False, shapes: bool = False) -> torch.profiler.profile:
    """A profiler that records the CPU, and the GPU if `device` is one; with `stacks`, modules and Python functions.

    shapes: record the sizes of operators' inputs.

    torch traces Python itself: nothing is hooked into the model, so that a compiled forward stays as it is.
    """
    # Without this, Kineto prints every start and stop to stderr. It reads this when torch first profiles.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu(device):
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities, with_stack=stacks, record_shapes=shapes)


def record_steps(
    passes: Passes, steps: tuple[int, int, int] | None, raw: Path, stage: str = "profile", whole: bool = False
) -> PassResult:
    """One pass under the profiler, exported to `raw`, also where it fails; `steps` as `ProfilerMarks.window`.

    whole: with stacks and shapes, whatever the settings say.
    """
    device = passes.runner.loaded.target.device
    settings = passes.runner.settings
    profile = functools.partial(profiler_of, device, whole or settings.stacks or settings.modules, whole)
    if on_gpu(device):
        # The first recording of a process sets up CUPTI, which takes seconds: do that before the pass.
        with profile():
            torch.zeros(1, device=device).add_(1)
            passes.runner.synchronize()
    marks = ProfilerMarks(profile, steps, passes.runner.synchronize, passes.step)
    failure: ProcessorError | None = None
    try:
        result = passes.run(stage, marks, only=None if steps is None else steps[0])
    except ProcessorError as problem:
        failure = problem
    finally:
        marks.finish()
    if marks.profiler is not None:
        try:
            marks.profiler.export_chrome_trace(str(raw))
        except (OSError, RuntimeError) as problem:
            raise RunError(f"torch could not export its trace: {problem}", hint="is the disk full?") from problem
        if settings.modules and not settings.stacks and not whole and raw.exists():
            _keep_modules(raw)
    if failure is not None:
        raise failure
    if marks.profiler is None:
        raise RunError("the recorded pass ended before its window: the passes did not write the same text")
    return result


def _keep_modules(raw: Path) -> None:
    """Removes Python functions, but not modules, from a trace that torch exported. Raises RunError where it cannot."""
    part = Path(f"{raw}.modules")
    event: list[bytes] = []
    try:
        with raw.open("rb") as source, part.open("wb") as target:
            for line in source:
                if not event and line != _BEGIN:
                    target.write(line)
                    continue
                event.append(line)
                if line.startswith(_LAST):
                    text = b"".join(event)
                    # The last event has no comma behind it, and is not a function.
                    if line != _END or _FUNCTION.search(text) is None:
                        target.write(text)
                    event = []
            target.writelines(event)
        part.replace(raw)
    except OSError as problem:
        raise RunError(f"cannot write {part}: {problem.strerror}", hint="is the disk full?") from problem


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
    write_trace(raw, OutputFile(path, force=True), (), INCOMPLETE_KEY, account)
    hint = f"the steps before the failure are kept, marked incomplete: {path}"
    return ProcessorError(str(problem), hint, step=problem.step, batch=problem.batch)
