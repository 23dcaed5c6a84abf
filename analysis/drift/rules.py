"""Counting rules for junk coordinates: the strict one, and others in use.

Published rates of one model differ threefold by their rules. A new rule is an entry in `RULES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_NUMBER = r"-?[0-9]+\.[0-9]+"
_TRIPLE = re.compile(",".join([_NUMBER] * 3))
_OTHER = re.compile(r"[^-0-9.,]")
_LATIN = re.compile("[A-Za-z]")


@dataclass(frozen=True)
class BlockText:
    """A coordinate block: the text between its brackets, and how many of its tokens are junk and filler."""

    text: str
    junk: int
    filler: int


@dataclass(frozen=True)
class Rule:
    """A way to count: its name, what it counts, and whether it counts a block."""

    name: str
    meaning: str
    counts: Callable[[BlockText], bool]


def _not_floats(block: BlockText) -> bool:
    # float() also reads 1, 1e5, nan and spaces.
    try:
        return len(list(map(float, block.text.split(",")))) != 3
    except ValueError:
        return True


RULES = (
    Rule("strict", "a token after the numbers x,y,z", lambda block: block.junk > 0),
    Rule("surplus", "junk, or digits beyond the precision", lambda block: block.junk + block.filler > 0),
    Rule("letters", "a letter of any script in the block", lambda block: any(map(str.isalpha, block.text))),
    Rule("latin_letters", "a letter A to Z or a to z in the block", lambda block: bool(_LATIN.search(block.text))),
    Rule("any_nonnumeric", "other than digits, points, commas, minus", lambda block: bool(_OTHER.search(block.text))),
    Rule("not_two_commas", "more or fewer commas than two", lambda block: block.text.count(",") != 2),
    Rule("not_floats", "not three texts that float() reads", _not_floats),
    Rule("malformed", "no prefix reads x,y,z", lambda block: not _TRIPLE.match(block.text)),
    Rule("not_exact", "anything but exactly x,y,z", lambda block: not _TRIPLE.fullmatch(block.text)),
)
