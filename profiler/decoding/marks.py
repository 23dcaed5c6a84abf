"""Phase timestamps of generation, without patching transformers or hooking the model.

Each step has four marks, at which phases begin:

| mark | what calls it | phase that begins |
| --- | --- | --- |
| F | transformers asks the model for the step's inputs | `forward` (step 0: `prefill`) |
| P1 | the first of the studied logits processors | `processor` |
| P2 | the last of them | `sampling` |
| S | the last stopping criterion | `bookkeeping`, until the next F or the end of `generate` |

In transformers 4.57 and 5 (`GenerationMixin._sample`) the phases hold:

- `forward`: the forward, compiled or not; the float32 copy of the last logits; processors that `generate` makes from
  the model's own generation config.
- `processor`: the studied processors, and transformers' inspection of the signature of each of them and of P2
  (`Timings.signature_ns`).
- `sampling`: temperature, top-k, top-p, softmax, multinomial or argmax, appending the token, earlier stopping criteria.
- `bookkeeping`: the loop reads the stop decision right after S, so this host sync is here.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import statistics
import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from molprof.common.manifest import STEP_PHASES


class Marks:
    """Is called where phases begin; this one does nothing. A step has four calls, in the order of `STEP_PHASES`."""

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


class _First(LogitsProcessor):
    def __init__(self, mark: Callable[[], None]) -> None:
        self._mark = mark

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._mark()
        return scores


class _Last(_First):
    """Has its own name in traces with stacks."""


class _Stop(StoppingCriteria):
    """S. transformers combines its answer with the others' in one small kernel per step, with processors or without."""

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
    """Sets the marks for one call of `generate`; yields its `logits_processor` and `stopping_criteria`."""
    began = False

    def before(inputs: Mapping[str, Any]) -> None:
        nonlocal began
        if not began:  # a prefill in chunks calls this several times before its one P1
            began = True
            marks.forward()

    def first() -> None:
        nonlocal began
        began = False
        marks.processor()

    with before_forward(model, before):
        yield (
            LogitsProcessorList([_First(first), *processors, _Last(marks.sampling)]),
            StoppingCriteriaList([_Stop(marks, rows, model.device)]),
        )


@contextmanager
def before_forward(model: PreTrainedModel, call: Callable[[Mapping[str, Any]], None]) -> Iterator[None]:
    """Calls `call` before each forward of `generate` inside the block, with the forward's keyword arguments.

    This shadows `prepare_inputs_for_generation` on the instance. That method is transformers' documented override
    point: `generate` calls it eagerly before each forward. A hook on the module would change the graph of a compiled
    forward. `functools.wraps` keeps the signature by which `generate` validates its arguments.
    """
    original: Callable[..., Any] = model.prepare_inputs_for_generation  # type: ignore[assignment]

    @functools.wraps(original)
    def prepare(*args: Any, **kwargs: Any) -> Any:
        call(kwargs)
        return original(*args, **kwargs)

    shadowed = model.__dict__.get("prepare_inputs_for_generation")
    model.__dict__["prepare_inputs_for_generation"] = prepare
    try:
        yield
    finally:
        del model.__dict__["prepare_inputs_for_generation"]
        if shadowed is not None:
            model.__dict__["prepare_inputs_for_generation"] = shadowed


def mark_cost_ns() -> float:
    """Measured cost of one host timestamp as `HostMarks` takes it, in ns."""
    return _cost_ns(HostMarks().processor, 2000)


def signature_cost_ns() -> float:
    """Measured cost of one signature inspection as `LogitsProcessorList` makes it, in ns."""
    call = _Last(lambda: None).__call__
    return _cost_ns(lambda: inspect.signature(call).parameters, 200)


def _cost_ns(action: Callable[[], object], calls: int) -> float:
    """Median of nine averages."""
    return 1e9 / calls * statistics.median(timeit.repeat(action, repeat=9, number=calls))
