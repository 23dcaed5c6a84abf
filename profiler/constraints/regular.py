"""Regular expressions of Python as automata over bytes: the texts that `re.fullmatch` accepts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from molprof.profiler.constraints import automaton
from molprof.profiler.constraints.automaton import EVERY, Part, Ranges, complement, intersect, union

if sys.version_info >= (3, 11):
    from re import _constants as names  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as names
    import sre_parse as parser

_ASCII: dict[str, Ranges] = {
    "DIGIT": ((48, 57),),
    "SPACE": ((9, 13), (32, 32)),
    "WORD": ((48, 57), (65, 90), (95, 95), (97, 122)),
}
_UNICODE: dict[str, Callable[[str], bool]] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda character: character.isalnum() or character == "_",
}
# What an automaton does not have, by Python's name of it.
_UNKNOWN = {
    "ASSERT": "lookahead or lookbehind, such as (?=...)",
    "ASSERT_NOT": "lookahead or lookbehind, such as (?!...)",
    "ATOMIC_GROUP": "an atomic group, (?>...)",
    "GROUPREF": r"a back reference, such as \1",
    "GROUPREF_EXISTS": "a choice by a group, (?(1)...)",
    "POSSESSIVE_REPEAT": "a possessive repeat, such as a*+",
}
_BEGIN, _END = (names.AT_BEGINNING, names.AT_BEGINNING_STRING), (names.AT_END, names.AT_END_STRING)


class NotRegular(ValueError):  # noqa: N818  (says what the constraint is)
    """The constraint has no automaton; the message names the part that is unknown or not regular."""


def regular(pattern: str, flags: int = 0, spelled: Callable[[Ranges], Part] = automaton.characters) -> Part:
    """Return the automaton of a pattern's texts.

    Args:
        flags: of `re.compile`.
        spelled: how one character of some code points is written.

    Raises:
        NotRegular: it has what no automaton has (back references), or what is not made here (looking around,
            `re.IGNORECASE`, boundaries inside a text).
        TooLarge: a number of repetitions is more than Python reads.
        re.error: it is no pattern.
    """
    tree = _parsed(pattern, flags)
    return _PatternReader(tree.state.flags, spelled).sequence(tree.data, True, True)


def searched(pattern: str, spelled: Callable[[Ranges], Part]) -> Part:
    r"""Return the texts of which a part matches, as a JSON schema's `pattern` asks; `\d` and others are ASCII there."""
    tree = _parsed(pattern, re.ASCII)
    anywhere = automaton.repeated(spelled(EVERY), 0, None)
    parts = []
    for branch in _branches(tree.data):
        begins = bool(branch) and branch[0] in [(names.AT, at) for at in _BEGIN]
        ends = bool(branch) and branch[-1] in [(names.AT, at) for at in _END]
        whole = _PatternReader(tree.state.flags, spelled).sequence(branch, begins, ends)
        parts.append(automaton.sequence(*[anywhere] * (not begins), whole, *[anywhere] * (not ends)))
    return automaton.either(*parts)


def _parsed(pattern: str, flags: int) -> Any:
    """Return the pattern as Python parses it. Raises TooLarge if a number of repetitions is too large for it."""
    try:
        return parser.parse(pattern, flags)
    except OverflowError as problem:
        raise automaton.TooLarge(str(problem)) from None


def _branches(items: list[Any]) -> list[list[Any]]:
    """Return the alternatives of a whole pattern, each with its own anchors."""
    if len(items) == 1 and items[0][0] is names.BRANCH:
        return [branch for part in items[0][1][1] for branch in _branches(list(part))]
    return [items]


class _PatternReader:
    """Converts the output of Python's own parser to parts. `first`, `last`: at the begin, at the end of the pattern."""

    def __init__(self, flags: int, spelled: Callable[[Ranges], Part]) -> None:
        if flags & (re.IGNORECASE | re.LOCALE):
            raise NotRegular("it ignores case, (?i)")
        self._ascii, self._dotall, self._spelled = bool(flags & re.ASCII), bool(flags & re.DOTALL), spelled

    def sequence(self, items: Iterable[Any], first: bool, last: bool) -> Part:
        items = list(items)
        passing = [operator is names.AT for operator, _ in items]
        return automaton.sequence(
            *(
                self._part(item, first and all(passing[:number]), last and all(passing[number + 1 :]))
                for number, item in enumerate(items)
            )
        )

    def _part(self, item: tuple[Any, Any], first: bool, last: bool) -> Part:
        operator, value = item
        if operator is names.AT and ((value in _BEGIN and first) or (value in _END and last)):
            return automaton.sequence()
        if operator is names.BRANCH:
            return automaton.either(*(self.sequence(branch, first, last) for branch in value[1]))
        if operator is names.SUBPATTERN:
            _, more, fewer, inside = value
            if more or fewer:
                raise NotRegular("flags change inside of it, as by (?s:...)")
            return self.sequence(inside, first, last)
        if operator in (names.MAX_REPEAT, names.MIN_REPEAT):
            low, high, inside = value
            most = None if high == names.MAXREPEAT else high
            return automaton.repeated(self.sequence(inside, False, False), low, most)
        return self._spelled(self._one(operator, value))

    def _one(self, operator: Any, value: Any) -> Ranges:
        """Return the code points of an expression for one character."""
        if operator is names.LITERAL:
            return ((value, value),)
        if operator is names.NOT_LITERAL:
            return complement(((value, value),))
        if operator is names.ANY:
            return EVERY if self._dotall else complement(((10, 10),))
        if operator is names.RANGE:
            return (value,)
        if operator is names.CATEGORY:
            _, *negative, kind = str(value).split("_")
            return complement(self._category(kind)) if negative else self._category(kind)
        if operator is names.IN:
            negated = value[0][0] is names.NEGATE
            ranges = union(item for part in value[negated:] for item in self._one(*part))
            return complement(ranges) if negated else ranges
        inside = r"\b or \B" if "BOUNDARY" in str(value) else "^ or $ inside of it"
        raise NotRegular(f"it has {inside if operator is names.AT else _UNKNOWN[str(operator)]}")

    def _category(self, kind: str) -> Ranges:
        return _ASCII[kind] if self._ascii else _category(kind)


@lru_cache(maxsize=3)
def _category(kind: str) -> Ranges:
    test = _UNICODE[kind]
    return intersect(union((code, code) for code in range(sys.maxunicode + 1) if test(chr(code))), EVERY)
