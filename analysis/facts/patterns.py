"""GLOB patterns of SQLite for many long names: a search for their longest literal rules most out at once."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence

_MOST_KNOWN = 1 << 17  # names, by their hashes: 15 MB
_LITERALS = re.compile(r"[^*?\[\]]+|\[\^?\]?[^\]]*\]|[*?]")


def lowered(name: str) -> str:
    """Return the name in lower case as SQLite does it: of ASCII letters alone."""
    if name.isascii():
        return name.lower()
    return name.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")  # bytes have only these


class Glob:
    """A pattern: `*` for any text, `?` for a character, `[...]` and `[^...]` for one of a set."""

    def __init__(self, pattern: str) -> None:
        parts = _LITERALS.findall(pattern)
        self.literal = max((part for part in parts if part[0] not in "*?["), key=len, default="")
        self.fullmatch = re.compile("".join(map(_regex, parts)), re.DOTALL).fullmatch

    def matches(self, name: str) -> bool:
        """Return True if the whole name matches."""
        return self.literal in name and self.fullmatch(name) is not None


def _regex(part: str) -> str:
    if part == "*":
        return ".*"
    if part == "?":
        return "."
    if part[0] == "[" and len(part) > 1:
        negated = part[1] == "^"
        members = part[1 + negated : -1]
        return f"[{'^' if negated else ''}{re.escape(members).replace(re.escape('-'), '-')}]"
    return re.escape(part)


def first_matches(names: Iterable[str], patterns: Sequence[str]) -> list[int | None]:
    """Return the index of the first pattern that matches each name in lower case; None where none does."""
    return list(map(_matching(tuple(patterns)), map(lowered, names)))


@functools.lru_cache(maxsize=4)
def _matching(patterns: tuple[str, ...]) -> Callable[[str], int | None]:
    """Return what finds the first pattern of a name. Names of one trace are often those of the next one."""
    # As `Glob.matches`, without a call for each of some hundred patterns and thousands of names.
    globs = [(number, glob.literal, glob.fullmatch) for number, glob in enumerate(map(Glob, patterns))]
    known: dict[bytes, int | None] = {}

    def first(name: str) -> int | None:
        key = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key not in known:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[key] = next(
                (number for number, literal, fullmatch in globs if literal in name and fullmatch(name)), None
            )
        return known[key]

    return first
