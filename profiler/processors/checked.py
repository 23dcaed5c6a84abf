"""A user's own processor, made to fit the contract and watched: what it does wrong is said by step and row.

Type, shape, dtype and device are compared in every step, which reads nothing back from the device. Whether a row
has any token left costs a wait for the device, so it is looked at in a pass that is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers import LogitsProcessor

from molprof.errors import ProcessorError, UsageError
from molprof.profiler.processors.base import Target
from molprof.profiler.processors.blame import PASSED_ON, RAISED, told
from molprof.profiler.template import PLACEHOLDER, Template


class UserProcessor:
    """What a user's factory makes, as a `Processor`.

    Args:
        name: as given to `--processor`.
        factory: makes a `Processor`, or a transformers `LogitsProcessor` (or any callable like one), which is
            then made anew for each batch.

    Attributes:
        verify: whether the batches that are started from now on look for rows without any token left.

    Raises:
        UsageError: the factory makes neither.
    """

    def __init__(self, name: str, factory: Callable[[Target], Any], target: Target) -> None:
        made = factory(target)
        if not (callable(made) or callable(getattr(made, "start", None))):
            raise UsageError(
                f"{name} made a {type(made).__name__}",
                hint="a factory returns a transformers LogitsProcessor, or an object with start(templates, width)",
            )
        self._made, self._factory, self._target = made, factory, target
        self._place = name
        self.name = str(getattr(made, "name", name))
        self.placeholder = str(getattr(made, "placeholder", PLACEHOLDER))
        self.parameters: dict[str, Any] = dict(getattr(made, "parameters", {}))
        self.needs_templates = bool(getattr(made, "needs_templates", False))
        self.fixed_length = bool(getattr(made, "fixed_length", True))
        self.verify = False

    def longest(self, template: Template) -> int:
        """Most tokens of an answer, end token included: what the processor says, else those of the template."""
        own = getattr(self._made, "longest", None)
        if own is None:
            return len(template.ids) + 1
        try:
            return int(own(template))
        except PASSED_ON:
            raise
        except RAISED as problem:
            what = f"failed to tell its longest answer: {told(problem, self._place)}"
            raise ProcessorError(f"the processor {self.name!r} {what}") from problem

    def start(self, templates: Sequence[Template], prompt_width: int) -> CheckedBatch:
        try:
            if callable(getattr(self._made, "start", None)):
                batch = self._made.start(templates, prompt_width)
            else:
                batch = self._factory(self._target)
        except PASSED_ON:
            raise
        except RAISED as problem:
            what = f"failed to start: {told(problem, self._place)}"
            raise ProcessorError(f"the processor {self.name!r} {what}") from problem
        return CheckedBatch(self.name, self._place, batch, prompt_width, self.verify)


class CheckedBatch(LogitsProcessor):
    """Calls a user's batch processor and looks at what it returns."""

    def __init__(self, name: str, place: str, batch: Any, prompt_width: int, verify: bool) -> None:
        self._name, self._place, self._batch = name, place, batch
        self._prompt_width, self._verify = prompt_width, verify

    @property
    def masked_logits(self) -> list[int] | None:
        """What the processor counted; None where it does not count."""
        counted = getattr(self._batch, "masked_logits", None)
        return None if counted is None else [int(count) for count in counted]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        expected = tuple(scores.shape), scores.dtype, scores.device
        try:
            out = self._batch(input_ids, scores)
        except PASSED_ON:
            raise
        except RAISED as problem:
            raise self._error(input_ids, f"raised {told(problem, self._place)}") from problem
        if not isinstance(out, Tensor):
            raise self._error(input_ids, f"returned a {type(out).__name__}, not a tensor of scores")
        found = tuple(out.shape), out.dtype, out.device
        for what, got, right in zip(("shape", "dtype", "device"), found, expected, strict=True):
            if got != right:
                raise self._error(input_ids, f"returned scores of {what} {got}, not {right}")
        if self._verify:
            self._check_rows(input_ids, out)
        return out

    def _check_rows(self, input_ids: Tensor, scores: Tensor) -> None:
        broken = (scores.isnan().any(-1) | scores.isposinf().any(-1)).nonzero().flatten().tolist()
        if broken:
            raise self._error(input_ids, "returned NaN or +inf among the scores", broken[0])
        empty = scores.isneginf().all(-1).nonzero().flatten().tolist()
        if empty:
            raise self._error(input_ids, f"masked all {scores.shape[1]:,} tokens", empty[0])

    def _error(self, input_ids: Tensor, what: str, row: int | None = None) -> ProcessorError:
        step, rows = input_ids.shape[1] - self._prompt_width, input_ids.shape[0]
        where = f"row {row}" if row is not None else f"rows 0 to {rows - 1}" if rows > 1 else "row 0"
        return ProcessorError(f"the processor {self._name!r} {what}, at step {step}, {where}", step=step)
