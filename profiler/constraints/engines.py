"""`xgrammar` and `llguidance`: a molecule's grammar as text, enforced by the packages of these names.

The language is that of `grammar`, but an engine allows every cut of a text into tokens. For an engine, special tokens
are no text: tags that are single tokens are forced here, and the closing one is its end of text.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerFast

from molprof.common.errors import MissingExtraError, RunError
from molprof.profiler.constraints.base import BatchProcessor
from molprof.profiler.constraints.free_length import WHOLE_DIGITS
from molprof.profiler.models.device import on_gpu, pinned
from molprof.profiler.models.target import Target
from molprof.profiler.molecules.smiles import COORDINATE_DECIMALS
from molprof.profiler.molecules.template import PLACEHOLDER, Template

_WHOLE, _FRACTION = f"[0-9]{{1,{WHOLE_DIGITS}}}", f"[0-9]{{1,{COORDINATE_DECIMALS}}}"


@dataclass(frozen=True)
class Constraint:
    """What a row may write."""

    opening: int | None  # token that is forced first; None where the tag is ordinary text
    texts: tuple[str, ...]  # before, between and after the coordinates
    closing: int  # token that ends the text: the closing tag's, else the end token
    separator: str = ","

    def ebnf(self) -> str:
        """The text between opening and closing in GBNF."""
        sequence = " c ".join(map(json.dumps, self.texts))
        between = json.dumps(self.separator)
        return f'root ::= {sequence}\nc ::= n {between} n {between} n\nn ::= "-"? {_WHOLE} "." {_FRACTION}\n'

    def lark(self) -> str:
        """The same in Lark."""
        sequence = " c ".join(map(json.dumps, self.texts))
        between = json.dumps(self.separator)
        return f"start: {sequence}\nc: N {between} N {between} N\nN: /-?{_WHOLE}\\.{_FRACTION}/\n"


def constraint(template: Template, target: Target) -> Constraint:
    """The constraint of a template's molecule."""
    opening, closing = tag_tokens(target)
    form = target.form
    texts = form.gaps(template.text)
    if opening is not None:
        texts[0], texts[-1] = texts[0].removeprefix(form.opening), texts[-1].removesuffix(form.closing)
    return Constraint(opening, tuple(texts), closing, form.separator)


def tag_tokens(target: Target) -> tuple[int | None, int]:
    """Opening and closing token of a `Constraint`."""
    vocabulary = target.vocabulary
    tags = target.form.opening, target.form.closing
    if all(vocabulary.get(tag) in target.table.special for tag in tags):
        return vocabulary[tags[0]], vocabulary[tags[1]]
    return None, target.eos


class EngineProcessor(ABC):
    """A processor that asks a package. Compiling is part of the phase `template`; `parameters` has its mean time.

    Raises MissingExtraError where the package is not installed.
    """

    name: str
    modules: tuple[str, ...] = ()  # of the package, besides the one of its name
    placeholder: str
    needs_templates = True
    fixed_length = False

    def __init__(self, target: Target) -> None:
        try:
            for module in self.modules:
                importlib.import_module(module)
            self.package: Any = importlib.import_module(self.name)
        except ImportError as problem:
            raise MissingExtraError(self.name, self.name, f"the processor {self.name!r}") from problem
        self.target = target
        self.placeholder = target.form.numbers(PLACEHOLDER)
        self._times_ns: list[int] = []
        self.parameters: dict[str, Any] = {"version": version(self.name)}

    @abstractmethod
    def compile(self, constraint: Constraint) -> Any:
        """A matcher, which knows which tokens may follow, at the beginning of the text."""

    @abstractmethod
    def accept(self, matcher: Any, token: int) -> None:
        """Move a matcher past a token that its mask allowed."""

    @abstractmethod
    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        """Write each matcher's bits into its row of `mask`, int32 (rows, ceil(logits_width / 32)), on the host."""

    @abstractmethod
    def apply(self, scores: Tensor, mask: Tensor) -> None:
        """Set the scores whose bit is 0 to -inf, in place."""

    def longest(self, template: Template) -> int:
        """One token per character, in the worst cut."""
        number = 1 + WHOLE_DIGITS + 1 + COORDINATE_DECIMALS
        texts = constraint(template, self.target).texts
        return sum(map(len, texts)) + (len(texts) - 1) * (3 * number + 2 * len(self.target.form.separator)) + 3

    def start(self, templates: Sequence[Template], prompt_width: int) -> BatchProcessor:
        rows = [constraint(template, self.target) for template in templates]
        matchers = []
        for row in rows:
            began = time.perf_counter_ns()
            matchers.append(self.compile(row))
            self._times_ns.append(time.perf_counter_ns() - began)
        self.parameters |= {
            "compile_ns_per_molecule": sum(self._times_ns) // len(self._times_ns),
            "compiled": len(self._times_ns),
        }
        return _EngineBatch(self, rows, matchers, prompt_width)


