"""A recording by torch.profiler, with annotations where steps and phases begin."""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from molprof.common.errors import RunError
from molprof.common.manifest import BETWEEN
from molprof.common.sampled import SampledFunctions
from molprof.profiler.models.device import on_gpu, synchronize
from molprof.profiler.recording.functions import FunctionSampler
from molprof.profiler.recording.marks import Marks

# What is open in a phase: its step, and itself.
_IN_PHASE = 2


class ProfilerMarks(Marks):
    """Annotations at the marks, in a torch.profiler recording that begins with them.

    Args:
        batch, step: numbers of the next step.
        others: record other threads too, and what lies between batches.
        what: `stacks`: record modules and Python functions too. torch traces Python itself: nothing is hooked into the
            model, so that a compiled forward stays as it is. `shapes`: record the sizes of operators' inputs.
            `memory`: record what is allocated and freed, but none of `others`.
            `functions`: sample the functions of processors.
            `threads`: record other threads too.
    """

    def __init__(
        self, device: torch.device, batch: int = 0, step: int = 0, *, others: bool = False, **what: bool
    ) -> None:
        self.functions: SampledFunctions | None = None  # of processors, when the recording has ended
        options: dict[str, Any] = {
            "with_stack": what.get("stacks", False),
            "record_shapes": what.get("shapes", False),
            "profile_memory": what.get("memory", False),
        }
        # Of all threads torch records no memory.
        if what.get("threads") or (others and not what.get("memory")):
            # Of torch's options this one has no other name.
            options["experimental_config"] = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        self._device, self._others, self._batch, self._step = device, others, batch, step - 1
        self._open: list[Any] = []
        synchronize(device)  # kernels of earlier steps must not reach into the recording
        self.profiler: torch.profiler.profile | None = _started(device, **options)  # None: nothing was recorded
        self._sampler = FunctionSampler() if what.get("functions") else None

    def setup(self, name: str, batch: int) -> AbstractContextManager[None]:
        """Annotate the block as set-up of a batch."""
        return torch.profiler.record_function(f"molprof.{name} batch={batch}")

    def begin(self, batch: int) -> None:
        """Begin a batch: end the annotations of the one before, and open that of its set-up."""
        self._close()
        self._batch, self._step = batch, -1
        self._push("setup", with_step=False)

    def forward(self) -> None:
        """Begin the next step, with its forward; the first of a batch is its prefill."""
        self._close()
        self._step += 1
        self._push("step")
        self._push("prefill" if self._step == 0 else "forward")

    def processor(self) -> None:
        """Begin the processors of a step."""
        self._next("processor")
        if self._sampler is not None:
            self._sampler.begin()

    def sampling(self) -> None:
        """Begin the sampling of a step."""
        self._next("sampling")

    def bookkeeping(self) -> None:
        """Begin the bookkeeping of a step."""
        self._next("bookkeeping")

    def each(self, index: int, label: str) -> None:
        """Begin the call of one processor."""
        self._close(_IN_PHASE)
        self._open.append(_entered(label))

    def gap(self) -> None:
        """Begin the time between two steps."""
        self._close()

    def end(self) -> None:
        """End a batch."""
        self._close()
        if self._others:
            self._push(BETWEEN, with_step=False)

    failed = gap

    def finish(self) -> None:
        """Stop the recording."""
        self._close()
        if self._sampler is not None:
            self.functions, self._sampler = self._sampler.close(), None
        if not torch.autograd.profiler._is_profiler_enabled:
            self.profiler = None  # another one has stopped, and this one with it: torch crashes at a second stop
        elif self.profiler is not None:
            synchronize(self._device)
            self.profiler.stop()

    def _push(self, phase: str, with_step: bool = True) -> None:
        step = f" step={self._step}" if with_step else ""
        self._open.append(_entered(f"molprof.{phase} batch={self._batch}{step}"))

    def _next(self, phase: str) -> None:
        self._close(1)
        self._push(phase)

    def _close(self, left: int = 0) -> None:
        if self._sampler is not None and left < _IN_PHASE:
            self._sampler.end()
        while len(self._open) > left:
            self._open.pop().__exit__(None, None, None)


def _entered(name: str) -> Any:
    """Return an annotation after entering it."""
    scope = torch.profiler.record_function(name)
    scope.__enter__()
    return scope


def warm_up(device: torch.device, threads: bool = False) -> None:
    """Make the process's first recording, which sets up CUPTI, takes seconds, and must be in this thread."""
    if on_gpu(device) or threads:
        profiler = _started(device)
        torch.zeros(1, device=device).add_(1)
        synchronize(device)
        profiler.stop()


def export(profiler: torch.profiler.profile, raw: Path) -> None:
    """Write what was recorded to `raw`. Raises RunError."""
    try:
        profiler.export_chrome_trace(str(raw))
    except (OSError, RuntimeError) as problem:
        raise RunError(f"torch could not export its trace: {problem}", hint="is the disk full?") from problem


def _started(device: torch.device, **what: Any) -> torch.profiler.profile:
    """Return a running profiler of the CPU, and of the GPU if `device` is one."""
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
