"""Counting rules for junk coordinates: the strict one, and others in use.

Published rates of one model differ threefold by their rules. A new rule is a function and an entry in `RULES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_NUMBER = r"-?[0-9]+\.[0-9]+"
_TRIPLE = re.compile(",".join([_NUMBER] * 3))
_NUMERIC = re.compile(r"[-0-9.,]*")


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


def strict(block: BlockText) -> bool:
    """A token begins after the longest prefix that reads x,y,z."""
    return block.junk > 0


def surplus(block: BlockText) -> bool:
    """Junk, or digits beyond the format's precision."""
    return block.junk + block.filler > 0


def letters(block: BlockText) -> bool:
    """A letter of any script."""
    return any(character.isalpha() for character in block.text)


def latin_letters(block: BlockText) -> bool:
    """A letter from A to Z, large or small."""
    return any(character.isascii() and character.isalpha() for character in block.text)


def any_nonnumeric(block: BlockText) -> bool:
    """Anything but digits, points, commas and minus signs."""
    return _NUMERIC.fullmatch(block.text) is None


def not_two_commas(block: BlockText) -> bool:
    """More or fewer commas than x,y,z has."""
    return block.text.count(",") != 2


def not_floats(block: BlockText) -> bool:
    """Not three texts that Python's float() reads, split at commas: it also reads 1, 1e5, nan and spaces."""
    numbers = block.text.split(",")
    try:
        return len(list(map(float, numbers))) != 3
    except ValueError:
        return True


def malformed(block: BlockText) -> bool:
    """No prefix reads x,y,z."""
    return _TRIPLE.match(block.text) is None


def not_exact(block: BlockText) -> bool:
    """Anything but exactly x,y,z: junk and malformed together, of whatever precision."""
    return _TRIPLE.fullmatch(block.text) is None


RULES = (
    Rule("strict", "a token after the numbers x,y,z", strict),
    Rule("surplus", "junk, or digits beyond the precision", surplus),
    Rule("letters", "a letter of any script in the block", letters),
    Rule("latin_letters", "a letter A to Z or a to z in the block", latin_letters),
    Rule("any_nonnumeric", "other than digits, points, commas, minus", any_nonnumeric),
    Rule("not_two_commas", "more or fewer commas than two", not_two_commas),
    Rule("not_floats", "not three texts that float() reads", not_floats),
    Rule("malformed", "no prefix reads x,y,z", malformed),
    Rule("not_exact", "anything but exactly x,y,z", not_exact),
)
