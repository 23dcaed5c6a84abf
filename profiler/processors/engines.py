"""`xgrammar` and `llguidance`: the molecule's grammar, enforced by the packages of these names."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from molprof.common.errors import MissingExtraError, RunError
from molprof.profiler.models.target import Target
from molprof.profiler.processors.constraint import Constraint, Engine, EngineProcessor, tag_tokens


def make_xgrammar(target: Target) -> EngineProcessor:
    """Masks by XGrammar.

    Raises:
        MissingExtraError: the package is not installed.
    """
    return EngineProcessor("xgrammar", target, _XGrammar(_package("xgrammar"), target))


def make_llguidance(target: Target) -> EngineProcessor:
    """Masks by llguidance.

    Raises:
        MissingExtraError: the package is not installed.
    """
    package = _package("llguidance", "llguidance.hf", "llguidance.torch")
    return EngineProcessor("llguidance", target, _LLGuidance(package, target))


def _package(name: str, *modules: str) -> Any:
    try:
        for module in modules:
            importlib.import_module(module)
        return importlib.import_module(name)
    except ImportError as problem:
        raise MissingExtraError(name, name, f"the processor {name!r}") from problem


class _XGrammar(Engine):
    def __init__(self, package: Any, target: Target) -> None:
        self._package = package
        vocabulary = package.TokenizerInfo.from_huggingface(target.tokenizer, vocab_size=target.logits_width)
        # No cache between molecules: it would never hit, and timed passes must pay for what they compile.
        self._compiler = package.GrammarCompiler(vocabulary, cache_enabled=False)
        self._filler = package.BatchGrammarMatcher()

    def compile(self, constraint: Constraint) -> Any:
        compiled = self._compiler.compile_grammar(constraint.ebnf())
        return self._package.GrammarMatcher(compiled, override_stop_tokens=constraint.closing)

    def accept(self, matcher: Any, token: int) -> None:
        matcher.accept_token(token)

    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        self._filler.batch_fill_next_token_bitmask(list(matchers), mask, list(rows))

    def apply(self, scores: Tensor, mask: Tensor) -> None:
        self._package.apply_token_bitmask_inplace(scores, mask)


class _LLGuidance(Engine):
    def __init__(self, package: Any, target: Target) -> None:
        self._package = package
        _, closing = tag_tokens(target)
        self._tokenizer = package.hf.from_tokenizer(target.tokenizer, n_vocab=target.logits_width, eos_token=closing)
        self._executor = package.LLExecutor()

    def compile(self, constraint: Constraint) -> Any:
        matcher = self._package.LLMatcher(self._tokenizer, constraint.lark())
        self._check(matcher)
        return matcher

    def accept(self, matcher: Any, token: int) -> None:
        if not matcher.consume_token(token):
            self._check(matcher)

    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        pairs = list(zip(matchers, rows, strict=True))
        self._package.torch.fill_next_token_bitmask_par(self._executor, pairs, mask)

    def apply(self, scores: Tensor, mask: Tensor) -> None:
        if scores.is_cuda:
            self._package.torch.apply_token_bitmask_inplace(scores, mask)
            return
        # On a CPU the package would compile its own way first, which requires a C++ compiler.
        bits = np.unpackbits(mask.numpy().view(np.uint8), axis=1, count=scores.shape[1], bitorder="little")
        scores.masked_fill_(torch.from_numpy(bits) == 0, -math.inf)

    def _check(self, matcher: Any) -> None:
        if matcher.is_error():
            raise RunError(f"llguidance: {matcher.get_error()}")
