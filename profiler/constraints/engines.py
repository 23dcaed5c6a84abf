"""Constraint engines of other packages: XGrammar, llguidance, outlines-core and lm-format-enforcer.

An engine allows every cut of a text into tokens. It reads the chosen tokens back and makes masks on the host.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerFast

from molprof.common.errors import MissingExtraError, RunError, UsageError
from molprof.common.text import shortened
from molprof.profiler.constraints.base import BatchProcessor, Laps, Rows
from molprof.profiler.constraints.tags import Format, format_of
from molprof.profiler.models.device import on_gpu, pinned
from molprof.profiler.models.target import ProcessorTarget
from molprof.profiler.molecules.prompts import Constraint

_HINT = "write it otherwise, or use another --processor; grammars are GBNF for xgrammar, Lark for llguidance"
_PLACE = re.compile(r"^\[[0-9:]+\] \S+:\d+: ")  # time and source that XGrammar puts before its errors


class EngineProcessor(ABC):
    """A processor that uses an engine's package.

    What all rows have is compiled once, when it is made; the grammars of a batch in the phase `compile`.

    Args:
        grammar: what all rows have, or the text of the grammar of each row of a batch.
        opening: a token that is forced before what the grammar describes.
        closing: the token that ends what the grammar describes; the end token follows it. Default: the end token.

    Raises:
        MissingExtraError: the package is not installed.
    """

    name: str
    notation: str = ""  # of a grammar, if it takes one: `ebnf` (GBNF) or `lark`
    module: str = ""  # what the package is imported as, where that is not `name`
    package_name: str = ""  # what pip calls it, where that is not `name`: then no extra has it
    modules: tuple[str, ...] = ()  # of the package, besides the one of its name
    refusal: type[Exception] = Exception  # what the package raises for a constraint that it does not take
    placeholder: str
    needs_templates = False
    fixed_length = False
    compiles = True
    longest: Any = None  # see `Processor`
    by_masks = False  # a matcher moves on only from a mask that it has filled

    def __init__(
        self,
        target: ProcessorTarget,
        grammar: str | Constraint | Callable[[Rows], Sequence[str]],
        opening: int | None = None,
        closing: int | None = None,
    ) -> None:
        began = time.perf_counter_ns()
        package = self.package_name or self.name
        try:
            for module in self.modules:
                importlib.import_module(module)
            self.package: Any = importlib.import_module(self.module or self.name)
        except ImportError as problem:
            extra = None if self.package_name else self.name
            raise MissingExtraError(package, extra, f"the processor {self.name!r}") from problem
        self.target = target
        self.opening, self.closing = opening, target.eos if closing is None else closing
        imported = time.perf_counter_ns()
        kept_ns = self.prepare(target)
        prepared = time.perf_counter_ns()
        # See `Processor`.
        self.made_ns = {"package": imported - began, "vocabulary": prepared - imported if kept_ns is None else kept_ns}
        self.parameters: dict[str, Any] = {"version": version(package)}
        # The grammars of a batch are compiled anew each time: timed passes must pay for them.
        self._of_rows = grammar if callable(grammar) else None
        if not callable(grammar):
            constraint = grammar if isinstance(grammar, Constraint) else Constraint("grammar", grammar)
            self.parameters[constraint.kind] = constraint.text
            self._matcher = self.compile(constraint)
            self.made_ns["constraint"] = time.perf_counter_ns() - prepared

    @abstractmethod
    def prepare(self, target: ProcessorTarget) -> int | None:
        """Make what depends on the vocabulary alone; return the time it took, ns, even if an earlier call made it."""

    @abstractmethod
    def matchers(self, constraint: Constraint) -> Callable[[], Any]:
        """Return a function that makes matchers at the beginning of the text, which give the allowed next tokens."""

    @abstractmethod
    def accept(self, matcher: Any, token: int) -> None:
        """Move a matcher past a token that its mask allowed."""

    @abstractmethod
    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        """Fill each matcher's row of `mask`, int32 (rows, ceil(logits_width / 32)), on the host."""

    def compile(self, constraint: Constraint) -> Callable[[], Any]:
        """Return a function that makes matchers at the text's beginning. Raises RunError if the package refuses."""
        try:
            return self.matchers(constraint)
        except self.refusal as problem:
            text = shortened(_PLACE.sub("", str(problem)), 300)
            raise RunError(f"{self.name} cannot compile the {constraint.kind}: {text}", _HINT) from problem

    def use_threads(self, count: int | None) -> bool:
        """Set the number of threads that fill a batch's masks, None: the package's default; return False if unable."""
        return count in (None, 1)

    def apply(self, scores: Tensor, mask: Tensor) -> None:
        """Set the scores whose bit is 0 to -inf, in place."""
        if on_gpu(scores.device):
            allowed = (mask[:, :, None] >> torch.arange(32, device=mask.device) & 1).flatten(1)[:, : scores.shape[1]]
        else:
            words = mask.numpy().view(np.uint8)
            allowed = torch.from_numpy(np.unpackbits(words, axis=1, count=scores.shape[1], bitorder="little"))
        scores.masked_fill_(allowed == 0, -math.inf)

    def start(self, rows: Rows) -> BatchProcessor:
        """Start a batch: a matcher for each row."""
        if self._of_rows is None:
            makers = [self._matcher for _ in rows.prompts]
        else:
            makers = [self.compile(Constraint("grammar", text)) for text in self._of_rows(rows)]
        return self.begin(makers, rows.prompt_width, self.target.device)

    def begin(self, compiled: Sequence[Callable[[], Any]], prompt_width: int, device: torch.device) -> _EngineBatch:
        """Return the processor of a batch whose rows have results of `compile`, for scores on a device."""
        return _EngineBatch(self, compiled, prompt_width, device)


