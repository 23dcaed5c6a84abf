"""Where one phase of generation ends and the next begins, without patching transformers or hooking the model.

Four marks per step, each the beginning of a phase:

| mark | what calls it | phase that begins |
| --- | --- | --- |
| F | transformers asks the model for the step's inputs | `forward` (step 0: `prefill`) |
| P1 | the first of the studied logits processors | `processor` |
| P2 | the last of them | `sampling` |
| S | the last stopping criterion | `bookkeeping`, until the next F or the end of `generate` |

What falls where in transformers 5 (`GenerationMixin._sample`): only the forward is compiled, where anything
is; the processors run eagerly on a float32 copy of the last logits, and that copy belongs to `forward`.
Processors that `generate` makes from the model's own generation config come before P1, so they belong to
`forward`; temperature, top-k and top-p come after P2, so they belong to `sampling`, as do softmax,
multinomial or argmax, the concatenation of the new token and the stopping criteria before S. The loop reads
the stop decision right after S: that wait for the device is `bookkeeping`. `LogitsProcessorList` inspects
the signature of every processor on every call: once for each studied processor and once for P2 that lies
inside `processor`, and is transformers' cost, not theirs; `Timings.signature_ns` states it.
"""

from __future__ import annotations

import functools
import inspect
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from molprof.common.phases import STEP_PHASES


class Marks(Protocol):
    """What hears about phases. The four marks of a step come in the order of `STEP_PHASES`."""

    def setup(self, name: str, batch: int) -> AbstractContextManager[None]:
        """A phase outside the steps: `template`, `tokenize`, `setup`, `text`."""

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


class HostMarks:
    """Host timestamps at the marks: cheap enough for the timed passes, and no device synchronization.

    Attributes:
        setup_ns: host time by set-up phase, summed over batches; `setup` is `generate` before its first F.
        batches: per batch, timestamps in ns: four per step in the order of `STEP_PHASES`, and one at the end.
    """

    def __init__(self, on_step: Callable[[int, int], None] | None = None, now: Callable[[], int] | None = None) -> None:
        """`on_step(batch, step)` is called at the beginning of every step: for passes that are not timed. `now` is
        another clock than the host's, in ns."""
        self._now = now or time.perf_counter_ns
        self.setup_ns: dict[str, int] = {}
        self.batches: list[list[int]] = []
        self._on_step = on_step
        self._times: list[int] = []
        self._began = 0

    @contextmanager
    def setup(self, name: str, batch: int) -> Iterator[None]:
        began = self._now()
        yield
        self._add(name, self._now() - began)

    def begin(self, batch: int) -> None:
        self._times = []
        self._began = self._now()

    def forward(self) -> None:
        if self._on_step is not None:
            self._on_step(len(self.batches), len(self._times) // 4)
        self._times.append(self._now())

    def processor(self) -> None:
        self._times.append(self._now())

    def sampling(self) -> None:
        self._times.append(self._now())

    def bookkeeping(self) -> None:
        self._times.append(self._now())

    def end(self) -> None:
        self._times.append(self._now())
        self._add("setup", self._times[0] - self._began)
        self.batches.append(self._times)

    def enough(self) -> bool:
        return False

    def _add(self, name: str, duration_ns: int) -> None:
        self.setup_ns[name] = self.setup_ns.get(name, 0) + duration_ns

    def steps_ns(self) -> list[list[int]]:
        """Wall time of each step, batch after batch."""
        return [
            [after - before for before, after in zip(times[::4], times[4::4], strict=False)] for times in self.batches
        ]

    def phases_ns(self) -> dict[str, int]:
        """Host time by phase, summed over batches and steps; step 0's forward is `prefill`."""
        totals = dict(self.setup_ns)
        for times in self.batches:
            for place in range(len(times) - 1):
                name = "prefill" if place == 0 else STEP_PHASES[place % 4]
                totals[name] = totals.get(name, 0) + times[place + 1] - times[place]
        return totals


class NoMarks:
    """Hears nothing."""

    def setup(self, name: str, batch: int) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, batch: int) -> None:
        """Nothing."""

    def forward(self) -> None:
        """Nothing."""

    processor = sampling = bookkeeping = end = forward

    def enough(self) -> bool:
        return False


class _First(LogitsProcessor):
    def __init__(self, mark: Callable[[], None]) -> None:
        self._mark = mark

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._mark()
        return scores


class _Last(_First):
    """A class of its own, so that a trace with stacks tells P1 from P2."""


class _Stop(StoppingCriteria):
    """S. Its answer is a tensor made beforehand; transformers' `or` with it is a small kernel per step, which
    runs with and without studied processors alike."""

    def __init__(self, marks: Marks, rows: int, device: torch.device) -> None:
        self._marks = marks
        self._no = torch.zeros(rows, dtype=torch.bool, device=device)
        self._yes = torch.ones(rows, dtype=torch.bool, device=device)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self._marks.bookkeeping()
        return self._yes if self._marks.enough() else self._no


@contextmanager
def marked(
    model: PreTrainedModel, marks: Marks, rows: int, processors: Sequence[LogitsProcessor]
) -> Iterator[tuple[LogitsProcessorList, StoppingCriteriaList]]:
    """Sets the marks for one call of `generate`; yields its `logits_processor` and `stopping_criteria`.

    F shadows `prepare_inputs_for_generation` on the instance. That method is transformers' documented
    override point: `generate` calls it once per forward, before it, eagerly, and its result is what the
    forward gets. A hook on the module would be traced by a compiled forward, and would break or change its
    graph. `functools.wraps` keeps the signature that `generate` validates its arguments by. The shadow is
    gone when the block ends.
    """
    began = False
    original: Callable[..., Any] = model.prepare_inputs_for_generation  # type: ignore[assignment]

    @functools.wraps(original)
    def prepare(*args: Any, **kwargs: Any) -> Any:
        nonlocal began
        if not began:  # a prefill in chunks asks several times before its one P1
            began = True
            marks.forward()
        return original(*args, **kwargs)

    def first() -> None:
        nonlocal began
        began = False
        marks.processor()

    shadowed = model.__dict__.get("prepare_inputs_for_generation")
    model.__dict__["prepare_inputs_for_generation"] = prepare
    try:
        yield (
            LogitsProcessorList([_First(first), *processors, _Last(marks.sampling)]),
            StoppingCriteriaList([_Stop(marks, rows, model.device)]),
        )
    finally:
        if shadowed is None:
            del model.__dict__["prepare_inputs_for_generation"]
        else:
            model.__dict__["prepare_inputs_for_generation"] = shadowed


def mark_cost_ns(repeats: int = 2000) -> float:
    """Measured cost of one host timestamp as `HostMarks` takes it: median of nine averages, in ns."""

    def average() -> float:
        marks = HostMarks()
        marks.begin(0)
        began = time.perf_counter_ns()
        for _ in range(repeats):
            marks.processor()
        return (time.perf_counter_ns() - began) / repeats

    return statistics.median(average() for _ in range(9))


def signature_cost_ns(repeats: int = 200) -> float:
    """Measured cost of one signature inspection as `LogitsProcessorList` makes it, in ns."""
    processor = _Last(lambda: None)

    def average() -> float:
        began = time.perf_counter_ns()
        for _ in range(repeats):
            _ = inspect.signature(processor.__call__).parameters
        return (time.perf_counter_ns() - began) / repeats

    return statistics.median(average() for _ in range(9))
