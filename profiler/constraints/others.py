"""outlines-core and lm-format-enforcer: schemas, regular expressions and choices; no masks for a batch, no grammar."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from molprof.common.errors import RunError, UsageError
from molprof.common.text import shortened
from molprof.profiler.constraints.engines import EngineProcessor, LLGuidance
from molprof.profiler.models.target import Target
from molprof.profiler.molecules.prompts import Whole


class _Other(EngineProcessor):
    def apply(self, scores: Tensor, mask: Tensor) -> None:
        LLGuidance.apply(self, scores, mask)  # type: ignore[arg-type]

    def compile(self, grammar: Whole) -> Callable[[], Any]:
        if grammar.kind == "grammar":
            raise UsageError(f"{self.name} takes no grammar", hint="--processor xgrammar or llguidance")
        if grammar.kind == "choices":
            grammar = Whole("regex", "|".join(map(re.escape, grammar.text.split(","))))
        try:
            return self.made(grammar)
        except Exception as problem:  # each package has its own
            text = f"{self.name} cannot compile the {grammar.kind}: {shortened(str(problem), 300)}"
            raise RunError(text, hint="write it otherwise, or use another --processor") from problem

    def made(self, grammar: Whole) -> Callable[[], Any]:
        raise NotImplementedError


class Outlines(_Other):
    """A regular expression, also of a JSON schema, as a table of all its states, made when it is compiled."""

    name, module, package_name = "outlines", "outlines_core", "outlines-core"

    def prepare(self, target: Target) -> int | None:
        pieces: dict[bytes, list[int]] = {}
        for token, piece in enumerate(target.table.pieces):
            if piece and token not in target.table.special:
                pieces.setdefault(piece, []).append(token)
        self._vocabulary = self.package.Vocabulary(self.closing, pieces)
        return None

    def made(self, grammar: Whole) -> Callable[[], Any]:
        of_schema = importlib.import_module("outlines_core.json_schema").build_regex_from_schema
        text = of_schema(grammar.text) if grammar.kind == "schema" else grammar.text
        index = self.package.Index(text, self._vocabulary)
        return lambda: self.package.Guide(index)

    def accept(self, matcher: Any, token: int) -> None:
        matcher.advance(token, return_tokens=False)

    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        for matcher, row in zip(matchers, rows, strict=True):
            matcher.write_mask_into(mask[row].data_ptr(), mask.shape[1], mask.element_size())


class LMFormatEnforcer(_Other):
    """A parser of characters in Python, which walks a tree of all tokens. A matcher is it, and the tokens so far."""

    name, module, package_name = "lm-format-enforcer", "lmformatenforcer", "lm-format-enforcer"
    by_masks = True  # a prefix of which it made no mask is a new text

    def prepare(self, target: Target) -> int | None:
        made = importlib.import_module("lmformatenforcer.tokenenforcer").TokenEnforcerTokenizerData
        table, decode = target.table, target.tokenizer.decode
        tokens = [
            (token, piece.decode(errors="replace"), False)
            for token, piece in enumerate(table.pieces)
            if piece and token not in table.special
        ]
        self._data = made(
            tokens, lambda ids: str(decode(ids)).rstrip("\ufffd"), self.closing, True, target.logits_width
        )
        return None

    def made(self, grammar: Whole) -> Callable[[], Any]:
        def parser() -> Any:
            if grammar.kind == "schema":
                return self.package.JsonSchemaParser(json.loads(grammar.text))
            return self.package.RegexParser(grammar.text)

        parser()  # a matcher has its own, and its own cache
        return lambda: (self.package.TokenEnforcer(self._data, parser()), [])

    def accept(self, matcher: Any, token: int) -> None:
        matcher[1].append(token)

    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        for (enforcer, tokens), row in zip(matchers, rows, strict=True):
            mask[row] = torch.as_tensor(enforcer.get_allowed_tokens(tokens).allowed_tokens)


OTHERS: dict[str, type[EngineProcessor]] = {engine.name: engine for engine in (Outlines, LMFormatEnforcer)}
