"""The contents of the SQL package, read from its files' comments: modules, objects, columns, units, examples.

A module begins with a comment. Its first paragraph says what the module is for. A paragraph that begins with `Example:`
or `Example (key=value, ...):` holds the query for its main result, with `$key` for parameters. Then come INCLUDE
statements, and CREATE PERFETTO statements with a comment above each and above each column. A column without a comment
means what the column of that name above it does.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from msgspec import Struct

from molprof.common.errors import UsageError
from molprof.queries import INCLUDE, PACKAGE, modules, replacing_tables

_CREATE = re.compile(
    r"^(?P<comment>(?:--[^\n]*\n)*)CREATE PERFETTO (?P<kind>TABLE|VIEW|FUNCTION) (?P<name>\w+)"
    r"(?P<list>\(\n.*?\n\))?(?P<rest>.*?);$",
    re.MULTILINE | re.DOTALL,
)
_RETURNS = re.compile(r"RETURNS TABLE(\(\n.*?\n\))", re.DOTALL)
_COLUMN = re.compile(r"^(?P<comment>(?:  -- \S.*\n)*)  (?P<name>\w+) (?P<type>[A-Z]+(?:\([\w.]+\))?),?$", re.MULTILINE)
_NAME = re.compile(r"^CREATE PERFETTO (?:TABLE|VIEW|FUNCTION) ([^\W_]\w*)", re.MULTILINE)
_EXAMPLE = re.compile(r"Example(?: \((?P<defaults>[^)]*)\))?:\n(?P<sql>.*)", re.DOTALL)
# The first phrase found decides: a rate is not an amount.
_UNITS = (
    ("bytes per second", "bytes/s"), (", ns", "ns"), ("ns since", "ns"), ("bytes", "bytes"), ("0 to 1", "ratio"),
    ("in joules", "J"), ("in watts", "W"), ("in the counter's unit", "as recorded"),
)  # fmt: skip


class CatalogColumn(Struct, frozen=True):
    """A column of a table or view, or an argument of a function."""

    name: str
    type: str
    unit: str  # empty for counts, names and the like
    comment: str


class CatalogEntry(Struct, frozen=True):
    """A public table, view or function."""

    name: str
    kind: str
    comment: str
    arguments: tuple[CatalogColumn, ...]  # of a function
    columns: tuple[CatalogColumn, ...]


class Module(Struct, frozen=True):
    """A module of the SQL package."""

    name: str  # without the package's, `launches`
    comment: tuple[str, ...]  # paragraphs
    example: str  # the query for its main result, `$key` for parameters
    defaults: tuple[tuple[str, str], ...]  # parameters of the example and their values
    includes: tuple[str, ...]  # modules of the package that it uses, in order
    entries: tuple[CatalogEntry, ...]
    sql: str  # its whole text

    @property
    def key(self) -> str:
        """The name that INCLUDE PERFETTO MODULE takes."""
        return f"{PACKAGE}.{self.name}"

    @property
    def line(self) -> str:
        """The first sentence of its purpose."""
        return re.split(r"(?<=\.)\s", self.comment[0], maxsplit=1)[0]


def catalog() -> dict[str, Module]:
    """Return every module of the package by name, sorted."""
    return {key.removeprefix(f"{PACKAGE}."): read_module(key, sql) for key, sql in modules().items()}


def read_module(key: str, sql: str) -> Module:
    """Return the module `key` of the package, from its text."""
    comment, example, defaults = _header(sql)
    return Module(
        name=key.removeprefix(f"{PACKAGE}."),
        comment=comment,
        example=example,
        defaults=defaults,
        includes=tuple(INCLUDE.findall(sql)),
        entries=_entries(sql),
        sql=sql,
    )


def homes() -> dict[str, str]:
    """Return the key of the module that defines it, of every public table, view and function.

    Quicker than `catalog`.
    """
    return {name: key for key, sql in modules().items() for name in _NAME.findall(sql)}


def find_module(name: str, modules: Mapping[str, Module]) -> Module:
    """Return the module called `name`, or the one that defines the object `name`. Raises UsageError."""
    key = name.removeprefix(f"{PACKAGE}.")
    if key in modules:
        return modules[key]
    for module in modules.values():
        if any(entry.name == name for entry in module.entries):
            return module
    raise UsageError(f"no module, table, view or function {name!r}", hint=suggestion(name, modules))


def suggestion(name: str, modules: Mapping[str, Module]) -> str:
    """Return a hint for an unknown name: the nearest names, or the command that lists them."""
    names = [*modules, *(entry.name for module in modules.values() for entry in module.entries)]
    close = difflib.get_close_matches(name.removeprefix(f"{PACKAGE}."), names, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "molprof query list shows the modules"


def with_includes(name: str, modules: Mapping[str, Module]) -> tuple[str, ...]:
    """Return the modules that `name` needs, each after those that it needs itself; `name` is the last."""
    order: list[str] = []
    for included in modules[name].includes:
        order.extend(item for item in with_includes(included, modules) if item not in order)
    return (*order, name)


def standalone_sql(name: str, modules: Mapping[str, Module]) -> str:
    """Return a module and all that it needs as one text, for where no package can be added."""
    parts = (INCLUDE.sub("", modules[item].sql) for item in with_includes(name, modules))
    # Several modules include the same ones.
    parts = (replacing_tables(part) for part in parts)
    return "\n".join(re.sub(r"\n{3,}", "\n\n", part) for part in parts)


def _header(sql: str) -> tuple[tuple[str, ...], str, tuple[tuple[str, str], ...]]:
    """Return paragraphs, example and its defaults from a module's first comment."""
    top = sql.split("\n\n", 1)[0]
    lines = [line.removeprefix("--").removeprefix(" ") for line in top.splitlines()]
    text, example, defaults = "\n".join(lines), "", ""
    if match := _EXAMPLE.search(text):
        text, example, defaults = text[: match.start()], match["sql"], match["defaults"] or ""
    pairs = (item.partition("=") for item in defaults.split(", ") if item)
    return (
        tuple(" ".join(part.split()) for part in text.strip().split("\n\n")),
        "\n".join(line.removeprefix("  ") for line in example.strip("\n").splitlines()),
        tuple((name, value) for name, _, value in pairs),
    )


