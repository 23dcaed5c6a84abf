"""Marks: what is called where the phases of generation begin, and what takes the times of the phases."""

from __future__ import annotations

import itertools
import statistics
import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from molprof.common.manifest import STEP_PHASES


class Marks:
    """Is called where phases begin; this one does nothing. A step has four calls, in the order of `STEP_PHASES`.

    `engines` call them, and `generate.marked` in any call of transformers' `generate`.
    """

    def setup(self, name: str, batch: int) -> AbstractContextManager[None]:
        """A phase outside the steps: `template`, `tokenize`, `setup`, `text`."""
        return nullcontext()

    def begin(self, batch: int) -> None:
        """`generate` is about to be called for a batch."""

    def forward(self) -> None:
        """F."""

    def processor(self) -> None:
        """P1."""

    def sampling(self) -> None:
        """P2."""

    def bookkeeping(self) -> None:
        """S."""

    def end(self) -> None:
        """`generate` has returned."""

    def enough(self) -> bool:
        """True to end the batch after the running step."""
        return False


class HostMarks(Marks):
    """Host timestamps at the marks, without device synchronization: cheap enough for timed passes."""

    def __init__(self, on_step: Callable[[int, int], None] | None = None, now: Callable[[], int] | None = None) -> None:
        """`on_step(batch, step)` is called when a step begins, in passes that are not timed. `now` is a clock in ns."""
        self._now = now or time.perf_counter_ns
        self._on_step = on_step
        # By set-up phase, summed over batches; `setup` is `generate` before its first F.
        self._setup_ns: Counter[str] = Counter()
        # Per batch, timestamps in ns: four per step in the order of `STEP_PHASES`, and one at the end.
        self._batches: list[list[int]] = []
        self._times: list[int] = []
        self._began = 0

    @contextmanager
    def setup(self, name: str, batch: int) -> Iterator[None]:
        began = self._now()
        yield
        took = self._now() - began
        self._setup_ns[name] += took

    def begin(self, batch: int) -> None:
        self._times = []
        self._began = self._now()

    def forward(self) -> None:
        if self._on_step is not None:
            self._on_step(len(self._batches), len(self._times) // 4)
        self._times.append(self._now())

    def processor(self) -> None:
        self._times.append(self._now())

    sampling = bookkeeping = processor

    def end(self) -> None:
        self._times.append(self._now())
        self._setup_ns["setup"] += self._times[0] - self._began
        self._batches.append(self._times)

    def steps_ns(self) -> list[list[int]]:
        """Wall time of each step, batch after batch."""
        return [[after - before for before, after in itertools.pairwise(times[::4])] for times in self._batches]

    def phases_ns(self) -> dict[str, int]:
        """Host time by phase, summed over batches and steps; the forward of step 0 is `prefill`."""
        totals = Counter(self._setup_ns)
        for times in self._batches:
            for place, (before, after) in enumerate(itertools.pairwise(times)):
                totals["prefill" if place == 0 else STEP_PHASES[place % 4]] += after - before
        return dict(totals)


def mark_cost_ns() -> float:
    """Measured cost of one host timestamp as `HostMarks` takes it, in ns."""
    return cost_ns(HostMarks().processor, 2000)


def cost_ns(action: Callable[[], object], calls: int) -> float:
    """Median of nine averages."""
    return 1e9 / calls * statistics.median(timeit.repeat(action, repeat=9, number=calls))
