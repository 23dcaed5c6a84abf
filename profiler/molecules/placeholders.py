"""Fit of placeholders: tokens that coordinates need, FREE positions given, and the best one. No torch."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from molprof.common.errors import UsageError
from molprof.common.text_format import DEFAULT, TextFormat
from molprof.profiler.molecules.smiles import COORDINATE_DECIMALS, Position, block, truncated

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    AnyTokenizer = Tokenizer | PreTrainedTokenizerFast

# The atoms beside a block, so that a token may merge with them as it does in a template.
_ATOM = "[C]"
# Decimals beyond the format's: where digits share tokens, one more token takes several.
_EXTRA_DECIMALS = 3
_NUMBER = r"-?[0-9]+\.[0-9]+"
# A beginning of x,y,z: complete numbers with their separators, then part of the next.
_BEGINNING = r"((?:{number}{separator}){{0,2}})(-?(?:([0-9]+)(\.([0-9]*))?)?)"
_SIGNS = (("", "", ""), ("-", "", ""), ("", "-", "-"), ("-", "-", "-"))


@dataclass(frozen=True)
class Placeholder:
    """The fit of a placeholder to coordinates."""

    text: str  # what a template writes in a block
    tokens: int  # FREE positions that it gives a block
    coordinates: int  # number of coordinates measured
    too_short: int  # coordinates that need more tokens, which a constraint would cut
    mean_drift_tokens: float  # tokens given minus tokens needed
    mean_absolute_drift_tokens: float


def best_placeholder(
    tokenizer: AnyTokenizer,
    coordinates: Iterable[Position],
    decimals: int = COORDINATE_DECIMALS,
    form: TextFormat = DEFAULT,
) -> Placeholder:
    """Return the placeholder that cuts no coordinate and leaves the fewest positions over.

    Among equals the plainest text.

    Where every candidate cuts some, the one that cuts the fewest: too short costs accuracy, too long only time. Raises
    UsageError without coordinates, or where every candidate merges with its brackets.
    """
    return best(fits(tokenizer, coordinates, decimals, form))


def best(placeholders: Sequence[Placeholder]) -> Placeholder:
    """Return the one that cuts the fewest coordinates, and of those leaves the fewest positions over."""
    return min(placeholders, key=lambda fit: (fit.too_short, fit.mean_absolute_drift_tokens))


def closest(placeholders: Sequence[Placeholder]) -> Placeholder:
    """Return the one with the least mean |drift|."""
    return min(placeholders, key=lambda fit: (fit.mean_absolute_drift_tokens, fit.too_short))


def fit(text: str, tokens: int, needed: Sequence[int]) -> Placeholder:
    """Return the fit of a placeholder with `tokens` FREE positions to blocks that need `needed` tokens each."""
    drift = [tokens - need for need in needed]
    cut = sum(value < 0 for value in drift)
    return Placeholder(text, tokens, len(drift), cut, statistics.fmean(drift), statistics.fmean(map(abs, drift)))


def free_positions(
    tokenizer: AnyTokenizer, placeholders: Sequence[str], form: TextFormat = DEFAULT
) -> list[int | None]:
    """Return FREE positions that each placeholder gives a block; None if it merges with a bracket and so is forced."""
    return [None if merged else free for free, merged in _tokens_inside(tokenizer, placeholders, form)]


def needed_tokens(tokenizer: AnyTokenizer, blocks: Sequence[str], form: TextFormat = DEFAULT) -> list[int]:
    """Return tokens that each block's text needs between forced brackets, with which no token can merge."""
    return [free + merged for free, merged in _tokens_inside(tokenizer, blocks, form)]


def candidates(integer_digits: int, decimals: int) -> list[str]:
    """Return the placeholders to try, plainest first.

    Numbers have 1 to `integer_digits` digits before the point and 1 to `decimals` + 3 after it. All three have one
    shape, or the last one or two have another. A minus stands nowhere, before the first, before the others, or before
    all.
    """
    sizes = itertools.product(range(1, integer_digits + 1), range(1, decimals + _EXTRA_DECIMALS + 1))
    shapes = ["0" * before + "." + "0" * after for before, after in sizes]
    order_of = {}
    for first, last, count, signs in itertools.product(shapes, shapes, (1, 2), _SIGNS):
        numbers = [first] * (3 - count) + [last] * count
        text = ",".join(sign + number for sign, number in zip(signs, numbers, strict=True))
        beyond = any(len(shape.split(".")[1]) > decimals for shape in (first, last))
        order_of[text] = (beyond, first != last, text.count("-"), len(text), text)
    return sorted(order_of, key=order_of.__getitem__)


