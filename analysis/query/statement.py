"""What to ask: a name of the package, a file or SQL, as a text ready to run, `$key` replaced by its value."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from msgspec import Struct

from molprof.common.errors import UsageError
from molprof.queries import PACKAGE, modules
from molprof.queries.catalog import Entry, Module, catalog, homes, read_module, suggestion

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


class Statement(Struct, frozen=True):
    """SQL with its parameters filled in, and the modules of the package (`launches`) that it needs."""

    sql: str
    modules: tuple[str, ...]


# Statements that only read, and what writes or reads files wherever it stands, quoted or not.
_READING = frozenset({"SELECT", "WITH", "VALUES", "INCLUDE"})
_CHANGING = frozenset({"INSERT", "UPDATE", "DELETE"})
_FILES = re.compile(r"export_json|load_extension|readfile|writefile", re.IGNORECASE)


def check_reads(sql: str) -> None:
    """Raises UsageError where a statement of `sql` is not one that only selects."""
    for part in statements(sql) or [""]:
        words = [text.upper() for kind, text, _ in _tokens(part) if kind == "word"]
        if not words or words[0] not in _READING or _CHANGING.intersection(words) or _FILES.search(part):
            raise UsageError("only SELECT is allowed here", hint="and INCLUDE PERFETTO MODULE, WITH and VALUES")


def find_statement(text: str, parameters: Mapping[str, str], files: bool = True) -> Statement:
    """The statement that `text` means.

    text: a module (`launches`, `molprof.launches`: its example), its table, view or function (`molprof_launch_summary`:
    all columns), the path of a .sql file, or SQL, which need not include the package's modules. parameters: values for
    `$key`s; examples have defaults. Without `files`, no file is read. Raises UsageError for none of these, an
    unreadable file, a missing or unused parameter.
    """
    known, home = modules(), homes()
    key = f"{PACKAGE}.{text.removeprefix(f'{PACKAGE}.')}"
    if key in known:
        module = read_module(key, known[key])
        values = {**dict(module.defaults), **parameters}
        return Statement(bind(module.example, values, _numeric(module.entries)), (module.name,))
    if text in home:
        module = read_module(home[text], known[home[text]])
        return _whole_entry(module, next(entry for entry in module.entries if entry.name == text), parameters)
    # os.path: Path refuses SQL that is too long for a file's name.
    sql = _read(text) if files and (text.endswith(".sql") or os.path.isfile(text)) else text
    if sql is text and not any(character.isspace() for character in text):
        raise UsageError(f"no module, table or file {text!r}, and no SQL", hint=suggestion(text, catalog()))
    needed = sorted({home[word].removeprefix(f"{PACKAGE}.") for word in _words(sql) if word in home})
    return Statement(bind(sql, parameters), tuple(needed))


def _whole_entry(module: Module, entry: Entry, parameters: Mapping[str, str]) -> Statement:
    columns = ",\n".join(f"  {column.name}" for column in entry.columns)
    arguments = ", ".join(f"${argument.name}" for argument in entry.arguments)
    call = f"({arguments})" if entry.arguments else ""
    wanted = {argument.name for argument in entry.arguments}
    defaults = {name: value for name, value in module.defaults if name in wanted}
    sql = f"SELECT\n{columns}\nFROM {entry.name}{call}"
    return Statement(bind(sql, {**defaults, **parameters}, _numeric([entry])), (module.name,))


def _numeric(entries: Iterable[Entry]) -> frozenset[str]:
    """Arguments that are numbers; examples name their parameters as the functions do."""
    return frozenset(argument.name for entry in entries for argument in entry.arguments if argument.type != "STRING")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="give a .sql file, a module's name, or SQL") from error


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


def _words(sql: str) -> frozenset[str]:
    """The names and keywords of a query, outside text and comments."""
    return frozenset(text for kind, text, _ in _tokens(sql) if kind == "word")


def statements(sql: str) -> list[str]:
    """The statements of `sql` without empty ones, each at its line and column there."""
    found: list[str] = []
    start = at = 0
    is_empty = True
    has_trigger = "TRIGGER" in sql.upper()  # whose body has semicolons of its own
    for kind, text, _ in _tokens(sql):
        at += len(text)
        is_empty = is_empty and (kind in ("space", "end") or text.startswith(("--", "/*")))
        if kind == "end" and (is_empty or not has_trigger or _is_complete(sql[start:at])):
            if not is_empty:
                found.append(_in_place(sql, start, at))
            start, is_empty = at, True
    if not is_empty:
        found.append(_in_place(sql, start, at))
    return found


def _is_complete(sql: str) -> bool:
    import sqlite3  # on use: it takes 2 ms

    return sqlite3.complete_statement(sql)


def _in_place(sql: str, start: int, end: int) -> str:
    line = sql.rfind("\n", 0, start) + 1
    return "\n" * sql.count("\n", 0, start) + " " * (start - line) + sql[start:end]


def literal(name: str, value: str) -> str:
    """A parameter's value as a SQL literal. Raises UsageError for an integer beyond 64 bits."""
    if _INTEGER.fullmatch(value) and not -(2**63) <= int(value) < 2**63:
        raise UsageError(f"-p {name}={value}: integers reach from -2**63 to 2**63 - 1")
    if _DECIMAL.fullmatch(value):
        # In parentheses: two minus signs make a comment.
        return f"({value})" if value[0] in "+-" else value
    if len(value) >= 2 and value[0] == value[-1] == "'":
        value = value[1:-1]
    return "'" + value.replace("'", "''") + "'"


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
