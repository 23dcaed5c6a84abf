"""Parameters of a query: `$key` replaced by its value as a SQL literal."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from molprof.common.errors import UsageError

_TOKEN = re.compile(
    r"""
    (?P<skip>
        --[^\n]* | /\*.*?(?:\*/|\Z)                     # comments
      | '(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z)   # text and quoted names
      | `[^`]*(?:`|\Z) | \[[^\]]*(?:\]|\Z)
    )
    | (?P<parameter>\$[A-Za-z_]\w*)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<end>;)
    | (?P<space>\s+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?")
# Their bodies use $ for arguments.
_DEFINITION = re.compile(r"CREATE (?:OR REPLACE )?PERFETTO (?:FUNCTION|MACRO)\b")
_DEFINITION_WORDS = 5


def bind(sql: str, parameters: Mapping[str, str], numeric: AbstractSet[str] = frozenset()) -> str:
    """`sql` with every `$key` outside text, comments and function definitions replaced by its value.

    A value that reads as a number is one; any other, or one in single quotes, is text. numeric: keys that take numbers
    only, for SQLite would compare text with numbers. Raises UsageError for a `$key` without value, a value without
    `$key`, an integer beyond 64 bits, text for a number.
    """
    used: set[str] = set()
    parts = []
    for kind, text, in_definition in _tokens(sql):
        if kind == "parameter" and not in_definition:
            name = text[1:]
            if name not in parameters:
                raise UsageError(f"the query needs a value for {text}", hint=f"give it one: -p {name}=VALUE")
            used.add(name)
            if name in numeric and _DECIMAL.fullmatch(parameters[name]) is None:
                raise UsageError(f"-p {name}={parameters[name]}: not a number", hint=f"such as -p {name}=1000")
            text = literal(name, parameters[name])
        parts.append(text)
    if unused := [name for name in parameters if name not in used]:
        raise UsageError(f"the query has no ${unused[0]} to take -p {unused[0]}={parameters[unused[0]]}")
    return "".join(parts)


def words(sql: str) -> frozenset[str]:
    """The names and keywords of a query, outside text and comments."""
    return frozenset(text for kind, text, _ in _tokens(sql) if kind == "word")


def statements(sql: str) -> list[str]:
    """The statements of `sql` without empty ones, each at its line and column there."""
    found: list[str] = []
    start = at = 0
    is_empty = True
    for kind, text, _ in _tokens(sql):
        at += len(text)
        is_empty = is_empty and (kind in ("space", "end") or text.startswith(("--", "/*")))
        # A trigger's body has semicolons of its own.
        if kind == "end" and (is_empty or sqlite3.complete_statement(sql[start:at])):
            if not is_empty:
                found.append(_in_place(sql, start, at))
            start, is_empty = at, True
    if not is_empty:
        found.append(_in_place(sql, start, at))
    return found


def _in_place(sql: str, start: int, end: int) -> str:
    line = sql.rfind("\n", 0, start) + 1
    return "\n" * sql.count("\n", 0, start) + " " * (start - line) + sql[start:end]


def literal(name: str, value: str) -> str:
    """A parameter's value as a SQL literal. Raises UsageError for an integer beyond 64 bits."""
    if _INTEGER.fullmatch(value):
        if not -(2**63) <= int(value) < 2**63:
            raise UsageError(f"-p {name}={value}: integers reach from -2**63 to 2**63 - 1")
        # In parentheses: two minus signs make a comment.
        return f"({value})" if value[0] in "+-" else value
    if _DECIMAL.fullmatch(value):
        return f"({value})" if value[0] in "+-" else value
    if len(value) >= 2 and value[0] == value[-1] == "'":
        value = value[1:-1]
    quoted = value.replace("'", "''")
    return f"'{quoted}'"


def _tokens(sql: str) -> Iterator[tuple[str, str, bool]]:
    """Kind and text of each token, and whether it is in the definition of a function or macro."""
    start: list[str] = []
    for match in _TOKEN.finditer(sql):
        kind, text = match.lastgroup or "other", match[0]
        if kind == "word" and len(start) < _DEFINITION_WORDS:
            start.append(text.upper())
        yield kind, text, bool(_DEFINITION.match(" ".join(start)))
        if kind == "end":
            start = []
