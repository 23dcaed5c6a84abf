"""Recording by torch.profiler: of all steps, or of a window of some."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from molprof.common.errors import ProcessorError, RunError
from molprof.profiler.models.device import on_gpu, synchronize
from molprof.profiler.recording.marks import Marks


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


@contextmanager
def exported(marks: ProfilerMarks, raw: Path) -> Iterator[None]:
    """Ends the recording of `marks` with the block and exports it to `raw`, also where a user's processor failed."""
    failure: ProcessorError | None = None
    try:
        yield
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


def set_up(device: torch.device) -> None:
    """Makes the first recording of a process on a GPU: it sets up CUPTI, which takes seconds."""
    if on_gpu(device):
        with profiler_of(device):
            torch.zeros(1, device=device).add_(1)
            synchronize(device)
