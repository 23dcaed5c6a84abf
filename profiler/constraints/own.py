"""A user's own processor (`--processor package.module:builder`): built from named parameters, then checked.

Every step compares type, shape, dtype and device. Whether a row has any token left requires a host sync, so only an
untimed pass checks that. Mistakes are errors that name step and row.
"""

from __future__ import annotations

import inspect
import json
import operator
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.common.errors import MolprofError, ProcessorError, UsageError
from molprof.common.setting import key_values
from molprof.common.text import shortened
from molprof.profiler.constraints.base import FORCED_RUNS, RowPositions, Rows, has
from molprof.profiler.models.device import settled_ns
from molprof.profiler.models.target import ProcessorTarget
from molprof.profiler.molecules.template import PLACEHOLDER, Template

_INSTALLED = {"site-packages", "dist-packages"}
_MOST_TEXT = 300  # of an error's own text: some hold whole tensors
PASSED_ON = (MolprofError, torch.OutOfMemoryError)  # they already say what to do
_REUSED = (
    "all batches share one object: if it keeps state from step to step, it needs start(rows), which returns a new one,"
    " or a parameter such as batch_size, by which its builder is called for each batch"
)
RAISED = (Exception, SystemExit)  # `SystemExit` would end the process without a message

# What a parameter of a builder gets by its name.
OF_RUN: dict[str, Callable[[ProcessorTarget], Any]] = {
    "target": lambda target: target,
    "tokenizer": lambda target: target.tokenizer,
    "eos_token_id": lambda target: target.eos,
    "pad_token_id": lambda target: target.pad,
    "bos_token_id": lambda target: target.tokenizer.bos_token_id,
    "vocab_size": lambda target: target.logits_width,
    "device": lambda target: target.device,
}
OF_BATCH: dict[str, Callable[[Rows], Any]] = {
    "templates": lambda rows: list(rows.templates),
    "prompt_lengths": lambda rows: [rows.prompt_width] * len(rows.prompts),
    "prompt_length": lambda rows: rows.prompt_width,
    "prompts": lambda rows: [prompt.text for prompt in rows.prompts],
    "smiles": lambda rows: [prompt.molecule.smiles for prompt in rows.prompts if prompt.molecule is not None],
    "batch_size": lambda rows: len(rows.prompts),
}
_OF_MOLECULES = {"templates", "smiles"}
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_call(
    name: str, builder: Callable[..., Any], texts: Sequence[str]
) -> tuple[dict[str, Any], list[inspect.Parameter]]:
    """Return the arguments that the texts set, and the other parameters of the builder.

    texts: each `KEY=VALUE`; a value that is no JSON is a text.

    Raises UsageError where one is of no parameter of `builder`, or a parameter is required that nobody supplies.
    """
    arguments: dict[str, Any] = {}
    for key, value in key_values("--processor-arg", texts, "top=5").items():
        try:
            arguments[key] = json.loads(value)
        except (ValueError, RecursionError):
            arguments[key] = value
    try:
        parameters = list(inspect.signature(builder).parameters.values())
    except (TypeError, ValueError) as problem:  # written in C, or nothing to call
        raise UsageError(f"{name} does not name its parameters: {problem}", "a Python function or class") from problem
    named = [item.name for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    if not any(item.kind is item.VAR_KEYWORD for item in parameters):
        for key in arguments.keys() - named:
            raise UsageError(f"{name} has no parameter {key!r}", f"its parameters: {', '.join(named) or 'none'}")
    required = [item for item in parameters if item.default is item.empty and item.kind not in _VARIABLE]
    supplied = {**OF_RUN, **OF_BATCH, **arguments}
    missing = [item.name for item in required if item.kind is item.POSITIONAL_ONLY or item.name not in supplied]
    if missing:
        hint = f"--processor-arg {missing[0]}=VALUE; molprof supplies {', '.join((*OF_RUN, *OF_BATCH))}"
        raise UsageError(f"{name} requires {', '.join(missing)}, which molprof cannot supply", hint)
    return arguments, [item for item in parameters if item.name not in arguments]


class UserProcessor:
    """A user's processor, built by the user's builder, as a `Processor`.

    The builder is called with what its parameters name, of `OF_RUN`, `OF_BATCH` and `texts`: once, or anew for each
    batch if it names anything of a batch. It makes a transformers `LogitsProcessor` (or any callable like one), or an
    object with `start(rows)`. Raises UsageError where it makes neither, or no trace can hold its parameters.
    """

    def __init__(
        self, name: str, builder: Callable[..., Any], target: ProcessorTarget, texts: Sequence[str] = ()
    ) -> None:
        self._builder, self.target = builder, target
        self._given, parameters = check_call(name, builder, texts)
        self._of_run = {item.name: OF_RUN[item.name](target) for item in parameters if item.name in OF_RUN}
        self._of_batch = [item.name for item in parameters if item.name in OF_BATCH]
        # What needs a batch is made when one is started: until then its class speaks for it.
        self._made: Any = builder if self._of_batch else builder(**self._of_run | self._given)
        if not (callable(self._made) or callable(getattr(self._made, "start", None))):
            hint = "a builder returns a transformers LogitsProcessor, or an object with start(rows)"
            raise UsageError(f"{name} made a {type(self._made).__name__}", hint)
        attribute = getattr(self._made, "name", name)
        self.name, self.place = attribute if isinstance(attribute, str) else name, name
        self.placeholder = str(getattr(self._made, "placeholder", target.form.numbers(PLACEHOLDER)))
        # As JSON holds them: checked now, since the trace is written only when a capture ends.
        attribute = getattr(self._made, "parameters", {})
        try:
            values = {**self._given, **(attribute if isinstance(attribute, Mapping) else {})}
            self.parameters: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as problem:
            hint = "finite numbers, texts, lists and dictionaries of them; str() of anything else"
            raise UsageError(f"the parameters of {name} cannot be written into a trace: {problem}", hint) from problem
        needs = any(item.name in _OF_MOLECULES and item.default is item.empty for item in parameters)
        self.needs_templates = bool(getattr(self._made, "needs_templates", needs))
        self.fixed_length = bool(getattr(self._made, "fixed_length", True))
        self.compiles = bool(getattr(self._made, "compiles", True))
        self._batches = 0  # that had the object itself
        self.verify = False  # whether batches started from now on check that every row has a token left

    def error(self, what: str, step: int | None = None) -> ProcessorError:
        """Return the error of the user's processor."""
        return ProcessorError(f"the processor {self.name!r} {what}", _REUSED if self._batches > 1 else None, step=step)

    @contextmanager
    def blamed(self, what: str, where: str = "", step: int | None = None) -> Iterator[None]:
        """Raise any exception of the user's code as a `ProcessorError`: `what`, the error, `where`."""
        try:
            yield
        except PASSED_ON:
            raise
        except RAISED as problem:
            raise self.error(f"{what} {told(problem, self.place)}{where}", step) from problem

    def longest(self, template: Template) -> int:
        """Return the longest answer by the processor, else by the tokens of the template and the end token."""
        longest = getattr(self._made, "longest", None)
        if longest is None:
            return len(template.ids) + 1
        with self.blamed("failed to give its longest answer:"):
            most = int(longest(template))
        if most < 1:
            raise self.error(f"says that its longest answer has {most} tokens")
        return most

    def start(self, rows: Rows) -> Observed:
        """Start the user's processor for a batch. Raises ProcessorError."""
        with self.blamed("failed to start:"):
            batch = self._made
            if of_batch := {key: OF_BATCH[key](rows) for key in self._of_batch}:
                batch = self._builder(**self._of_run | of_batch | self._given)
            if callable(getattr(batch, "start", None)):
                batch = batch.start(rows)
            self._batches += batch is self._made
        if not (callable(batch) or has(batch, FORCED_RUNS)):
            what = f"its start returned a {type(batch).__name__}, which cannot be called with input_ids and scores"
            raise self.error(f"failed: {what}")
        return Observed(batch, Checked(self))


class MaskCall(NamedTuple):
    """A call that masks scores: its number in the batch, and the position of each row of the scores."""

    number: int
    rows: Sequence[int]
    positions: Sequence[int]  # in the answers
    input_ids: Tensor | None = None  # where `generate` calls


class Observed(LogitsProcessor):
    """A batch's processor with observers of its calls, the first innermost. It has the members of the processor.

    An observer has any of the methods `masks(call, scores, at)`, `forced(call, row, position)`, `state(call, row,
    position)` and `masked_logits(call, rows)`, and returns what `call()` does; and `looked_ns`, the time of its own.
    """

    def __init__(self, processor: Any, *observers: Any) -> None:
        self._processor, self._observers = processor, observers
        methods = "masks", "forced", "state", "masked_logits"
        self._around = {name: [getattr(each, name) for each in observers if hasattr(each, name)] for name in methods}
        self._calls = self._rows = 0
        self._next: list[tuple[int, int]] = []  # row and position of each state that `allow` gets next

    @property
    def masked_logits(self) -> list[int] | None:
        """The masked logits of each row, as the processor counts them."""
        count = partial(getattr, self._processor, "masked_logits", None)
        counts: list[int] | None = self._observed("masked_logits", count, self._rows)
        return counts

    @property
    def looked_ns(self) -> int:
        """The time of all observers, ns."""
        return sum(getattr(each, "looked_ns", 0) for each in (self._processor, *self._observers))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Mask the scores of a step."""
        rows, call = range(len(scores)), partial(self._processor, input_ids, scores)
        return self._masks(call, scores, rows, [self._calls] * len(rows), input_ids)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._processor, name)
        watched = {"mask": self._mask, "forced": self._forced, "state": self._state, "allow": self._allow}
        return watched.get(name, member) if callable(member) else member

    def _mask(self, scores: Tensor, at: RowPositions) -> Tensor:
        return self._masks(lambda: self._processor.mask(scores, at), scores, at.rows, at.positions)

    def _forced(self, row: int, position: int, chosen: int | None) -> Any:
        return self._observed("forced", lambda: self._processor.forced(row, position, chosen), row, position)

    def _state(self, row: int, position: int, chosen: int | None) -> Any:
        self._next.append((row, position))
        return self._observed("state", lambda: self._processor.state(row, position, chosen), row, position)

    def _allow(self, scores: Tensor, states: Tensor) -> Tensor:
        rows, positions = zip(*self._next, strict=True)
        self._next.clear()
        return self._masks(lambda: self._processor.allow(scores, states), scores, rows, positions)

    def _masks(self, call: Callable[[], Any], scores: Tensor, rows: Any, positions: Any, ids: Any = None) -> Tensor:
        at = MaskCall(self._calls, rows, positions, ids)
        self._calls, self._rows = self._calls + 1, max(self._rows, max(rows) + 1)
        masked: Tensor = self._observed("masks", call, scores, at)
        return masked

    def _observed(self, name: str, call: Callable[[], Any], *arguments: Any) -> Any:
        for around in self._around[name]:
            call = partial(around, call, *arguments)
        return call()


class Checked:
    """Observes a user's batch processor and raises its mistakes as errors; `verify` adds checks with a host sync."""

    def __init__(self, user: UserProcessor) -> None:
        self._user, self._verify, self.looked_ns = user, user.verify, 0

    def masked_logits(self, call: Callable[[], Any], rows: int) -> list[int] | None:
        """Return the masked logits of `rows`: 0 before the first step."""
        with self._user.blamed("failed to give its masked logits:"):
            counts = None if (counted := call()) is None else [int(count) for count in counted]
        if counts is not None and rows and (len(counts) != rows or min(counts, default=0) < 0):
            raise self._user.error(f"has masked_logits {shortened(str(counts))}, not one count for each of {rows} rows")
        return counts

    def forced(self, call: Callable[[], Any], row: int, position: int) -> list[int]:
        """Return the forced tokens at a position. Raises ProcessorError."""
        where = f"at position {position} of row {row}"
        with self._user.blamed(f"failed to give what is forced {where}:"):
            tokens = [operator.index(token) for token in call()]
        for token in set(tokens).difference(range(self._user.target.logits_width)):
            raise self._user.error(f"forces {token} {where}, which is no token's id")
        return tokens

    def state(self, call: Callable[[], Any], row: int, position: int) -> int:
        """Return the state at a position. Raises ProcessorError."""
        with self._user.blamed(f"failed to give the state at position {position} of row {row}:"):
            return operator.index(call())

    def masks(self, call: Callable[[], Any], scores: Tensor, at: MaskCall) -> Tensor:
        """Mask the scores and check them. Raises ProcessorError."""
        rows, expected = at.rows, (tuple(scores.shape), scores.dtype, scores.device)
        where = f"rows {rows[0]} to {rows[-1]}" if len(rows) > 1 else f"row {rows[0]}"
        with self._user.blamed("raised", f", at step {at.number}, {where}", at.number):
            out = call()
        if not isinstance(out, Tensor):
            raise self._error(f"returned a {type(out).__name__}, not a tensor of scores", at, where)
        properties = tuple(out.shape), out.dtype, out.device
        for what, got, right in zip(("shape", "dtype", "device"), properties, expected, strict=True):
            if got != right:
                raise self._error(f"returned scores of {what} {got}, not {right}", at, where)
        if self._verify:
            began = settled_ns(out.device)
            broken = (out.isnan().any(-1) | out.isposinf().any(-1)).nonzero().flatten().tolist()
            if broken:
                raise self._error("returned NaN or +inf among the scores", at, f"row {rows[broken[0]]}")
            empty = out.isneginf().all(-1).nonzero().flatten().tolist()
            if empty:
                ends = (self._user.target.eos, self._user.target.pad)
                ended = at.number > 0 and at.input_ids is not None and int(at.input_ids[empty[0], -1]) in ends
                where = f"row {rows[empty[0]]}" + (", which had ended: leave it the end token" if ended else "")
                raise self._error(f"masked all {out.shape[1]:,} tokens", at, where)
            self.looked_ns += settled_ns(out.device) - began
        return out

    def _error(self, what: str, at: MaskCall, where: str) -> ProcessorError:
        return self._user.error(f"{what}, at step {at.number}, {where}", at.number)


def told(problem: BaseException, builder: str) -> str:
    """Return type, text and, if known, location of an error: `ValueError: too few (mine.py line 12)`.

    The place is the innermost frame outside of molprof and installed packages; for an installed processor, the
    innermost frame of its own package. `builder`: `package.module:builder`.
    """
    text = shortened(" ".join(str(problem).split()), _MOST_TEXT)
    what = f"{type(problem).__name__}: {text}" if text else type(problem).__name__
    libraries = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
    location, installed = None, None
    for frame, line in traceback.walk_tb(problem.__traceback__):
        path, package = Path(frame.f_code.co_filename), str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == "molprof" or path.name.startswith("<"):  # no file: the import system, or generated code
            continue
        frame_location = f"{path.name} line {line}"
        if not (_INSTALLED.intersection(path.parts) or any(map(path.is_relative_to, libraries))):
            location = frame_location
        elif package == builder.partition(":")[0].partition(".")[0]:
            installed = frame_location
    return what if (location or installed) is None else f"{what} ({location or installed})"
