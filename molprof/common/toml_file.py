"""A TOML file whose errors are reported with their line."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from molprof.common.errors import UsageError
from molprof.common.files import read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_T = TypeVar("_T", bound=Struct)


class TomlFile(Struct, frozen=True):
    """A file's tables, and its text to count lines in."""

    path: Path  # as given
    text: str
    content: dict[str, Any]  # its tables
    example: str  # what such a file looks like, for messages

    def line(self, keys: Sequence[str | int]) -> int:
        """Return the line, from 1, of the key (or index in a list) that `keys` lead to.

        If absent, its table's.

        TOML is read from top to bottom, so the first lines that hold the key end with the statement that sets it,
        and that statement begins after the longest shorter beginning that is TOML by itself.
        """
        lines = self.text.splitlines(keepends=True)
        whole = 0
        for number in range(1, len(lines) + 1):
            try:
                content: Any = tomllib.loads("".join(lines[:number]))
                for key in keys:
                    content = content[key]
                return whole + 1
            except tomllib.TOMLDecodeError:
                continue
            except (LookupError, TypeError):
                whole = number
        return self.line(keys[:-1]) if len(keys) > 1 else 1

    def refuse(self, problem: str, keys: Sequence[str | int], hint: str | None = None) -> NoReturn:
        """Raise UsageError with the file and the line of the key, and the table if it is one of several."""
        table = f", [{'.'.join(map(str, keys[:2]))}]" if len(keys) > 2 and isinstance(keys[1], str) else ""
        raise UsageError(f"{self.path}, line {self.line(keys)}{table}: {problem}", hint=hint or self.example)

    def typed(self, table: object, keys: Sequence[str | int], kind: type[_T]) -> _T:
        """Return the table that `keys` lead to as `kind`, a Struct whose `Meta` limits each field."""
        fields = msgspec.structs.fields(kind)
        entry = self.check_keys(table, keys, [field.name for field in fields])
        if missing := [field.name for field in fields if field.required and field.name not in entry]:
            self.refuse(f"the {keys[0]} lacks {', '.join(missing)}", keys)
        for field in fields:
            name = field.name
            try:
                if name in entry:
                    msgspec.convert(entry[name], field.type)
            except msgspec.ValidationError:
                expected = next(item.description for item in field.type.__metadata__ if isinstance(item, msgspec.Meta))
                self.refuse(f"{name} is {entry[name]!r}, expected {expected}", [*keys, name])
        return msgspec.convert(entry, kind)

    def check_keys(self, table: object, keys: Sequence[str | int], known: Collection[str]) -> dict[str, Any]:
        """Return the table that `keys` lead to, after checking that all its keys are `known`."""
        if not isinstance(table, dict):
            self.refuse(f"{'.'.join(map(str, keys))} is {table!r}, expected a table", keys)
        for key in table:
            if key not in known:
                self.refuse(unknown(f"key {key!r}", key, known), [*keys, key])
        return table


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """Return the message that `what` is not known, with the nearest known name, or all of them."""
    near = difflib.get_close_matches(name, known, 1)
    return f"unknown {what}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")


def read_toml(path: Path, example: str) -> TomlFile:
    """Read a TOML file. Raises UsageError."""
    text = read_text(path, hint="name a TOML file")
    try:
        return TomlFile(path, text, tomllib.loads(text), example)
    except RecursionError as error:
        raise UsageError(f"{path} is not TOML: nested too deeply", hint=example) from error
    except ValueError as error:  # also an integer of thousands of digits
        raise UsageError(f"{path} is not TOML: {error}", hint=example) from error
