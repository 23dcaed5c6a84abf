"""Recording steps by torch.profiler, with annotations at the marks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from molprof.profiler.decoding.marks import Marks


class ProfilerMarks(Marks):
    """Annotations at the marks, inside a torch.profiler recording of all steps or of some.

    Args:
        profile: makes a profiler that has not started.
        window: (batch, first step, last step) to record; None records everything, set-up phases included.
        synchronize: waits for the device; called where recording begins and ends, never inside a step.

    Attributes:
        profiler: the stopped profiler; None if nothing was recorded.
    """

    def __init__(
        self,
        profile: Callable[[], torch.profiler.profile],
        window: tuple[int, int, int] | None,
        synchronize: Callable[[], None],
        on_step: Callable[[int, int], None] | None = None,
    ) -> None:
        self.profiler: torch.profiler.profile | None = None
        self._profile, self._window, self._synchronize = profile, window, synchronize
        self._on_step = on_step
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
        if self._window is not None:
            batch, first, last = self._window
            if self._recording and self._step > last:
                self._stop()
            elif self._batch == batch and self._step == first:
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
        if self._window is not None and self._recording:
            self._stop()

    def enough(self) -> bool:
        return self._window is not None and self._batch == self._window[0] and self._step >= self._window[2]

    def finish(self) -> None:
        """Stops a recording that still runs: a full one at its end, or any after an error."""
        self._close()
        if self._recording:
            self._stop()

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

    def _stop(self) -> None:
        self._synchronize()
        self._recording = False
        assert self.profiler is not None
        self.profiler.stop()
