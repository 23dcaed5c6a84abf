"""Two engines on the same prefixes: tokens that only one of them allows, and which of the two is right.

A token is another cut where the text still begins the instance. It is right if a text that the engine goes on to write
is valid by the validator. The end is right if the text so far is valid, and not shown if only a format of it is wrong;
else it is wrong. A control character in a string is wrong, for no JSON has one. What no text shows is not shown.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from molprof.common.errors import MolprofError
from molprof.common.process import OK
from molprof.common.text import shortened
from molprof.profiler.bench.mask_engine import REFUSED, FollowedRow, Judged, MaskEngine, judged
from molprof.profiler.bench.schemas import SchemaFile
from molprof.profiler.capture.answers import json_value, schema_validator
from molprof.profiler.models.target import TokenBytes

# Of a schema and engine: tokens that are looked into, and of a prefix.
_MOST_TOKENS, _MOST_HERE = 24, 2
# Texts that are written after a token, and the tokens of each.
_TRIES, _LONGEST = 6, 96
# Masks of more tokens hold free text; what they allow is not looked at one by one.
_SMALL = 32
# Tokens before one, enough to see how the tokenizer cuts.
_BEFORE = 24
_MOST_TEXT, _MOST_BEFORE = 120, 24
# What Python's json says of a character that no string of JSON holds, whatever follows it.
_CONTROL = "Invalid control character"
_FORMAT = "a format is wrong"  # which an engine may ignore
_CLOSING = (b'"', b"}", b"]", b'"}', b'"]', b"}]")

Matchers = Callable[[], FollowedRow]


def compared(item: SchemaFile, one: MaskEngine, other: MaskEngine) -> dict[str, Any]:
    """Compare the tokens that two engines of one target allow along the valid instances of a schema.

    The result is what `MaskedSchema` reads.
    """
    engines = (one, other)
    result: dict[str, Any] = {"name": item.name, "status": OK, "message": None}
    try:
        instances = [each for each in judged(item, one.target) if each.valid]
        valid = schema_validator(item.schema, item.name, "molprof bench masks")
    except Exception as problem:  # no schema, or one that the validator cannot follow
        return {**result, "status": "not judged", "message": shortened(str(problem), _MOST_TEXT)}
    try:
        matchers = [engine.compile(item.whole) for engine in engines]
    except MolprofError as problem:
        return {**result, "status": REFUSED, "message": shortened(str(problem), _MOST_TEXT)}
    names = [engine.name for engine in engines]
    counts: Counter[str] = Counter(prefixes=0, differing=0)
    only, looked, unusual = (Counter(dict.fromkeys(names, 0)) for _ in range(3))
    differences: list[dict[str, Any]] = []
    seen: Counter[Any] = Counter()
    lengths = np.array(list(map(len, one.target.table.pieces)))
    for each in instances:
        states = [matcher_of() for matcher_of in matchers]
        for position, token in enumerate((*each.tokens, one.target.eos)):
            sets = []
            for engine, matcher in zip(engines, states, strict=True):
                matcher.fill()
                sets.append(matcher.bits())
                if sets[-1].sum() <= _SMALL:
                    few = sets[-1].nonzero()[0].tolist()
                    counted, odd = _unusual(one.target, each.tokens[max(0, position - _BEFORE) : position], few)
                    looked[engine.name] += counted
                    unusual[engine.name] += odd
            alone = [(mine > theirs).nonzero()[0] for mine, theirs in (sets, sets[::-1])]
            counts["prefixes"] += 1
            counts["differing"] += any(map(len, alone))
            for engine, matcher_of, mine in zip(engines, matchers, alone, strict=True):
                only[engine.name] += len(mine)
                mine = mine[mine < len(lengths)]
                for index in mine[np.argsort(lengths[mine], kind="stable")][:_MOST_HERE].tolist():
                    key = engine.name, each.states[position], each.keywords[position], index
                    if not seen[key] and seen[engine.name] < _MOST_TOKENS:
                        seen.update((key, engine.name))
                        differences.append(_difference(each, position, index, engine, matcher_of, valid))
            if token == one.target.eos or not all(bits[token] for bits in sets):
                break
            for matcher in states:
                matcher.accept(token)
    return {
        **result, **counts, "only": dict(only), "looked": dict(looked), "unusual": dict(unusual),
        "differences": differences,
    }  # fmt: skip


def _difference(
    each: Judged, index: int, token: int, engine: MaskEngine, matchers: Matchers, validator: Any
) -> dict[str, Any]:
    table, before = engine.target.table, each.tokens[:index]
    text, whole = table.join([*before, token]), each.instance.text
    if token == engine.target.eos:
        why = table.join(before)
        flaw = _flaw(why, validator)
        verdict = "right" if flaw is None else "not shown" if flaw == _FORMAT else "wrong"
    elif whole.startswith(text):
        verdict, why = "another cut", whole
    else:
        closing = closing_tokens(table)
        tries = (written(engine, matchers, [*before, token], closing, seed) for seed in range(_TRIES))
        texts = [ending for ending in tries if ending is not None]
        flaws = {ending: _flaw(ending, validator) for ending in texts}
        why = next((ending for ending in texts if flaws[ending] is None), texts[0] if texts else "no end found")
        verdict = "not shown" if flaws.get(why, "") is not None else "right"
        if any(flaw is not None and flaw.startswith(_CONTROL) for flaw in flaws.values()) and text[-1] < " ":
            verdict = "wrong"
    return {
        "instance": each.instance.description, "prefix": table.join(before)[-_MOST_BEFORE:],
        "token": "(end)" if token == engine.target.eos else table.join([token]), "allowed_by": engine.name,
        "verdict": verdict, "why": why if len(why) <= _MOST_TEXT else f"...{why[-_MOST_TEXT:]}",
    }  # fmt: skip


def _flaw(text: str, validator: Any) -> str | None:
    """Return why a text is not valid; None if it is."""
    try:
        valid = validator.valid(json_value(text))
        return None if valid else _FORMAT if valid is None else "not of the schema"
    except (ValueError, RecursionError) as problem:
        return str(problem)


def closing_tokens(table: TokenBytes) -> list[int]:
    """Return tokens that close strings, objects and arrays."""
    return [index for index, piece in enumerate(table.pieces) if piece in _CLOSING]


def written(engine: MaskEngine, matchers: Matchers, tokens: list[int], closing: list[int], seed: int) -> str | None:
    """Return a text that the engine allows after these tokens and that closes soon; None if none was found."""
    choose, table, eos = random.Random(seed), engine.target.table, engine.target.eos
    matcher = matchers()
    for token in tokens:
        matcher.fill()
        matcher.accept(token)
    chosen = [*tokens]
    for _ in range(_LONGEST):
        matcher.fill()
        if matcher.allows(eos):
            return str(table.join(chosen))
        bits = matcher.bits()
        allowed = bits.nonzero()[0].tolist()
        some = [index for index in choose.sample(allowed, min(len(allowed), _SMALL)) if table.of(index)]
        visible = [index for index in some if not table.of(index).isspace()]
        ends = [index for index in closing if bits[index]]
        # Not always: a text may have a least length.
        few = ends if ends and choose.random() < 0.8 else visible or some
        if not few:
            return None
        chosen.append(choose.choice(few))
        matcher.accept(chosen[-1])
    return None


def _unusual(target: Any, before: list[int], allowed: list[int]) -> tuple[int, int]:
    """Return how many allowed tokens end whole characters, and how many of these the tokenizer would not choose.

    Each ends a text whose last tokens are `before`. The tokenizer cuts that text in other tokens.
    """
    head = target.table.join(before)
    texts = {index: head + target.table.join([index]) for index in allowed if index != target.eos}
    whole = {index: text for index, text in texts.items() if "\ufffd" not in text}
    cut = target.tokenizer.backend_tokenizer.encode_batch([head, *whole.values()], add_special_tokens=False)
    if not whole or cut[0].ids != before:
        return 0, 0
    return len(whole), sum(encoding.ids != [*before, index] for index, encoding in zip(whole, cut[1:], strict=True))
