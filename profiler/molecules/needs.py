"""How many tokens the coordinates of generated blocks need: what drift is measured against."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from molprof.profiler.molecules.placeholders import needed_tokens
from molprof.profiler.molecules.smiles import COORDINATE_DECIMALS

if TYPE_CHECKING:
    from molprof.profiler.molecules.placeholders import AnyTokenizer

_NUMBER = r"-?[0-9]+\.[0-9]+"
_TRIPLE = re.compile(",".join([_NUMBER] * 3))
# Any beginning of x,y,z: whole numbers with their commas, then part of one more.
_BEGINNING = re.compile(rf"((?:{_NUMBER},){{0,2}})(-?(?:([0-9]+)(\.([0-9]*))?)?)")


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
