"""What a coordinate takes in tokens, what a placeholder gives, and the placeholder that fits real coordinates best.

Needs a tokenizer and numbers; no model and no torch.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from molprof.common.errors import UsageError
from molprof.profiler.molecules.smiles import COORDINATE_DECIMALS, block

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    AnyTokenizer = Tokenizer | PreTrainedTokenizerFast

Position = tuple[float, float, float]

# A block stands between an atom and the next one, so that what merges with the brackets does so here too.
_BEFORE, _AFTER = "[C]<", ">[C]"
# Decimals that a placeholder may have beyond the format's: where digits share tokens, one more token takes several.
_EXTRA_DECIMALS = 3
_NUMBER = r"-?[0-9]+\.[0-9]+"
_TRIPLE = re.compile(",".join([_NUMBER] * 3))
# Any beginning of x,y,z: whole numbers with their commas, then part of one more.
_BEGINNING = re.compile(rf"((?:{_NUMBER},){{0,2}})(-?(?:([0-9]+)(\.([0-9]*))?)?)")
_SIGNS = (("", "", ""), ("-", "", ""), ("", "-", "-"), ("-", "-", "-"))


@dataclass(frozen=True)
class Placeholder:
    """A placeholder, and how it fits the coordinates that it was chosen for.

    Attributes:
        text: what a template writes between `<` and `>`.
        tokens: FREE positions that it gives a block.
        coordinates: how many coordinates it was measured with.
        too_short: those that need more tokens than it gives: a constraint would cut them.
        mean_drift_tokens: mean of its tokens minus those needed.
        mean_absolute_drift_tokens: mean of the same without sign.
    """

    text: str
    tokens: int
    coordinates: int
    too_short: int
    mean_drift_tokens: float
    mean_absolute_drift_tokens: float


def best_placeholder(
    tokenizer: AnyTokenizer,
    coordinates: Iterable[Position],
    decimals: int = COORDINATE_DECIMALS,
) -> Placeholder:
    """The placeholder that cuts no coordinate and leaves the fewest positions over.

    Criterion: the fewest coordinates that need more tokens than it gives (none, where the family has one that long);
    among those the least mean |drift|, which is then the mean number of tokens to fill up; among equals the plainest
    text. Too short costs accuracy, too long costs time: that is why the first comes first. `closest_placeholder`
    weighs both alike.

    Args:
        tokenizer: any that gives character offsets.
        coordinates: (x, y, z) in Angstrom, of molecules as they will be generated.
        decimals: of the format.

    Raises:
        UsageError: no coordinates, or no candidate stays apart from its brackets.
    """
    return min(_fits(tokenizer, coordinates, decimals), key=lambda fit: (fit.too_short, fit.mean_absolute_drift_tokens))


def closest_placeholder(
    tokenizer: AnyTokenizer,
    coordinates: Iterable[Position],
    decimals: int = COORDINATE_DECIMALS,
) -> Placeholder:
    """The placeholder with the least mean |drift|, a token too few counting as much as one too many.

    Arguments and errors are those of `best_placeholder`.
    """
    return min(_fits(tokenizer, coordinates, decimals), key=lambda fit: (fit.mean_absolute_drift_tokens, fit.too_short))


def fit(text: str, tokens: int, needed: Sequence[int]) -> Placeholder:
    """How a placeholder of so many FREE positions fits blocks that need so many tokens each."""
    drift = [tokens - need for need in needed]
    return Placeholder(
        text,
        tokens,
        len(drift),
        sum(value < 0 for value in drift),
        statistics.fmean(drift),
        statistics.fmean(map(abs, drift)),
    )


def free_positions(tokenizer: AnyTokenizer, placeholders: Sequence[str]) -> list[int | None]:
    """FREE positions that each placeholder gives a block; None where it merges with a bracket.

    A sign that merges with the `<` before it would be forced together with it.
    """
    return [None if merged else free for free, merged in _inside(tokenizer, placeholders)]


def needed_tokens(tokenizer: AnyTokenizer, blocks: Sequence[str]) -> list[int]:
    """Tokens that each block's text needs between brackets that are forced.

    What merges with a bracket where the whole text is tokenized cannot do so where the bracket is forced by itself,
    so it takes a token of its own.
    """
    return [free + merged for free, merged in _inside(tokenizer, blocks)]


def candidates(integer_digits: int, decimals: int) -> list[str]:
    """The family that is searched, plainest first: the format's decimals, few shapes, few signs, few characters.

    Numbers of 1 to `integer_digits` digits before the point and 1 to `decimals` + 3 behind it. All three have one
    shape, or the last one or two have another. Minus signs: none, before the first number, before the other two, or
    before each.
    """
    shapes = [
        "0" * before + "." + "0" * after
        for before in range(1, integer_digits + 1)
        for after in range(1, decimals + _EXTRA_DECIMALS + 1)
    ]
    found = {}
    for first, last, count, signs in itertools.product(shapes, shapes, (1, 2), _SIGNS):
        numbers = [first] * (3 - count) + [last] * count
        text = ",".join(sign + number for sign, number in zip(signs, numbers, strict=True))
        beyond = any(len(shape.split(".")[1]) > decimals for shape in (first, last))
        found[text] = (beyond, first != last, text.count("-"), len(text), text)
    return sorted(found, key=found.__getitem__)


def offsets(tokenizer: AnyTokenizer, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Where each token of each text begins and ends, in characters; no special tokens are added."""
    if not texts:  # transformers' wrapper takes no empty batch
        return []
    batch = getattr(tokenizer, "encode_batch", None)
    if batch is not None:
        return [encoded.offsets for encoded in batch(list(texts), add_special_tokens=False)]
    # transformers' wrapper also resets the padding that an earlier batch may have set.
    wrapped: Any = tokenizer
    return list(wrapped(list(texts), add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"])


def _fits(tokenizer: AnyTokenizer, coordinates: Iterable[Position], decimals: int) -> list[Placeholder]:
    """Every usable candidate with how it fits, plainest first; of those with the same tokens only the plainest."""
    texts = [block(position, decimals) for position in coordinates]
    if not texts:
        raise UsageError("there are no coordinates to fit a placeholder to", hint="at least one (x, y, z)")
    needed = needed_tokens(tokenizer, texts)
    digits = max(len(number.lstrip("-").split(".")[0]) for text in texts for number in text.split(","))
    family = candidates(digits, decimals)
    plainest: dict[int, str] = {}
    for text, tokens in zip(family, free_positions(tokenizer, family), strict=True):
        if tokens is not None:
            plainest.setdefault(tokens, text)
    if not plainest:
        raise UsageError("every placeholder merges with its brackets in this tokenizer", hint="use another tokenizer")
    return [fit(text, tokens, needed) for tokens, text in plainest.items()]


def _inside(tokenizer: AnyTokenizer, blocks: Sequence[str]) -> list[tuple[int, int]]:
    """Per block, tokens that lie inside its brackets, and ends of it (0 to 2) that merge with a bracket."""
    found = []
    for text, spans in zip(blocks, offsets(tokenizer, [f"{_BEFORE}{text}{_AFTER}" for text in blocks]), strict=True):
        start, end = len(_BEFORE), len(_BEFORE) + len(text)
        inside = [(begin, stop) for begin, stop in spans if start <= begin < stop <= end]
        merged = 2 if not inside else (inside[0][0] > start) + (inside[-1][1] < end)
        found.append((len(inside), merged if text else 0))
    return found


def needs(
    tokenizer: AnyTokenizer, blocks: Sequence[str | None], decimals: int = COORDINATE_DECIMALS
) -> list[int | None]:
    """Tokens that each block's coordinates need between forced brackets.

    Of a block that begins with `x,y,z`: of those three as the format writes them. Of one that only could become it
    (`1.0,2.`): of the shortest text that it could become, the least number that would have done. None of any other,
    and of a block that was never closed (given as None).

    Args:
        blocks: the text between `<` and `>`, junk and all.
        decimals: of the format.
    """
    texts = [None if text is None else needed_text(text, decimals) for text in blocks]
    counts = iter(needed_tokens(tokenizer, [text for text in texts if text is not None]))
    return [None if text is None else next(counts) for text in texts]


def needed_text(block: str, decimals: int = COORDINATE_DECIMALS) -> str | None:
    """The shortest text in the format that says what the block says, or could have become.

    >>> needed_text("5.7990,-0.2748,-0.9587abra"), needed_text("1.0,2."), needed_text("1,2,3")
    ('5.799,-0.2748,-0.9587', '1.0,2.0,0.0', None)
    """
    whole = _TRIPLE.match(block)
    if whole is not None:
        return _formatted(whole.group(), decimals)
    begun = _BEGINNING.fullmatch(block)
    if begun is None:
        return None
    before, last, digits, point, fraction = begun.groups()
    last += "0.0" if not digits else ".0" if not point else "0" if not fraction else ""
    return _formatted(before + last + ",0.0" * (2 - before.count(",")), decimals)


def _formatted(numbers: str, decimals: int) -> str:
    """As the format writes numbers: truncated, no zeros that say nothing. Text, for they may be of any length."""
    return ",".join(_number(number, decimals) for number in numbers.split(","))


def _number(text: str, decimals: int) -> str:
    whole, _, fraction = text.lstrip("-").partition(".")
    value = f"{whole.lstrip('0') or '0'}.{fraction[:decimals].rstrip('0') or '0'}"
    return f"-{value}" if text.startswith("-") and value != "0.0" else value
