"""An engine's masks, made and applied as in a capture, by row or by batch; and instances as tokens.

Imports torch only when an engine is made.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from molprof import __version__
from molprof.common.answer_counts import STOOD
from molprof.common.errors import MolprofError, RunError
from molprof.profiler.bench.cases import ENGINES
from molprof.profiler.bench.schemas import Instance, SchemaFile, parts
from molprof.profiler.capture.answers import schema_validator
from molprof.profiler.constraints.tags import format_of, token_letters
from molprof.profiler.molecules.prompts import Constraint

_STATES = {STOOD["free"]: "no tag open", STOOD["tag"]: "tag", STOOD["inside"]: "in a tag"}
REFUSED = "refused"  # a schema, by the engine


class MaskEngine:
    """An engine by its name in `ENGINES`: the processor of a capture, which compiles nothing yet."""

    def __init__(self, name: str, target: Any) -> None:
        module, _, kind = ENGINES[name][0].partition(":")
        processor_class = getattr(importlib.import_module(f"molprof.profiler.constraints.{module}"), kind)
        self.processor = processor_class(target, lambda rows: ())
        self.name, self.target = name, target
        self.version = str(self.processor.parameters.get("version", __version__))
        self.vocabulary_ns: int | None = self.processor.made_ns.get("vocabulary")

    def compile(self, whole: Constraint) -> CompiledConstraint:
        """Return the constraint for its tokens. Raises MolprofError where the engine refuses it."""
        try:
            compiled = self.processor.compile(whole)
            # What the first batch would make, as a processor of one constraint makes it before all passes.
            self.processor.begin([compiled], 0, self.target.device)
        except MolprofError:
            raise
        except ValueError as problem:  # of tables
            raise RunError(f"no {self.name} is made: {problem}") from problem
        return CompiledConstraint(self.processor, compiled, self.target)


@dataclass(frozen=True)
class CompiledConstraint:
    """A constraint compiled by an engine."""

    processor: Any
    compiled: Any
    target: Any

    def __call__(self) -> FollowedRow:
        """Return a row at the beginning of the text."""
        return FollowedRow(self, 1, self.target.device)

    def batch(self, rows: int, device: Any) -> FollowedRow:
        """Start a batch of so many rows."""
        return FollowedRow(self, rows, device)


class FollowedRow:
    """A batch of rows, usually one, without a model: the calls of a capture, on scores that are 0."""

    def __init__(self, compiled_constraint: CompiledConstraint, rows: int, device: Any) -> None:
        import torch

        self._torch, self._device = torch, device
        self.batch = compiled_constraint.processor.begin([compiled_constraint.compiled] * rows, 0, device)
        self._ids = torch.zeros((rows, 64), dtype=torch.int64, device=device)
        self._scores = torch.zeros((rows, compiled_constraint.target.logits_width), device=device)
        self._written = 0
        self._out = self._scores

    def accept(self, *tokens: int) -> None:
        """Add a token to each row, which the next mask accepts."""
        if self._written == self._ids.shape[1]:
            self._ids = self._torch.cat([self._ids, self._torch.zeros_like(self._ids)], dim=1)
        self._ids[:, self._written] = self._torch.tensor(tokens, device=self._device)
        self._written += 1

    def fill(self) -> dict[str, int]:
        """Accept, fill and apply; return their times, ns. On a GPU, apply ends when the device is done."""
        self._scores.zero_()
        self._settle()
        self._out = self.batch(self._ids[:, : self._written], self._scores)
        returned = time.perf_counter_ns()
        self._settle()
        times: dict[str, int] = self.batch.laps.last_ns
        if self._device.type != "cpu":
            times["apply"] += time.perf_counter_ns() - returned
        return times

    def bits(self) -> Any:
        """Return the tokens that the first row's last mask allows, uint8 (logits width,)."""
        return self._out[0].isfinite().cpu().numpy().astype("uint8")

    def allows(self, token: int) -> bool:
        """Return True if that mask allows a token."""
        return bool(self._out[0, token].isfinite())

    def _settle(self) -> None:
        if self._device.type != "cpu":
            self._torch.cuda.synchronize(self._device)


@dataclass(frozen=True)
class Judged:
    """An instance, its tokens by the tokenizer, and the validator's verdict on it."""

    instance: Instance
    valid: bool | None  # None: only a format is wrong, or nothing judges it
    tokens: list[int]
    states: list[str]  # of the text that each token begins in, and `end`
    keywords: list[str]  # of the schema, the same


def judged(item: SchemaFile, target: Any) -> Iterator[Judged]:
    """Yield the instances of a schema, or of another constraint. Raises MolprofError for an invalid schema."""
    of_schema = item.whole.kind == "schema"
    validator = schema_validator(item.schema, item.name, "molprof bench masks") if of_schema else None
    for instance in item.instances:
        cut = target.tokenizer(instance.text, add_special_tokens=False, return_offsets_mapping=True)
        if validator is None:
            words: list[str] = [item.whole.kind] * (len(cut["input_ids"]) + 1)
            states = ["text"] * len(words)
            if item.whole.kind == "structural_tag":  # as if each mask left two of three tokens
                tokens, form = [*cut["input_ids"], target.eos], format_of(item.whole.text)
                letters = token_letters(tokens, [2] * len(tokens), 3, target.table, form)
                states = [_STATES[letter] for letter in letters]
            yield Judged(instance, instance.declared, cut["input_ids"], states, words)
            continue
        labels = [part[1:] for part in parts(instance.data, item.schema) for _ in part[0]]
        begins = [labels[begin] for begin, _ in cut["offset_mapping"]]
        places = [*begins, ("end", "end")]
        states, keywords = ([place[index] for place in places] for index in range(2))
        yield Judged(instance, validator.valid(instance.data), cut["input_ids"], states, keywords)
