"""Recording by torch.profiler: of all steps, or of a window of some."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from molprof.common.errors import ProcessorError, RunError
from molprof.common.manifest import BETWEEN
from molprof.common.sampled import SampledFunctions
from molprof.profiler.models.device import on_gpu, synchronize
from molprof.profiler.recording.functions import FunctionSampler
from molprof.profiler.recording.marks import Marks

# What is open in a phase: its step, and itself.
_IN_PHASE = 2
# Why a recording is lost.
TAKEN = "the program's own profiler took the place of molprof's"


class Steps(NamedTuple):
    """Steps of one call of `generate`, of one batch; all three are numbered from 0."""

    call: int
    first: int
    last: int


class ProfilerMarks(Marks):
    """Annotations at the marks, inside a torch.profiler recording.

    Args:
        window: the steps to record; None: everything, set-up phases included.
        ends: the window ends its batch (`enough`); else the batch goes on unrecorded.
        on_step: called with batch and step when a step begins.
        step: number of the next step.
        others: record other threads too, and what lies between batches.
        what: `stacks`: record modules and Python functions too. torch traces Python itself: nothing is hooked into the
            model, so that a compiled forward stays as it is. `shapes`: record the sizes of operators' inputs.
            `memory`: record what is allocated and freed, but none of `others`.
            `functions`: sample the functions of processors.
            `threads`: record other threads too.
    """

    def __init__(
        self,
        device: torch.device,
        window: Steps | None = None,
        *,
        ends: bool = False,
        on_step: Callable[[int, int], None] | None = None,
        step: int = 0,
        others: bool = False,
        **what: bool,
    ) -> None:
        self.profiler: torch.profiler.profile | None = None  # None: nothing was recorded
        self._device, self._window, self._ends, self._on_step = device, window, ends, on_step
        self._what: dict[str, Any] = {
            "with_stack": what.get("stacks", False),
            "record_shapes": what.get("shapes", False),
            "profile_memory": what.get("memory", False),
        }
        self.functions: SampledFunctions | None = None  # of processors, when the recording has ended
        self._samples = what.get("functions", False)
        self._sampler: FunctionSampler | None = None
        self._recording = False
        self._first, self._others = step, others
        # Of all threads torch records no memory.
        if what.get("threads") or (others and not what.get("memory")):
            # Of torch's options this one has no other name.
            self._what["experimental_config"] = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        self._batch, self._step = 0, -1
        self._open: list[Any] = []
        if window is None:
            self._start()

    def setup(self, name: str, batch: int) -> AbstractContextManager[None]:
        if not self._recording:
            return nullcontext()
        return torch.profiler.record_function(f"molprof.{name} batch={batch}")

    @property
    def recording(self) -> bool:
        """Whether the profiler runs."""
        return self._recording

    def begin(self, batch: int) -> None:
        self._close()
        self._batch, self._step = batch, self._first - 1
        if self._recording:
            self._push("setup", with_step=False)

    def forward(self) -> None:
        self._close()
        self._step += 1
        if self._on_step is not None:
            self._on_step(self._batch, self._step)
        if self._window is not None:
            if (self._batch, self._step) == self._window[:2]:
                self._start()
            elif self._step > self._window.last:
                self.finish()
        if self._recording:
            self._push("step")
            self._push("prefill" if self._step == 0 else "forward")

    def processor(self) -> None:
        self._next("processor")

    def sampling(self) -> None:
        self._next("sampling")

    def bookkeeping(self) -> None:
        self._next("bookkeeping")

    def each(self, place: int, label: str) -> None:
        if self._recording:
            self._close(_IN_PHASE)
            self._open.append(_entered(label))

    def gap(self) -> None:
        self._close()

    def end(self) -> None:
        self._close()
        if self._window is not None:
            self.finish()
        elif self._others and self._recording:
            self._push(BETWEEN, with_step=False)

    failed = gap

    def enough(self) -> bool:
        window = self._window
        return self._ends and window is not None and self._batch == window.call and self._step >= window.last

    def finish(self) -> None:
        """Stops a recording that still runs: at the end of its window, of the program, or after an error."""
        self._close()
        if self._sampler is not None:
            self.functions, self._sampler = self._sampler.close(), None
        if self._recording and self.profiler is not None:
            self._recording = False
            if not torch.autograd.profiler._is_profiler_enabled:
                self.profiler = None  # another one has stopped, and this one with it: torch crashes at a second stop
                return
            synchronize(self._device)
            self.profiler.stop()

    def _push(self, phase: str, with_step: bool = True) -> None:
        step = f" step={self._step}" if with_step else ""
        self._open.append(_entered(f"molprof.{phase} batch={self._batch}{step}"))

    def _next(self, phase: str) -> None:
        if self._recording:
            self._close(1)
            self._push(phase)
            if phase == "processor" and self._sampler is not None:
                self._sampler.begin()

    def _close(self, left: int = 0) -> None:
        if self._sampler is not None and left < _IN_PHASE:
            self._sampler.end()
        while len(self._open) > left:
            self._open.pop().__exit__(None, None, None)

    def _start(self) -> None:
        synchronize(self._device)  # kernels of earlier steps must not reach into the recording
        self.profiler = _started(self._device, **self._what)
        self._recording = True
        if self._samples:
            self._sampler = FunctionSampler()


def _entered(name: str) -> Any:
    """An annotation that has begun."""
    scope = torch.profiler.record_function(name)
    scope.__enter__()
    return scope


def warm_up(device: torch.device, threads: bool = False) -> None:
    """The first recording of a process sets up CUPTI, which takes seconds, and must not be of another thread."""
    if on_gpu(device) or threads:
        profiler = _started(device)
        torch.zeros(1, device=device).add_(1)
        synchronize(device)
        profiler.stop()


@contextmanager
def recording(raw: Path, device: torch.device, window: Steps | None = None, **options: Any) -> Iterator[ProfilerMarks]:
    """The marks of a recording that ends with the block and is exported to `raw`, also where a processor failed.

    `options` are those of `ProfilerMarks`.
    """
    warm_up(device, options.get("threads", False))
    marks = ProfilerMarks(device, window, **options)
    failure: ProcessorError | None = None
    try:
        yield marks
    except ProcessorError as problem:
        failure = problem
    finally:
        marks.finish()
    if marks.profiler is not None:
        export(marks.profiler, raw)
    if failure is not None:
        raise failure


def export(profiler: torch.profiler.profile, raw: Path) -> None:
    """Writes what was recorded to `raw`. Raises RunError."""
    try:
        profiler.export_chrome_trace(str(raw))
    except (OSError, RuntimeError) as problem:
        raise RunError(f"torch could not export its trace: {problem}", hint="is the disk full?") from problem


def _started(device: torch.device, **what: Any) -> torch.profiler.profile:
    """A profiler of the CPU, and of the GPU if `device` is one, which runs."""
    # Without this, Kineto prints every start and stop to stderr. It reads this when torch first profiles.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu(device):
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    profiler = torch.profiler.profile(activities=activities, **what)
    with warnings.catch_warnings():  # of torch 2.10 to 2.12, about cycles: there is one
        warnings.filterwarnings("ignore", "Warning: Profiler clears events")
        profiler.start()
    return profiler
