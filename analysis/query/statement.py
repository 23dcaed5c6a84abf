"""What to ask: a name of the package, a file or SQL, as a text ready to run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from molprof.analysis.query.binding import bind, words
from molprof.common.errors import UsageError
from molprof.queries.catalog import Entry, Module, catalog, suggestion


@dataclass(frozen=True)
class Statement:
    """SQL with its parameters filled in, and the modules of the package (`launches`) that it needs."""

    sql: str
    modules: tuple[str, ...]


def find_statement(text: str, parameters: Mapping[str, str]) -> Statement:
    """The statement that `text` means.

    text: a module (`launches`, `molprof.launches`: its example), its table, view or function (`molprof_launch_summary`:
    all columns), the path of a .sql file, or SQL, which need not include the package's modules. parameters: values for
    `$key`s; examples have defaults. Raises UsageError for none of these, an unreadable file, a missing or unused
    parameter.
    """
    known = catalog()
    module = known.get(text.removeprefix("molprof."))
    if module is not None:
        values = {**dict(module.defaults), **parameters}
        return Statement(bind(module.example, values, _numeric(module.entries)), (module.name,))
    for module in known.values():
        for entry in module.entries:
            if entry.name == text:
                return _whole_entry(module, entry, parameters)
    # os.path: Path refuses SQL that is too long for a file's name.
    sql = _read(text) if text.endswith(".sql") or os.path.isfile(text) else text
    if sql is text and not any(character.isspace() for character in text):
        raise UsageError(f"no module, table or file {text!r}, and no SQL", hint=suggestion(text, known))
    used = words(sql)
    needed = tuple(module.name for module in known.values() if any(entry.name in used for entry in module.entries))
    return Statement(bind(sql, parameters), needed)


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
