"""A user's own processor (`--processor package.module:builder`): built by the names of parameters, then checked.

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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.common.errors import MolprofError, ProcessorError, UsageError
from molprof.common.setting import key_values
from molprof.common.text import shortened
from molprof.profiler.constraints.base import Places, Rows
from molprof.profiler.models.device import settled_ns
from molprof.profiler.models.target import Target
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
OF_RUN: dict[str, Callable[[Target], Any]] = {
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
    name: str, builder: Callable[..., Any], given: Sequence[str]
) -> tuple[dict[str, Any], list[inspect.Parameter]]:
    """The arguments that `given` sets, `KEY=VALUE` texts whose values are JSON or else text; the other parameters.

    Raises UsageError where one is of no parameter of `builder`, or a parameter is required that nobody supplies.
    """
    arguments: dict[str, Any] = {}
    for key, value in key_values("--processor-arg", given, "top=5").items():
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
    known = {**OF_RUN, **OF_BATCH, **arguments}
    missing = [item.name for item in required if item.kind is item.POSITIONAL_ONLY or item.name not in known]
    if missing:
        hint = f"--processor-arg {missing[0]}=VALUE; molprof supplies {', '.join((*OF_RUN, *OF_BATCH))}"
        raise UsageError(f"{name} requires {', '.join(missing)}, which molprof cannot supply", hint)
    return arguments, [item for item in parameters if item.name not in arguments]


class UserProcessor:
    """What a user's builder makes, as a `Processor`.

    The builder is called with what its parameters name, of `OF_RUN`, `OF_BATCH` and `given`: once, or anew for each
    batch if it names anything of a batch. It makes a transformers `LogitsProcessor` (or any callable like one), or an
    object with `start(rows)`. Raises UsageError where it makes neither, or no trace can hold its parameters.
    """

    def __init__(self, name: str, builder: Callable[..., Any], target: Target, given: Sequence[str] = ()) -> None:
        self._builder, self.target = builder, target
        self._given, parameters = check_call(name, builder, given)
        self._of_run = {item.name: OF_RUN[item.name](target) for item in parameters if item.name in OF_RUN}
        self._of_batch = [item.name for item in parameters if item.name in OF_BATCH]
        # What needs a batch is made when one is started: until then its class speaks for it.
        self._made: Any = builder if self._of_batch else builder(**self._of_run | self._given)
        if not (callable(self._made) or callable(getattr(self._made, "start", None))):
            hint = "a builder returns a transformers LogitsProcessor, or an object with start(rows)"
            raise UsageError(f"{name} made a {type(self._made).__name__}", hint)
        own = getattr(self._made, "name", name)
        self.name, self.place = own if isinstance(own, str) else name, name
        self.placeholder = str(getattr(self._made, "placeholder", target.form.numbers(PLACEHOLDER)))
        # As JSON holds them: checked now, since the trace is written only when a capture ends.
        own = getattr(self._made, "parameters", {})
        try:
            values = {**self._given, **(own if isinstance(own, Mapping) else {})}
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
        return ProcessorError(f"the processor {self.name!r} {what}", _REUSED if self._batches > 1 else None, step=step)

    @contextmanager
    def blamed(self, what: str, where: str = "", step: int | None = None) -> Iterator[None]:
        """Raise whatever the user's code raises inside as a `ProcessorError`: `what`, the error, `where`."""
        try:
            yield
        except PASSED_ON:
            raise
        except RAISED as problem:
            raise self.error(f"{what} {told(problem, self.place)}{where}", step) from problem

    def longest(self, template: Template) -> int:
        """What the processor says, else the tokens of the template and the end token."""
        own = getattr(self._made, "longest", None)
        if own is None:
            return len(template.ids) + 1
        with self.blamed("failed to give its longest answer:"):
            most = int(own(template))
        if most < 1:
            raise self.error(f"says that its longest answer has {most} tokens")
        return most

    def start(self, rows: Rows) -> CheckedBatch:
        with self.blamed("failed to start:"):
            batch = self._made
            if of_batch := {key: OF_BATCH[key](rows) for key in self._of_batch}:
                batch = self._builder(**self._of_run | of_batch | self._given)
            if callable(getattr(batch, "start", None)):
                batch = batch.start(rows)
            self._batches += batch is self._made
        if all(hasattr(batch, name) for name in ("reads_tokens", "forced", "mask")):
            return CheckedRuns(self, batch, rows.prompt_width)
        if not callable(batch):
            what = f"its start returned a {type(batch).__name__}, which cannot be called with input_ids and scores"
            raise self.error(f"failed: {what}")
        return CheckedBatch(self, batch, rows.prompt_width)


