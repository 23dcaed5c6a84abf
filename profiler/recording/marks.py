"""Marks: methods that are called where the phases of generation begin, and the code that calls them.

Each step has four marks:

| mark | what calls it in transformers' `generate` | phase that begins |
| --- | --- | --- |
| F | transformers asks the model for the step's inputs | `forward` (step 0: `prefill`) |
| P1 | `generate` calls its list of logits processors | `processor` |
| P2 | the last of them but those that draw a token | `sampling` |
| S | the stopping criteria, when all have answered | `bookkeeping`, until the next F or the end of `generate` |

In transformers 4.57 and 5 (`GenerationMixin._sample`) the phases hold:

- `forward`: the forward, compiled or not; the float32 copy of the last logits.
- `processor`: the caller's processors and those that `generate` makes from its arguments and the model's generation
  config, such as `prefix_allowed_tokens_fn`, `bad_words_ids` and `guidance_scale`; and transformers' inspection of the
  signature of each of them (`Timings.signature_ns`).
- `sampling`: temperature, top-k, top-p, softmax, multinomial or argmax, appending the token, the stopping criteria.
- `bookkeeping`: the loop reads the stop decision right after S, so this host sync is here.

The model's forward is neither patched nor hooked.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

_LOG = logging.getLogger("molprof")
# transformers 5.23 says nothing.
_DROPPED = (
    'generate(cache_implementation="paged") leaves out the logits processors that it is given: %s;'
    " docs/engines.md says where continuous batching takes them from"
)
# In the order of `STEP_PHASES`.
_MARKS = ("forward", "processor", "sampling", "bookkeeping")


class Marks:
    """Marks that do nothing. A step has four calls, in the order of `STEP_PHASES`.

    An `Engine` calls them, and `marked` in any call of transformers' `generate`.
    """

    def setup(self, name: str, batch: int) -> AbstractContextManager[None]:
        """Return a phase outside the steps: `template`, `tokenize`, `setup`, `text`."""
        return nullcontext()

    def expect(self, steps: int | None) -> None:
        """Note the most steps of the next batch; None: unknown."""

    def begin(self, batch: int) -> None:
        """Begin a batch: `generate` is about to be called."""

    def forward(self) -> None:
        """Begin a step with its forward (F)."""

    def processor(self) -> None:
        """Begin the processors of a step (P1)."""

    def sampling(self) -> None:
        """Begin the sampling of a step (P2)."""

    def bookkeeping(self) -> None:
        """Begin the bookkeeping of a step (S)."""

    def each(self, index: int, label: str) -> None:
        """Note that processor number `index` of the phase is about to be called."""

    def gap(self) -> None:
        """Begin the time between two steps of a program's own loop."""

    def end(self) -> None:
        """End a batch: `generate` has returned."""

    def failed(self) -> None:
        """Drop a batch: `generate` has raised an exception, and `end` is not called."""

    def enough(self) -> bool:
        """Return True to end the batch after the running step."""
        return False


@dataclass
class GenerateCall:
    """One call of `generate`; tensors are on the model's device."""

    model: PreTrainedModel
    given: Mapping[str, Any]  # the caller's arguments by name
    width: int | None = None  # columns before the first new token
    columns: list[int] = field(default_factory=list)  # after each step
    done: list[Tensor] = field(default_factory=list)  # after each step, whether each row has ended, bool (rows,)
    last: Tensor | None = None  # the ids after the last step, int64 (rows, columns)
    sequences: Tensor | None = None  # what `generate` returned, int64 (rows, columns)
    failed: bool = False  # it ended with an exception
    steps: int = 0
    rows: list[int] = field(default_factory=list)  # by step, those that were computed
    # Classes of the logits processors in the order of their calls, which of them the caller gave, and how many the
    # phase of processors has: those after them draw a token. Empty before the first step.
    processors: tuple[str, ...] = ()
    own: tuple[int, ...] = ()
    constraining: int = 0


def config_value(call: GenerateCall, name: str) -> Any:
    """Return a generation setting of a call: its own, else of its generation config, else of the model's."""
    for source in (call.given, call.given.get("generation_config"), call.model.generation_config):
        value = source.get(name) if isinstance(source, dict) else getattr(source, name, None)
        if value is not None:
            return value
    return None


