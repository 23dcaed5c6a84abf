"""What a token of an enriched molecule is: element, bond, bracket, digit and so on."""

from __future__ import annotations

import re
from collections.abc import Sequence

# A token of several characters is of the first kind here that it holds: `=[` is a bond, `>=[` is `close`, for it ends a
# coordinate. `mark` is a comma, point or minus of a coordinate; `ring` a ring digit or a parenthesis.
TEXTS = ("tag", "close", "element", "bond", "ring", "digit", "mark", "other", "bracket")

_TAG = re.compile(r"\[/?(?:SMILES|CONFORMER)\]")
_SPECIAL = re.compile(r"<\|[^<>]*\|>|</?s>")
_BONDS = frozenset("-=#:$/\\.~")
_RINGS = frozenset("0123456789%()")
_MARKS = frozenset(",.-")


def text_kinds(words: Sequence[str]) -> list[str]:
    """One of `TEXTS` for each token of a sequence, by its context.

    A minus is a bond between atoms, part of the element in `[O-]`, and a mark in a coordinate. words: the tokens' texts
    in order; special tokens read `<|...|>`.
    """
    text = "".join(words)
    kinds = _characters(words)
    for match in _TAG.finditer(text):
        kinds[match.start() : match.end()] = ["tag"] * len(match.group())
    found, begin = [], 0
    for word in words:
        held = set(kinds[begin : begin + len(word)])
        found.append(next((kind for kind in TEXTS if kind in held), "other"))
        begin += len(word)
    return found


def _characters(words: Sequence[str]) -> list[str]:
    """The kind of each character, without tags."""
    kinds: list[str] = []
    inside = ""  # the bracket that is open: `<`, `[` or none
    for word in words:
        if _SPECIAL.fullmatch(word):
            kinds.extend(["tag"] * len(word))
            continue
        for character in word:
            if character in "<>" or (character in "[]" and inside != "<"):
                kinds.append("close" if character == ">" else "bracket")
                inside = character if character in "<[" else ""
            elif inside == "<":
                kinds.append("digit" if character in "0123456789" else "mark" if character in _MARKS else "other")
            elif inside == "[":
                kinds.append("element")
            else:
                kinds.append(_between(character))
    return kinds


def _between(character: str) -> str:
    if character in _BONDS:
        return "bond"
    if character in _RINGS:
        return "ring"
    return "element" if character.isalpha() else "other"