def offsets(tokenizer: AnyTokenizer, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return (begin, end) in characters of each token of each text; no special tokens are added."""
    if not texts:  # transformers' wrapper takes no empty batch
        return []
    if (batch := getattr(tokenizer, "encode_batch", None)) is not None:
        return [encoded.offsets for encoded in batch(list(texts), add_special_tokens=False)]
    # transformers' wrapper also resets the padding that an earlier batch may have set.
    wrapped: Any = tokenizer
    return list(wrapped(list(texts), add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"])


def fits(
    tokenizer: AnyTokenizer, coordinates: Iterable[Position], decimals: int, form: TextFormat
) -> list[Placeholder]:
    """Return the fit of the plainest candidate for each number of tokens, plainest first.

    Errors as for `best_placeholder`.
    """
    texts = [block(position, decimals, form) for position in coordinates]
    if not texts:
        raise UsageError("there are no coordinates to fit a placeholder to", hint="at least one (x, y, z)")
    needed = needed_tokens(tokenizer, texts, form)
    digits = max(len(number.lstrip("-").split(".")[0]) for text in texts for number in text.split(form.separator))
    family = [form.numbers(text) for text in candidates(digits, decimals)]
    plainest: dict[int, str] = {}
    for text, tokens in zip(family, free_positions(tokenizer, family, form), strict=True):
        if tokens is not None:
            plainest.setdefault(tokens, text)
    if not plainest:
        raise UsageError("every placeholder merges with its brackets in this tokenizer", hint="use another tokenizer")
    return [fit(text, tokens, needed) for tokens, text in plainest.items()]


def _tokens_inside(tokenizer: AnyTokenizer, blocks: Sequence[str], form: TextFormat) -> list[tuple[int, int]]:
    """Return per block the tokens inside its brackets, and how many of its ends (0 to 2) merge with a bracket."""
    counts = []
    before, after = _ATOM + form.block_open, form.block_close + _ATOM
    for text, spans in zip(blocks, offsets(tokenizer, [f"{before}{text}{after}" for text in blocks]), strict=True):
        start, end = len(before), len(before) + len(text)
        inside = [(begin, stop) for begin, stop in spans if start <= begin < stop <= end]
        merged = 2 if not inside else (inside[0][0] > start) + (inside[-1][1] < end)
        counts.append((len(inside), merged if text else 0))
    return counts


def needs(
    tokenizer: AnyTokenizer,
    blocks: Sequence[str | None],
    decimals: int = COORDINATE_DECIMALS,
    form: TextFormat = DEFAULT,
) -> list[int | None]:
    """Return tokens that each generated block's coordinates need between forced brackets.

    For a block that begins with `x,y,z`, these three as the format writes them. For a beginning of that (`1.0,2.`),
    the shortest text that it could become. None for any other block, and for one that was never closed (None).
    """
    texts = [None if text is None else needed_text(text, decimals, form) for text in blocks]
    counts = iter(needed_tokens(tokenizer, [text for text in texts if text is not None], form))
    return [None if text is None else next(counts) for text in texts]


def needed_text(block: str, decimals: int = COORDINATE_DECIMALS, form: TextFormat = DEFAULT) -> str | None:
    """Return the shortest text in the format that says what the block says, or could have become.

    >>> needed_text("5.7990,-0.2748,-0.9587abra"), needed_text("1.0,2."), needed_text("1,2,3")
    ('5.799,-0.2748,-0.9587', '1.0,2.0,0.0', None)
    """
    separator = form.separator
    whole = form.triple.match(block)
    if whole is not None:
        return separator.join(truncated(number, decimals) for number in whole.groups())
    begun = re.fullmatch(_BEGINNING.format(number=_NUMBER, separator=re.escape(separator)), block)
    if begun is None:
        return None
    before, last, digits, point, fraction = begun.groups()
    last += "0.0" if not digits else ".0" if not point else "0" if not fraction else ""
    numbers = [*before.split(separator)[:-1], last, "0.0", "0.0"][:3]
    return separator.join(truncated(number, decimals) for number in numbers)