class _EngineBatch(LogitsProcessor):
    """A batch's matchers. Each step reads the chosen tokens back, and copies a mask to the device."""

    masked_logits = None  # counting the bits would cost more than making them

    def __init__(
        self, engine: EngineProcessor, rows: Sequence[Constraint], matchers: list[Any], prompt_width: int
    ) -> None:
        self._engine, self._rows, self._matchers = engine, rows, matchers
        self._read = prompt_width
        target = engine.target
        self._eos = target.eos
        # The token that each row is forced to write: its opening token first, the end token after its closing one.
        self._forced: list[int | None] = [row.opening for row in rows]
        words = -(-target.logits_width // 32)
        self._mask = pinned(torch.zeros((len(rows), words), dtype=torch.int32), target.device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        for tokens in input_ids[:, self._read :].T.tolist():
            for row, token in enumerate(tokens):
                self._advance(row, token)
        self._read = input_ids.shape[1]
        free = [row for row, token in enumerate(self._forced) if token is None]
        bits = self._mask.numpy().view(np.uint32)
        for row, token in enumerate(self._forced):
            if token is not None:
                bits[row] = 0
                bits[row, token // 32] = 1 << (token % 32)
        if free:
            self._engine.fill([self._matchers[row] for row in free], free, self._mask)
        self._engine.apply(scores, self._mask.to(scores.device, non_blocking=True))
        return scores

    def _advance(self, row: int, token: int) -> None:
        if self._forced[row] is not None:
            self._forced[row] = None if token == self._rows[row].opening else self._eos
        elif token == self._rows[row].closing:
            self._forced[row] = self._eos
        else:
            self._engine.accept(self._matchers[row], token)


class XGrammar(EngineProcessor):
    name = "xgrammar"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        vocabulary = self.package.TokenizerInfo.from_huggingface(target.tokenizer, vocab_size=target.logits_width)
        # No cache between molecules: it would never hit, and timed passes must pay for what they compile.
        self._compiler = self.package.GrammarCompiler(vocabulary, cache_enabled=False)
        self._filler = self.package.BatchGrammarMatcher()

    def compile(self, constraint: Constraint) -> Any:
        compiled = self._compiler.compile_grammar(constraint.ebnf())
        return self.package.GrammarMatcher(compiled, override_stop_tokens=constraint.closing)

    def accept(self, matcher: Any, token: int) -> None:
        matcher.accept_token(token)

    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        self._filler.batch_fill_next_token_bitmask(list(matchers), mask, list(rows))

    def apply(self, scores: Tensor, mask: Tensor) -> None:
        self.package.apply_token_bitmask_inplace(scores, mask)


@functools.lru_cache(maxsize=4)
def _lexer(tokenizer: PreTrainedTokenizerFast, width: int, closing: int) -> Any:
    """llguidance's form of a tokenizer, which takes 2 s to make."""
    return importlib.import_module("llguidance.hf").from_tokenizer(tokenizer, n_vocab=width, eos_token=closing)


class LLGuidance(EngineProcessor):
    name = "llguidance"
    modules = ("llguidance.hf", "llguidance.torch")

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._tokenizer = _lexer(target.tokenizer, target.logits_width, tag_tokens(target)[1])
        self._executor = self.package.LLExecutor()

    def compile(self, constraint: Constraint) -> Any:
        matcher = self.package.LLMatcher(self._tokenizer, constraint.lark())
        self._check(matcher)
        return matcher

    def accept(self, matcher: Any, token: int) -> None:
        if not matcher.consume_token(token):
            self._check(matcher)

    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        pairs = list(zip(matchers, rows, strict=True))
        self.package.torch.fill_next_token_bitmask_par(self._executor, pairs, mask)

    def apply(self, scores: Tensor, mask: Tensor) -> None:
        if on_gpu(scores.device):
            self.package.torch.apply_token_bitmask_inplace(scores, mask)
            return
        # On a CPU the package would compile its own way first, which requires a C++ compiler.
        bits = np.unpackbits(mask.numpy().view(np.uint8), axis=1, count=scores.shape[1], bitorder="little")
        scores.masked_fill_(torch.from_numpy(bits) == 0, -math.inf)

    def _check(self, matcher: Any) -> None:
        if matcher.is_error():
            raise RunError(f"llguidance: {matcher.get_error()}")