class CheckedBatch(LogitsProcessor):
    """Calls a user's batch processor and checks what it returns."""

    def __init__(self, user: UserProcessor, batch: Any, prompt_width: int) -> None:
        self._user, self._batch = user, batch
        self._prompt_width, self._verify, self._rows = prompt_width, user.verify, 0
        self.looked_ns = 0  # the time of the checks that only an untimed pass makes

    @property
    def masked_logits(self) -> list[int] | None:
        with self._user.blamed("failed to give its masked logits:"):
            counted = getattr(self._batch, "masked_logits", None)
            counts = None if counted is None else [int(count) for count in counted]
        rows = self._rows  # 0 before the first step
        if counts is not None and rows and (len(counts) != rows or min(counts, default=0) < 0):
            raise self._user.error(f"has masked_logits {shortened(str(counts))}, not one count for each of {rows} rows")
        return counts

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._rows = scores.shape[0]
        step = input_ids.shape[1] - self._prompt_width
        return self._checked(lambda: self._batch(input_ids, scores), scores, step, range(self._rows), input_ids)

    def _checked(self, call: Callable[[], Any], scores: Tensor, step: int, rows: Sequence[int], ids: Any) -> Tensor:
        """What `call` makes of `scores`, which are those of the batch's rows `rows`; `ids`: the tokens so far."""
        expected = tuple(scores.shape), scores.dtype, scores.device
        at = f"rows {rows[0]} to {rows[-1]}" if len(rows) > 1 else f"row {rows[0]}"
        with self._user.blamed("raised", f", at step {step}, {at}", step):
            out = call()
        if not isinstance(out, Tensor):
            raise self._error(f"returned a {type(out).__name__}, not a tensor of scores", step, at)
        found = tuple(out.shape), out.dtype, out.device
        for what, got, right in zip(("shape", "dtype", "device"), found, expected, strict=True):
            if got != right:
                raise self._error(f"returned scores of {what} {got}, not {right}", step, at)
        if self._verify:
            began = settled_ns(out.device)
            broken = (out.isnan().any(-1) | out.isposinf().any(-1)).nonzero().flatten().tolist()
            if broken:
                raise self._error("returned NaN or +inf among the scores", step, f"row {rows[broken[0]]}")
            empty = out.isneginf().all(-1).nonzero().flatten().tolist()
            if empty:
                ends = (self._user.target.eos, self._user.target.pad)
                ended = step > 0 and ids is not None and int(ids[empty[0], -1]) in ends
                where = f"row {rows[empty[0]]}" + (", which had ended: leave it the end token" if ended else "")
                raise self._error(f"masked all {out.shape[1]:,} tokens", step, where)
            self.looked_ns += settled_ns(out.device) - began
        return out

    def _error(self, what: str, step: int, where: str) -> ProcessorError:
        return self._user.error(f"{what}, at step {step}, {where}", step)


class CheckedRuns(CheckedBatch):
    """A user's batch processor with `ForcedRuns`."""

    _step = 0

    @property
    def reads_tokens(self) -> bool:
        return bool(self._batch.reads_tokens)

    def forced(self, row: int, position: int, chosen: int | None) -> list[int]:
        where = f"at position {position} of row {row}"
        with self._user.blamed(f"failed to give what is forced {where}:"):
            tokens = [operator.index(token) for token in self._batch.forced(row, position, chosen)]
        for token in set(tokens).difference(range(self._user.target.logits_width)):
            raise self._user.error(f"forces {token} {where}, which is no token's id")
        return tokens

    def mask(self, scores: Tensor, places: Places) -> Tensor:
        self._rows = max(self._rows, max(places.rows) + 1)
        step, self._step = self._step, self._step + 1
        return self._checked(lambda: self._batch.mask(scores, places), scores, step, places.rows, None)


def told(problem: BaseException, builder: str) -> str:
    """Kind, text and, where it is known, place of an error: `ValueError: too few (mine.py line 12)`.

    The place is the innermost frame outside of molprof and installed packages; for an installed processor, the
    innermost frame of its own package. `builder`: `package.module:builder`.
    """
    text = shortened(" ".join(str(problem).split()), _MOST_TEXT)
    what = f"{type(problem).__name__}: {text}" if text else type(problem).__name__
    libraries = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
    own, installed = None, None
    for frame, line in traceback.walk_tb(problem.__traceback__):
        path, package = Path(frame.f_code.co_filename), str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == "molprof" or path.name.startswith("<"):  # no file: the import system, or generated code
            continue
        place = f"{path.name} line {line}"
        if not (_INSTALLED.intersection(path.parts) or any(map(path.is_relative_to, libraries))):
            own = place
        elif package == builder.partition(":")[0].partition(".")[0]:
            installed = place
    return what if (own or installed) is None else f"{what} ({own or installed})"
