"""A user's own processor, made to fit the contract and watched: what it does wrong is said by step and row.

Type, shape, dtype and device are compared in every step, which reads nothing back from the device. Whether a row
has any token left costs a wait for the device, so it is looked at in a pass that is not timed.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers import LogitsProcessor

from molprof.common.errors import ProcessorError, UsageError
from molprof.common.text import shortened
from molprof.profiler.models.target import Target
from molprof.profiler.molecules.template import PLACEHOLDER, Template
from molprof.profiler.processors.base import Places
from molprof.profiler.processors.blame import PASSED_ON, RAISED, told


class UserProcessor:
    """What a user's factory makes, as a `Processor`.

    Args:
        name: as given to `--processor`.
        factory: makes a `Processor`, or a transformers `LogitsProcessor` (or any callable like one), which is
            then made anew for each batch.

    Attributes:
        verify: whether the batches that are started from now on look for rows without any token left.

    Raises:
        UsageError: the factory makes neither, or its parameters cannot be written into a trace.
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
        self.parameters = _recordable(name, dict(getattr(made, "parameters", {})))
        self.needs_templates = bool(getattr(made, "needs_templates", False))
        self.fixed_length = bool(getattr(made, "fixed_length", True))
        self.verify = False

    def longest(self, template: Template) -> int:
        """Most tokens of an answer, end token included: what the processor says, else those of the template."""
        own = getattr(self._made, "longest", None)
        if own is None:
            return len(template.ids) + 1
        try:
            most = int(own(template))
        except PASSED_ON:
            raise
        except RAISED as problem:
            what = f"failed to tell its longest answer: {told(problem, self._place)}"
            raise ProcessorError(f"the processor {self.name!r} {what}") from problem
        if most < 1:
            raise ProcessorError(f"the processor {self.name!r} says that its longest answer has {most} tokens")
        return most

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
        jumps = callable(getattr(batch, "forced", None)) and callable(getattr(batch, "mask", None))
        if jumps and hasattr(batch, "reads_tokens"):
            return CheckedRuns(self.name, self._place, batch, prompt_width, self.verify, self._target)
        if not callable(batch):
            what = f"its start gave a {type(batch).__name__}, which cannot be called with input_ids and scores"
            raise ProcessorError(f"the processor {self.name!r} failed: {what}")
        return CheckedBatch(self.name, self._place, batch, prompt_width, self.verify, self._target)


class CheckedBatch(LogitsProcessor):
    """Calls a user's batch processor and looks at what it returns."""

    def __init__(self, name: str, place: str, batch: Any, prompt_width: int, verify: bool, target: Target) -> None:
        self._target = target
        self._name, self._place, self._batch = name, place, batch
        self._prompt_width, self._verify = prompt_width, verify
        self._ends = {target.eos, target.pad}
        self._rows: int | None = None

    @property
    def masked_logits(self) -> list[int] | None:
        """What the processor counted; None where it does not count."""
        try:
            counted = getattr(self._batch, "masked_logits", None)
            counts = None if counted is None else [int(count) for count in counted]
        except PASSED_ON:
            raise
        except RAISED as problem:
            what = f"failed to tell its masked logits: {told(problem, self._place)}"
            raise ProcessorError(f"the processor {self._name!r} {what}") from problem
        rows = self._rows
        if counts is not None and rows is not None and (len(counts) != rows or min(counts, default=0) < 0):
            what = f"has masked_logits {shortened(str(counts))}, not one count for each of {rows} rows"
            raise ProcessorError(f"the processor {self._name!r} {what}")
        return counts

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._rows = scores.shape[0]
        step = input_ids.shape[1] - self._prompt_width
        return self._checked(self._batch, input_ids, scores, step, range(self._rows))

    def _checked(
        self, called: Callable[..., Any], about: Any, scores: Tensor, step: int, rows: Sequence[int]
    ) -> Tensor:
        """What `called` makes of `scores`; `rows` are the rows of the batch that these are."""
        expected = tuple(scores.shape), scores.dtype, scores.device
        at = f"rows {rows[0]} to {rows[-1]}" if len(rows) > 1 else f"row {rows[0]}"
        try:
            arguments = (scores, about) if isinstance(about, Places) else (about, scores)
            out = called(*arguments)
        except PASSED_ON:
            raise
        except RAISED as problem:
            raise self._error(f"raised {told(problem, self._place)}", step, at) from problem
        if not isinstance(out, Tensor):
            raise self._error(f"returned a {type(out).__name__}, not a tensor of scores", step, at)
        found = tuple(out.shape), out.dtype, out.device
        for what, got, right in zip(("shape", "dtype", "device"), found, expected, strict=True):
            if got != right:
                raise self._error(f"returned scores of {what} {got}, not {right}", step, at)
        if self._verify:
            broken = (out.isnan().any(-1) | out.isposinf().any(-1)).nonzero().flatten().tolist()
            if broken:
                raise self._error("returned NaN or +inf among the scores", step, f"row {rows[broken[0]]}")
            empty = out.isneginf().all(-1).nonzero().flatten().tolist()
            if empty:
                ended = step > 0 and isinstance(about, Tensor) and int(about[empty[0], -1]) in self._ends
                where = f"row {rows[empty[0]]}" + (", which had ended: leave it the end token" if ended else "")
                raise self._error(f"masked all {out.shape[1]:,} tokens", step, where)
        return out

    def _error(self, what: str, step: int, where: str) -> ProcessorError:
        return ProcessorError(f"the processor {self._name!r} {what}, at step {step}, {where}", step=step)


class CheckedRuns(CheckedBatch):
    """One that tells forced runs too, watched in the same way: `ForcedRuns`."""

    def __init__(self, name: str, place: str, batch: Any, prompt_width: int, verify: bool, target: Target) -> None:
        super().__init__(name, place, batch, prompt_width, verify, target)
        self.reads_tokens = bool(batch.reads_tokens)
        self._step = 0

    def forced(self, row: int, position: int, chosen: int | None) -> list[int]:
        """See `ForcedRuns`."""
        where = f"at position {position} of row {row}"
        try:
            tokens = [operator.index(token) for token in self._batch.forced(row, position, chosen)]
        except PASSED_ON:
            raise
        except RAISED as problem:
            what = f"failed to tell what is forced {where}: {told(problem, self._place)}"
            raise ProcessorError(f"the processor {self._name!r} {what}") from problem
        for token in tokens:
            if not 0 <= token < self._target.logits_width:
                raise ProcessorError(f"the processor {self._name!r} forces {token} {where}, which is no token's id")
        return tokens

    def mask(self, scores: Tensor, places: Places) -> Tensor:
        """See `ForcedRuns`."""
        self._rows = max(self._rows or 0, max(places.rows) + 1)
        step, self._step = self._step, self._step + 1
        return self._checked(self._batch.mask, places, scores, step, places.rows)


def _recordable(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters as JSON holds them: the trace is written last, when a capture has long run."""
    try:
        kept: dict[str, Any] = json.loads(json.dumps(parameters, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as problem:
        raise UsageError(
            f"the parameters of {name} cannot be written into a trace: {problem}",
            hint="finite numbers, texts, lists and dictionaries of them; str() of anything else",
        ) from problem
    return kept
