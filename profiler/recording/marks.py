"""Marks: what is called where the phases of generation begin, what takes their times, and who calls them.

Each step has four marks:

| mark | what calls it in transformers' `generate` | phase that begins |
| --- | --- | --- |
| F | transformers asks the model for the step's inputs | `forward` (step 0: `prefill`) |
| P1 | the first of the caller's logits processors | `processor` |
| P2 | the last of them | `sampling` |
| S | the stopping criteria, when all have answered | `bookkeeping`, until the next F or the end of `generate` |

In transformers 4.57 and 5 (`GenerationMixin._sample`) the phases hold:

- `forward`: the forward, compiled or not; the float32 copy of the last logits; processors that `generate` makes from
  the model's own generation config.
- `processor`: the caller's processors, and transformers' inspection of the signature of each of them and of P2
  (`Timings.signature_ns`).
- `sampling`: temperature, top-k, top-p, softmax, multinomial or argmax, appending the token, the stopping criteria.
- `bookkeeping`: the loop reads the stop decision right after S, so this host sync is here.

The model's forward is neither patched nor hooked.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import statistics
import threading
import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from molprof.common.manifest import STEP_PHASES


class Marks:
    """Is called where phases begin; this one does nothing. A step has four calls, in the order of `STEP_PHASES`.

    An `Engine` calls them, and `marked` in any call of transformers' `generate`.
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


@dataclass
class Call:
    """One call of `generate`; tensors are on the model's device."""

    model: PreTrainedModel
    given: Mapping[str, Any]  # the caller's arguments by name
    width: int | None = None  # columns before the first new token
    columns: list[int] = field(default_factory=list)  # after each step
    done: list[Tensor] = field(default_factory=list)  # after each step, whether each row has ended, bool (rows,)
    last: Tensor | None = None  # the ids after the last step, int64 (rows, columns)
    sequences: Tensor | None = None  # what `generate` returned, int64 (rows, columns)


@contextmanager
def marked(marks: Marks, number: int = 0, heard: Callable[[Call], None] | None = None) -> Iterator[None]:
    """Calls `marks` in every call of `generate` that this thread makes inside the block.

    The caller's processors, criteria and settings stay as they are. A call inside another, as of an assistant model, is
    part of that one.

    Args:
        number: batch number of the first call; each later one is one more.
        heard: called with each call that has returned.
    """
    if type(marks) is Marks:  # which does nothing: `generate` runs as it would without molprof
        yield
        return
    thread, depth = threading.get_ident(), 0
    original, criteria = GenerationMixin.generate, StoppingCriteriaList.__call__
    signature = inspect.signature(original)
    call: Call

    @contextmanager
    def deeper() -> Iterator[None]:
        nonlocal depth
        depth += 1
        try:
            yield
        finally:
            depth -= 1

    @functools.wraps(original)
    def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal call, number
        if threading.get_ident() != thread:
            return original(model, *args, **kwargs)
        if depth > 0:
            with deeper():
                return original(model, *args, **kwargs)
        bound = signature.bind(model, *args, **kwargs)
        call = Call(model, {**bound.arguments, **bound.arguments.get("kwargs", {})})
        began = False

        def before(inputs: Mapping[str, Any]) -> None:
            nonlocal began
            if depth == 1 and not began:  # a prefill in chunks calls this several times before its one P1
                began = True
                marks.forward()

        def first(input_ids: Tensor) -> None:
            nonlocal began
            if depth == 1:  # an assistant model gets the same processors, and may be the same model
                began = False
                call.width = input_ids.shape[1] if call.width is None else call.width
                marks.processor()

        def last(input_ids: Tensor) -> None:
            if depth == 1:
                marks.sampling()

        own = call.given.get("logits_processor") or ()
        bound.arguments["logits_processor"] = LogitsProcessorList([_First(first), *own, _Last(last)])
        with deeper(), before_forward(model, before):
            marks.begin(number)
            output: Any = original(*bound.args, **bound.kwargs)
            marks.end()
        number += 1
        call.sequences = getattr(output, "sequences", output)
        if heard is not None:
            heard(call)
        return output

    def decided(self: StoppingCriteriaList, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        done: Tensor = criteria(self, input_ids, scores, **kwargs)
        if depth != 1 or threading.get_ident() != thread:
            return done
        marks.bookkeeping()
        if heard is not None:
            call.columns.append(input_ids.shape[1])
            call.done.append(done)
            call.last = input_ids
        return torch.ones_like(done) if marks.enough() else done

    with _replaced(GenerationMixin, "generate", generate), _replaced(StoppingCriteriaList, "__call__", decided):
        yield


class _First(LogitsProcessor):
    def __init__(self, mark: Callable[[Tensor], None]) -> None:
        self._mark = mark

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._mark(input_ids)
        return scores


class _Last(_First):
    """Has its own name in traces with stacks."""


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

    with _replaced(model, "prepare_inputs_for_generation", prepare):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of an instance or a class that has another value inside the block."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def mark_cost_ns() -> float:
    """Measured cost of one host timestamp as `HostMarks` takes it, in ns."""
    return _cost_ns(HostMarks().processor, 2000)


def signature_cost_ns() -> float:
    """Measured cost of one signature inspection as `LogitsProcessorList` makes it, in ns."""
    call = _Last(lambda input_ids: None).__call__
    return _cost_ns(lambda: inspect.signature(call).parameters, 200)


def _cost_ns(action: Callable[[], object], calls: int) -> float:
    """Median of nine averages."""
    return 1e9 / calls * statistics.median(timeit.repeat(action, repeat=9, number=calls))