def _entries(sql: str) -> tuple[CatalogEntry, ...]:
    said: dict[str, str] = {}
    return tuple(_entry(match, said) for match in _CREATE.finditer(sql) if not match["name"].startswith("_"))


def _entry(match: re.Match[str], said: dict[str, str]) -> CatalogEntry:
    is_function = match["kind"] == "FUNCTION"
    listed = _columns(match["list"] or "", said)
    returned = _RETURNS.search(match["rest"])
    return CatalogEntry(
        name=match["name"],
        kind=match["kind"].lower(),
        comment=_prose(match["comment"]),
        arguments=listed if is_function else (),
        columns=_columns(returned[1] if returned else "", said) if is_function else listed,
    )


def _columns(text: str, said: dict[str, str]) -> tuple[CatalogColumn, ...]:
    """Return the columns of a table. said: the module's first comment on each column; those of `text` are added."""
    columns = []
    for match in _COLUMN.finditer(text):
        comment = _prose(match["comment"]) or said.get(match["name"], "")
        said.setdefault(match["name"], comment)
        columns.append(CatalogColumn(match["name"], match["type"], _unit(match["type"], comment), comment))
    return tuple(columns)


def _unit(kind: str, comment: str) -> str:
    if kind in ("STRING", "BOOL", "ARGSETID") or kind.startswith("JOINID"):
        return ""
    return next((unit for phrase, unit in _UNITS if phrase in comment.lower()), "")


def _prose(comment: str) -> str:
    return " ".join(line.strip().removeprefix("--").strip() for line in comment.splitlines()).strip()
