"""An engine's masks, one row at a time, and instances as tokens. Imports torch only when an engine is made."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from molprof.profiler.bench.cases import ENGINES
from molprof.profiler.bench.schemas import Instance, SchemaFile, parts
from molprof.profiler.capture.answers import schema_validator

REFUSED = "refused"  # a schema, by the engine


class Engine:
    """An engine by its name in `ENGINES`, with one row of masks, int32 (1, ceil(logits width / 32)), on the host."""

    def __init__(self, name: str, target: Any) -> None:
        import torch

        module, _, kind = ENGINES[name][0].partition(":")
        made = getattr(importlib.import_module(f"molprof.profiler.{module}"), kind)
        self._engine = made(target, lambda rows: ())  # it compiles nothing yet
        self.name, self.target, self.version = name, target, str(self._engine.parameters["version"])
        self._mask = torch.zeros((1, -(-target.logits_width // 32)), dtype=torch.int32)
        self._words = self._mask.numpy().view("uint32")[0]

    def compile(self, schema: Any) -> Callable[[], Any]:
        """What makes matchers. Raises MolprofError where the engine refuses the schema."""
        whole = importlib.import_module("molprof.profiler.constraints.engines").Whole
        matchers: Callable[[], Any] = self._engine.compile(whole("schema", json.dumps(schema)))
        return matchers

    def fill(self, matcher: Any) -> None:
        self._engine.fill([matcher], [0], self._mask)
        self._filled = matcher

    def use_threads(self, count: int | None) -> bool:
        """See `EngineProcessor`."""
        return bool(self._engine.use_threads(count))

    def filler(self, rows: int) -> Callable[[Sequence[Any]], None]:
        """What fills the masks of so many matchers at once."""
        mask, places = self._mask.new_zeros((rows, self._mask.shape[1])), list(range(rows))
        return lambda matchers: self._engine.fill(matchers, places, mask)

    def accept(self, matcher: Any, token: int) -> None:
        self._engine.accept(matcher, token)

    def allows(self, token: int) -> bool:
        """Whether the mask that was filled last allows a token."""
        return bool(self.bits()[token])

    def bits(self) -> Any:
        """That mask with a byte for each token, uint8 (logits width,), 1 where it is allowed."""
        import numpy as np

        if hasattr(self._engine, "bits"):  # it writes none
            return self._engine.bits(self._filled)
        return np.unpackbits(self._words.view(np.uint8), count=self.target.logits_width, bitorder="little")


@dataclass(frozen=True)
class Judged:
    """An instance, its tokens as the tokenizer cuts it, and what the validator says of it."""

    instance: Instance
    valid: bool | None  # None: only a format is wrong
    tokens: list[int]
    states: list[str]  # of the text that each token begins in, and `end`
    keywords: list[str]  # of the schema, the same


def judged(item: SchemaFile, target: Any) -> Iterator[Judged]:
    """The instances of a schema. Raises MolprofError where it is no schema."""
    validator = schema_validator(item.schema, item.name, "molprof bench masks")
    for instance in item.instances:
        cut = target.tokenizer(instance.text, add_special_tokens=False, return_offsets_mapping=True)
        labels = [part[1:] for part in parts(instance.data, item.schema) for _ in part[0]]
        begins = [labels[begin] for begin, _ in cut["offset_mapping"]]
        states, keywords = zip(*begins, ("end", "end"), strict=True)
        yield Judged(instance, validator.valid(instance.data), cut["input_ids"], [*states], [*keywords])