class _EngineBatch(LogitsProcessor):
    """A batch's matchers. Each step reads the chosen tokens back, and copies a mask to the device."""

    masked_logits: ClassVar[None] = None  # counting the bits would cost more than making them

    def __init__(
        self, engine: EngineProcessor, makers: Sequence[Callable[[], Any]], prompt_width: int, device: torch.device
    ) -> None:
        self._engine, self._makers = engine, makers
        self._matchers = [make() for make in makers]
        self._read = prompt_width
        # The token that each row is forced to write: its opening token first, the end token after its closing one.
        self._forced: list[int | None] = [engine.opening for _ in makers]
        words = -(-engine.target.logits_width // 32)
        self._mask = pinned(torch.zeros((len(makers), words), dtype=torch.int32), device)
        self.laps = Laps("read", "accept", "fill", "apply")

    def seek(self, row: int, tokens: Sequence[int]) -> None:
        """Set the positions of the rows, as `BatchProcessor` says."""
        self._matchers[row], self._forced[row] = self._makers[row](), self._engine.opening
        for token in tokens:
            if self._engine.by_masks:
                self._engine.fill([self._matchers[row]], [row], self._mask)
            self._advance(row, token)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        clock = time.perf_counter_ns
        began = clock()
        columns = input_ids[:, self._read :].T.tolist()
        read = clock()
        for tokens in columns:
            for row, token in enumerate(tokens):
                self._advance(row, token)
        self._read = input_ids.shape[1]
        accepted = clock()
        free = [row for row, token in enumerate(self._forced) if token is None]
        bits = self._mask.numpy().view(np.uint32)
        for row, token in enumerate(self._forced):
            if token is not None:
                bits[row] = 0
                bits[row, token // 32] = 1 << (token % 32)
        if free:
            self._engine.fill([self._matchers[row] for row in free], free, self._mask)
        filled = clock()
        self._engine.apply(scores, self._mask.to(scores.device, non_blocking=True))
        self.laps.add(began, read, accepted, filled, clock())
        return scores

    def _advance(self, row: int, token: int) -> None:
        engine = self._engine
        if self._forced[row] is not None:
            self._forced[row] = None if token == engine.opening else engine.target.eos
        elif token == engine.closing:
            self._forced[row] = engine.target.eos
        else:
            engine.accept(self._matchers[row], token)


class XGrammar(EngineProcessor):
    """XGrammar's compiler and matchers."""

    name, notation, refusal = "xgrammar", "ebnf", RuntimeError

    def prepare(self, target: ProcessorTarget) -> int | None:
        """Make the tokenizer's vocabulary, and return the time that it took, ns."""
        self._vocabulary = self.package.TokenizerInfo.from_huggingface(target.tokenizer, vocab_size=target.logits_width)
        # No cache between molecules: it would never hit, and timed passes must pay for what they compile.
        self.keep_compiled(False)
        self._filler = self.package.BatchGrammarMatcher()
        return None

    def keep_compiled(self, keep: bool) -> None:
        """Begin a new compiler, which keeps what it compiles, also the parts that grammars share, or nothing."""
        self._compiler = self.package.GrammarCompiler(self._vocabulary, cache_enabled=keep)

    def matchers(self, constraint: Constraint) -> Callable[[], Any]:
        """Compile a constraint, and return the maker of its matchers."""
        kind = {"schema": "json_schema", "choices": "grammar"}.get(constraint.kind, constraint.kind)
        text = constraint.grammar(self.notation)
        if kind == "structural_tag":
            text = json.dumps({"type": kind, "format": format_of(text)})
        compiled = getattr(self._compiler, f"compile_{kind}")(text)
        return lambda: self.package.GrammarMatcher(compiled, override_stop_tokens=self.closing)

    def accept(self, matcher: Any, token: int) -> None:
        """Advance a matcher by a token."""
        matcher.accept_token(token)

    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        """Write the masks of the matchers into rows of `mask`."""
        self._filler.batch_fill_next_token_bitmask(list(matchers), mask, list(rows))

    def use_threads(self, count: int | None) -> bool:
        """Fill masks by so many threads; None: the package's default."""
        self._filler = self.package.BatchGrammarMatcher(max_threads=count or "auto")
        return True

    def apply(self, scores: Tensor, mask: Tensor) -> None:
        """Apply the mask to the scores in place."""
        self.package.apply_token_bitmask_inplace(scores, mask)


@functools.lru_cache(maxsize=4)
def _lexer(tokenizer: PreTrainedTokenizerFast, width: int, closing: int) -> tuple[Any, int]:
    """Return llguidance's form of a tokenizer, and the time to make it, ns: some seconds."""
    make, began = importlib.import_module("llguidance.hf").from_tokenizer, time.perf_counter_ns()
    return make(tokenizer, n_vocab=width, eos_token=closing), time.perf_counter_ns() - began


class LLGuidance(EngineProcessor):
    """llguidance's lexer and matchers."""

    name, notation, refusal = "llguidance", "lark", RuntimeError
    modules = ("llguidance.hf", "llguidance.torch")

    def prepare(self, target: ProcessorTarget) -> int | None:
        """Make the tokenizer's lexer, and return the time that it took, ns."""
        self._tokenizer, took_ns = _lexer(target.tokenizer, target.logits_width, self.closing)
        self._executor = self.package.LLExecutor()
        return took_ns

    def matchers(self, constraint: Constraint) -> Callable[[], Any]:
        """Compile a constraint, and return a function that makes its matchers."""
        text, matcher_of = constraint.grammar(self.notation), self.package.LLMatcher
        if constraint.kind == "schema":
            text = matcher_of.grammar_from_json_schema(text)
        elif constraint.kind == "regex":
            text = matcher_of.grammar_from_regex(text)
        elif constraint.kind == "structural_tag":
            text = self._tags(format_of(text))
        matcher = matcher_of(self._tokenizer, text)
        self._check(matcher)
        copy: Callable[[], Any] = matcher.deep_copy
        return copy

    def accept(self, matcher: Any, token: int) -> None:
        """Advance a matcher by a token."""
        if not matcher.consume_token(token):
            self._check(matcher)

    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        """Write the masks of the matchers into rows of `mask`."""
        pairs = list(zip(matchers, rows, strict=True))
        self.package.torch.fill_next_token_bitmask_par(self._executor, pairs, mask)

    def use_threads(self, count: int | None) -> bool:
        """Fill masks by so many threads."""
        self._executor = self.package.LLExecutor(num_threads=count)
        return True

    def apply(self, scores: Tensor, mask: Tensor) -> None:
        """Apply the mask to the scores in place."""
        if on_gpu(scores.device):
            self.package.torch.apply_token_bitmask_inplace(scores, mask)
        else:  # there the package would compile its own way first, which requires a C++ compiler
            super().apply(scores, mask)

    def _tags(self, form: Format) -> str:
        """Return the grammar of triggered tags of JSON, as vLLM makes it. Raises RuntimeError for other tags."""
        if form["type"] != "triggered_tags" or form.get("at_least_one") or form.get("stop_after_first"):
            raise RuntimeError("it takes triggered tags alone, none of which must come")
        tags = []
        for tag in form["tags"]:
            content, end = tag["content"], tag["end"]
            trigger = next(filter(str(tag["begin"]).startswith, form["triggers"]), None)
            if trigger is None or not isinstance(end, str) or "json_schema" not in content or "style" in content:
                raise RuntimeError(f"it takes no tag such as {tag['begin']}: a trigger, JSON of a schema and an end")
            grammar = self.package.LLMatcher.grammar_from_json_schema(content["json_schema"])
            tags.append(self.package.StructTag(trigger=trigger, begin=tag["begin"], grammar=grammar, end=end))
        return str(self.package.StructTag.to_grammar(tags))

    def _check(self, matcher: Any) -> None:
        if matcher.is_error():
            raise RunError(f"llguidance: {matcher.get_error()}", _HINT)


class _WithoutGrammar(EngineProcessor):
    """Takes no grammar and no structural tag; choices are a regular expression."""

    def compile(self, constraint: Constraint) -> Callable[[], Any]:
        if constraint.kind in ("grammar", "structural_tag"):
            kind = constraint.kind.replace("_", " ")
            raise UsageError(f"{self.name} takes no {kind}", hint="--processor xgrammar or llguidance")
        if constraint.kind == "choices":
            constraint = Constraint("regex", "|".join(map(re.escape, constraint.text.split(","))))
        return super().compile(constraint)


class Outlines(_WithoutGrammar):
    """An engine that compiles a regular expression, also of a JSON schema, into a table of all its states."""

    name, module, package_name = "outlines", "outlines_core", "outlines-core"

    def prepare(self, target: ProcessorTarget) -> int | None:
        """Make the vocabulary of the package, and return the time that it took, ns."""
        tokens: dict[bytes, list[int]] = {}
        for token, piece in _texts(target):
            tokens.setdefault(piece, []).append(token)
        self._vocabulary = self.package.Vocabulary(self.closing, tokens)
        return None

    def matchers(self, constraint: Constraint) -> Callable[[], Any]:
        """Compile a constraint, and return a function that makes its matchers."""
        of_schema = importlib.import_module("outlines_core.json_schema").build_regex_from_schema
        text = of_schema(constraint.text) if constraint.kind == "schema" else constraint.text
        index = self.package.Index(text, self._vocabulary)
        return lambda: self.package.Guide(index)

    def accept(self, matcher: Any, token: int) -> None:
        """Advance a matcher by a token."""
        matcher.advance(token, return_tokens=False)

    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        """Write the masks of the matchers into rows of `mask`."""
        for matcher, row in zip(matchers, rows, strict=True):
            matcher.write_mask_into(mask[row].data_ptr(), mask.shape[1], mask.element_size())


class LMFormatEnforcer(_WithoutGrammar):
    """A character parser in Python on a tree of all tokens. A matcher is the parser, and the tokens so far."""

    name, module, package_name = "lm-format-enforcer", "lmformatenforcer", "lm-format-enforcer"
    by_masks = True  # a prefix of which it made no mask is a new text

    def prepare(self, target: ProcessorTarget) -> int | None:
        """Make the vocabulary of the package, and return the time that it took, ns."""
        data = importlib.import_module("lmformatenforcer.tokenenforcer").TokenEnforcerTokenizerData
        tokens = [(token, piece.decode(errors="replace"), False) for token, piece in _texts(target)]

        def decode(ids: list[int]) -> str:
            return str(target.tokenizer.decode(ids)).rstrip("\ufffd")

        self._data = data(tokens, decode, self.closing, True, target.logits_width)
        return None

    def matchers(self, constraint: Constraint) -> Callable[[], Any]:
        """Compile a constraint, and return a function that makes its matchers."""

        def parser() -> Any:
            if constraint.kind == "schema":
                return self.package.JsonSchemaParser(json.loads(constraint.text))
            return self.package.RegexParser(constraint.text)

        parser()  # a matcher has its own, and its own cache
        return lambda: (self.package.TokenEnforcer(self._data, parser()), [])

    def accept(self, matcher: Any, token: int) -> None:
        """Advance a matcher by a token."""
        matcher[1].append(token)

    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        """Write the masks of the matchers into rows of `mask`."""
        for (enforcer, tokens), row in zip(matchers, rows, strict=True):
            mask[row] = torch.as_tensor(enforcer.get_allowed_tokens(tokens).allowed_tokens)


def _texts(target: ProcessorTarget) -> list[tuple[int, bytes]]:
    """Return the tokens that are text, and their bytes."""
    special = target.table.special
    return [(token, piece) for token, piece in enumerate(target.table.pieces) if piece and token not in special]


ENGINES: dict[str, type[EngineProcessor]] = {
    engine.name: engine for engine in (XGrammar, LLGuidance, Outlines, LMFormatEnforcer)
}
