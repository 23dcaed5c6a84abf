"""`xgrammar`: the molecule's grammar, enforced by the package XGrammar."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from torch import Tensor

from molprof.common.errors import MissingExtraError
from molprof.profiler.models.target import Target
from molprof.profiler.processors.constraint import Constraint, Engine, EngineProcessor


def make(target: Target) -> EngineProcessor:
    """The processor.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        import xgrammar
    except ImportError as problem:
        raise MissingExtraError("xgrammar", "xgrammar", "the processor 'xgrammar'") from problem
    return EngineProcessor("xgrammar", target, _XGrammar(xgrammar, target), {"version": version("xgrammar")})


class _XGrammar(Engine):
    def __init__(self, package: Any, target: Target) -> None:
        self._package = package
        vocabulary = package.TokenizerInfo.from_huggingface(target.tokenizer, vocab_size=target.logits_width)
        # No cache between molecules: generated once each, they would never hit it, and timed passes have to pay
        # for what they compile.
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