@contextmanager
def marked(
    marks: Marks,
    number: int | Callable[[], int] = 0,
    heard: Callable[[GenerateCall], None] | None = None,
    missed: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Call `marks` in every call of `generate` inside the block.

    The caller's processors, criteria and settings stay as they are. A call inside another, as of an assistant model, is
    part of that one. While a call runs, those of other threads run unmarked.

    Args:
        number: batch number of the call, or what gives that of each.
        heard: called with each call that has ended. Without it, each processor has no mark of its own.
        missed: called for each call that runs unmarked.
    """
    if type(marks) is Marks:  # which does nothing: `generate` runs as it would without molprof
        yield
        return
    listener = _Listener(marks, number, heard, missed)
    original, criteria = GenerationMixin.generate, StoppingCriteriaList.__call__
    processors, each = LogitsProcessorList.__call__, LogitsProcessorList.__iter__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
        with listener.entered() as listened:
            if not listened:
                return original(model, *args, **kwargs)
            bound = signature.bind(model, *args, **kwargs)
            return listener.call(original, bound)

    @functools.wraps(criteria)
    def decided(self: StoppingCriteriaList, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        done: Tensor = criteria(self, input_ids, scores, **kwargs)  # type: ignore[arg-type]
        return listener.decided(input_ids, done) if listener.listens else done

    @functools.wraps(processors)
    def processed(self: LogitsProcessorList, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        if listener.listens:
            listener.processors(self, input_ids)
        return processors(self, input_ids, scores, **kwargs)  # type: ignore[arg-type]

    def iterated(self: LogitsProcessorList) -> Iterator[Any]:
        return listener.called_each(each(self)) if listener.begins(self) else each(self)

    with (
        replaced(GenerationMixin, "generate", generate),
        replaced(StoppingCriteriaList, "__call__", decided),
        replaced(LogitsProcessorList, "__call__", processed),
        replaced(LogitsProcessorList, "__iter__", iterated),
    ):
        yield


class _Listener:
    """Calls the marks in their order, whatever the decoding loop: beams, assistants, a loop of the caller's own.

    A mark that a loop leaves out is called with the next one, so that every step has all four. An assisted step calls
    the processors once for each token that it checks.
    """

    def __init__(
        self,
        marks: Marks,
        number: int | Callable[[], int],
        heard: Callable[[GenerateCall], None] | None,
        missed: Callable[[], None] | None,
    ) -> None:
        self._marks, self._number, self._heard, self._missed = marks, number, heard, missed
        self._process, self._lock = os.getpid(), threading.Lock()
        self._thread: int | None = None  # of the running call
        self._depth = 0
        self._next = 0  # place in `STEP_PHASES` of the mark that is due
        self._call: GenerateCall
        self._list: LogitsProcessorList | None = None  # that the call has made
        self._labels: tuple[str, ...] = ()  # of the processors of the phase, where each has its own mark
        self._is_called = False  # the list is, and has not begun to call what is in it

    @property
    def listens(self) -> bool:
        """True if the running code belongs to the marked call, and to no call inside it."""
        return self._depth == 1 and self._thread == threading.get_ident()

    @contextmanager
    def entered(self) -> Iterator[bool]:
        """Begin a call of `generate`; yield False if it is not to be marked."""
        inside = self._thread == threading.get_ident()
        if not inside and (os.getpid() != self._process or not self._lock.acquire(blocking=False)):
            if self._missed is not None:
                self._missed()
            yield False
            return
        self._thread = threading.get_ident()
        self._depth += 1
        try:
            yield not inside
        finally:
            self._depth -= 1
            if not inside:
                self._thread = None
                self._lock.release()

    def call(self, original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        """Run a call under marks."""
        model: Any = bound.args[0]
        call = self._call = GenerateCall(model, {**bound.arguments, **bound.arguments.get("kwargs", {})})
        self._next = 0
        processors = list(call.given.get("logits_processor") or ())
        if processors and call.given.get("cache_implementation") == "paged" and self._heard is not None:
            _LOG.warning(_DROPPED, ", ".join(type(item).__name__ for item in processors))
        self._list = None
        bound.arguments["logits_processor"] = LogitsProcessorList([*processors, _Last()])
        with before_forward(model, self._forward), self._before_own_forward(model, call.given.get("custom_generate")):
            self._tell("expect", config_value(call, "max_new_tokens"))
            self._tell("begin", self._number() if callable(self._number) else self._number)
            try:
                output: Any = original(*bound.args, **bound.kwargs)
            except BaseException:
                self._tell("failed")
                call.failed = True
                if self._heard is not None:
                    self._guarded(self._heard, call)
                raise
            if self._next > 0:
                self._mark(3)
            self._tell("end")
        call.sequences = getattr(output, "sequences", output)
        if self._heard is not None and type(self._marks) is not Marks:
            self._guarded(self._heard, call)
        return output

    def _tell(self, mark: str, *arguments: Any) -> None:
        self._guarded(getattr(self._marks, mark), *arguments)

    def _guarded(self, action: Callable[..., object], *arguments: Any) -> None:
        """End the marks, but not the program, at a fault of molprof."""
        try:
            action(*arguments)
        except Exception as problem:
            if self._heard is None:
                raise
            with suppress(Exception):
                self._marks.failed()  # which ends a profiler that runs
            self._marks = Marks()
            _LOG.warning("molprof stopped recording: %s: %s", type(problem).__name__, problem)

    def processors(self, processors: LogitsProcessorList, input_ids: Tensor) -> None:
        """Begin the phase of processors, unless this list is of another call, or one inside the call's list."""
        if self._list is not processors:
            last = next((index for index, item in enumerate(processors) if isinstance(item, _Last)), None)
            if last is None:
                return
            self._list = processors
            self._seen(processors, last)
        self._call.width = input_ids.shape[1] if self._call.width is None else self._call.width
        self._is_called = True
        self._mark(1)
        if len(self._call.rows) < self._call.steps:
            self._call.rows.append(len(input_ids))

    def _seen(self, processors: LogitsProcessorList, last: int) -> None:
        """Record the processors of the call. last: the index of P2."""
        before, after = processors[:last], processors[last + 1 :]
        ids = {id(item) for item in self._call.given.get("logits_processor") or ()}
        self._call.processors = tuple(map(_name, (*before, *after)))
        self._call.own = tuple(index for index, item in enumerate(before) if id(item) in ids)
        self._call.constraining = last
        self._labels = tuple(f"{_name(item)} ({index})" for index, item in enumerate(before) if self._heard)

    def begins(self, processors: LogitsProcessorList) -> bool:
        """Return True if the call's list of processors begins to call them now."""
        begins, self._is_called = self._is_called and self._list is processors and self.listens, False
        return begins

    def called_each(self, processors: Iterator[Any]) -> Iterator[Any]:
        """Yield the processors, with the marks before each and after the last of the phase.

        transformers inspects the signature of all that it takes from a list: a mark there would cost the phase more.
        """
        for index, item in enumerate(processors):
            if isinstance(item, _Last):
                if self.listens:
                    self._mark(2)
                continue
            if index < len(self._labels):
                self._each(index, self._labels[index])
            yield item

    def decided(self, input_ids: Tensor, done: Tensor) -> Tensor:
        self._mark(3)
        if self._heard is not None:
            self._call.columns.append(input_ids.shape[1])
            self._call.done.append(done)
            self._call.last = input_ids
        return torch.ones_like(done) if self._marks.enough() else done

    def _mark(self, index: int) -> None:
        """Call the mark at `index`, and before it those that were skipped."""
        if index == 0 or (self._next == 0 and index > 0):
            self._call.steps += 1
        if self._next == 3 and index == 1:  # once more in the same step
            self._next = 1
        while self._next != index:
            self._tell(_MARKS[self._next])
            self._next = (self._next + 1) % len(_MARKS)
        self._tell(_MARKS[index])
        self._next = (index + 1) % len(_MARKS)

    def _forward(self, inputs: Mapping[str, Any]) -> None:
        if self.listens and self._next != 1:  # a prefill in chunks calls this several times before its one P1
            self._mark(0)

    def _each(self, index: int, label: str) -> None:
        if self.listens:  # an assistant model gets the same processors, and may be the same model
            self._tell("each", index, label)

    @contextmanager
    def _before_own_forward(self, model: Any, custom: Any) -> Iterator[None]:
        """Mark a forward of a caller's own loop that does not ask the model for inputs."""
        if custom is None:
            yield
            return
        hook = model.register_forward_pre_hook(lambda module, args: self._forward({}))
        try:
            yield
        finally:
            hook.remove()


def _name(processor: Any) -> str:
    """Return the class of a processor; with its package if the name is that of transformers' base class."""
    kind = type(processor)
    package = f"{kind.__module__.partition('.')[0]}." if kind.__name__ == LogitsProcessor.__name__ else ""
    return f"{package}{kind.__name__}"


class _Last(LogitsProcessor):
    """P2 as a processor in the list of a call, which marks the end of the processors. It changes no score."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores


@contextmanager
def before_forward(model: PreTrainedModel, call: Callable[[Mapping[str, Any]], None]) -> Iterator[None]:
    """Call `call` before each forward of `generate` inside the block, with the forward's keyword arguments.

    This shadows `prepare_inputs_for_generation` on the instance. That method is transformers' documented override
    point: `generate` calls it eagerly before each forward. A hook on the module would change the graph of a compiled
    forward. `functools.wraps` keeps the signature by which `generate` validates its arguments.
    """
    original: Callable[..., Any] = model.prepare_inputs_for_generation  # type: ignore[assignment]

    @functools.wraps(original)
    def prepare(*args: Any, **kwargs: Any) -> Any:
        call(kwargs)
        return original(*args, **kwargs)

    with replaced(model, "prepare_inputs_for_generation", prepare):
        yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of an instance or a class inside the block."""
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
