"""GLOB patterns of SQLite for many long names: a search for their longest literal rules most out at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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
        self._literal = max((part for part in parts if part[0] not in "*?["), key=len, default="")
        self._regex = re.compile("".join(map(_regex, parts)), re.DOTALL)

    def matches(self, name: str) -> bool:
        """Return True if the whole name matches."""
        return self._literal in name and self._regex.fullmatch(name) is not None


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
    globs = [Glob(pattern) for pattern in patterns]
    return [
        next((number for number, glob in enumerate(globs) if glob.matches(name)), None) for name in map(lowered, names)
    ]
