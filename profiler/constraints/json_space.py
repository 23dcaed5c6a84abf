"""White space that each engine's form of a JSON schema allows between the tokens of JSON.

A schema does not say. The engines' defaults differ: some allow any amount, so that a model may write white space until
the token limit. Each installed engine is asked by itself, byte by byte, without a tokenizer of a model.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

# More spaces in a row are as many as one likes.
MOST = 1024
_END = "</s>"


class Space(Struct, frozen=True):
    """The white space that one engine allows."""

    engine: str
    installed: bool
    most: int | None  # spaces in a row between tokens of JSON, MOST: as many as one likes; None: not found out
    problem: str | None = None  # why not


def spaces(schema: str, shortest: str) -> list[Space]:
    """Return the white space that `table` and each other engine allow in the shortest text of a JSON schema.

    An engine's error is kept.
    """
    results = [Space("table", True, 0)]
    for name, (package, acceptor_of) in _ENGINES.items():
        try:
            accepts = acceptor_of(importlib.import_module(package), schema)
            results.append(Space(name, True, most_spaces(accepts, shortest)))
        except ModuleNotFoundError:
            results.append(Space(name, False, None))
        except Exception as problem:  # an engine's own refusal of a schema has no common type
            text = str(problem).strip().splitlines()
            results.append(Space(name, True, None, text[0] if text else type(problem).__name__))
    return results


def most_spaces(accepts: Callable[[str], bool], text: str) -> int | None:
    """Return the most spaces in a row, up to MOST, that are accepted between any two tokens of a JSON text.

    None where the text itself is not accepted: then it says nothing.
    """
    if not accepts(text):
        return None
    indexes = _places(text)
    low, high = 0, MOST + 1  # accepted, not accepted
    while high - low > 1:
        middle = (low + high) // 2
        is_accepted = any(accepts(f"{text[:index]}{' ' * middle}{text[index:]}") for index in indexes)
        low, high = (middle, high) if is_accepted else (low, middle)
    return low


def _places(text: str) -> list[int]:
    """Return the indexes of a JSON text that may have white space: next to punctuation, outside strings."""
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', lambda match: "." * len(match[0]), text)
    return [index for index in range(1, len(text)) if outside[index - 1] in "{}[],:" or outside[index] in "{}[],:"]


def _xgrammar(package: Any, schema: str) -> Callable[[str], bool]:
    vocabulary = [bytes([byte]) for byte in range(256)] + [_END.encode()]
    info = package.TokenizerInfo(vocabulary, vocab_type=package.VocabType.RAW, stop_token_ids=[256])
    grammar = package.GrammarCompiler(info, max_threads=1).compile_json_schema(schema)

    def accepts(text: str) -> bool:
        matcher = package.GrammarMatcher(grammar)
        return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(256)

    return accepts


def _llguidance(package: Any, schema: str) -> Callable[[str], bool]:
    tokenizer, grammar = package.LLTokenizer("byte"), package.LLMatcher.grammar_from_json_schema(schema)

    def accepts(text: str) -> bool:
        matcher = package.LLMatcher(tokenizer, grammar)
        return all(map(matcher.consume_token, tokenizer.tokenize_str(text))) and bool(matcher.is_accepting())

    return accepts


def _outlines(package: Any, schema: str) -> Callable[[str], bool]:
    pattern = re.compile(package.build_regex_from_schema(schema))
    return lambda text: pattern.fullmatch(text) is not None


def _lm_format_enforcer(package: Any, schema: str) -> Callable[[str], bool]:
    return partial(_is_parsed, package.JsonSchemaParser(json.loads(schema)))


def _is_parsed(parser: Any, text: Sequence[str]) -> bool:
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return bool(parser.can_end())


_ENGINES: dict[str, tuple[str, Callable[[Any, str], Callable[[str], bool]]]] = {
    "xgrammar": ("xgrammar", _xgrammar),
    "llguidance": ("llguidance", _llguidance),
    "outlines": ("outlines_core.json_schema", _outlines),
    "lm-format-enforcer": ("lmformatenforcer.jsonschemaparser", _lm_format_enforcer),
}
