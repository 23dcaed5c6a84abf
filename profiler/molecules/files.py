"""Molecules of a file as texts: a SMILES per line, CSV, TSV, JSON, JSON lines, or a pickle of plain data.

The ending of the file's name decides, or its content where the ending is none of these. A pickle can run any program
when it is loaded; `_PlainUnpickler` looks up nothing by name, so that only built-in data come of it.
"""

from __future__ import annotations

import csv
import io
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from molprof.common.errors import UsageError
from molprof.common.files import read_text, refuse_stream
from molprof.common.text import shortened

_SMILES = "smiles"
_NAMES = ("name", "id", "title")
_LINES = (".smi", ".smiles", ".ism")
_SEPARATED = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_JSON, _JSON_LINES, _PICKLES = (".json",), (".jsonl", ".ndjson"), (".pkl", ".pickle", ".p")
_PICKLE_BEGINS = b"\x80"  # from protocol 2 on
_FORMS = 'a list of SMILES, a list of objects {"smiles": ...}, or an object {name: SMILES}'
_PLAIN = "only lists, tuples and dictionaries of text are read from a pickle: save the molecules as CSV or JSON"


@dataclass(frozen=True)
class Entry:
    """One molecule as it is written."""

    number: int  # from 1
    text: str  # the SMILES
    name: str
    problem: str | None = None  # why there is no SMILES, else None


@dataclass(frozen=True)
class MoleculeFile:
    entries: tuple[Entry, ...]
    place: str  # what `Entry.number` counts: line, row or entry
    columns: tuple[str, ...] = ()  # names of columns; empty where the file has none


def molecules_of(source: str) -> MoleculeFile:
    """The molecules of FILE or FILE:COLUMN.

    COLUMN is a column's name or its number from 1. Without it: the column `smiles` in any case, else the only one with
    that word in its name, else the first. Raises UsageError where the file cannot be read, has no such column, or holds
    something else.
    """
    path, column = split_column(source)
    refuse_stream(path)
    ending = path.suffix.lower()
    known = (*_LINES, *_SEPARATED, *_JSON, *_JSON_LINES)
    if ending in _PICKLES or (ending not in known and _read(path).startswith(_PICKLE_BEGINS)):
        return _nested(path, _unpickled(path), column)
    text = read_text(path)
    if ending in _JSON_LINES:
        return _json_lines(path, text, column)
    if ending in _JSON or (ending not in (*_LINES, *_SEPARATED) and _is_json(text)):
        return _nested(path, _parsed(path, text), column)
    if ending in _LINES or (separator := _separator(ending, text, column)) is None:
        if column is not None:
            raise UsageError(f"{path} has one SMILES per line and no columns", f"leave out :{column}")
        return MoleculeFile(tuple(_lines(text)), "line")
    return _table(path, text, separator, column)


def split_column(source: str) -> tuple[Path, str | None]:
    """FILE and COLUMN of FILE:COLUMN; a file of the whole name comes first."""
    head, colon, column = source.rpartition(":")
    if not colon or not head or Path(source).exists():
        return Path(source), None
    if not column:
        raise UsageError(f"{source} names no column", hint=f"{head}, or {head}:COLUMN")
    return Path(head), column


def _lines(text: str) -> Iterator[Entry]:
    # str.splitlines would also end a line at a form feed or U+2028, where no editor does.
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        smiles, name = (*line.split(maxsplit=1), "", "")[:2]
        if smiles and not smiles.startswith("#"):
            yield Entry(number, smiles, name.strip())


def _separator(ending: str, text: str, column: str | None) -> str | None:
    """What stands between columns; None where lines begin with a SMILES."""
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    if ending in _SEPARATED:
        return ";" if _SEPARATED[ending] == "," and ";" in first and "," not in first else _SEPARATED[ending]
    for separator in ("\t", ",", ";"):
        heads = [cell.strip().strip('"') for cell in first.split(separator)]
        if len(heads) > 1 and (column in heads or _names_smiles(heads)):
            return separator
    return None


def _table(path: Path, text: str, separator: str, column: str | None) -> MoleculeFile:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        rows = [(number, [cell.strip() for cell in row]) for number, row in enumerate(reader, start=1)]
    except csv.Error as problem:
        raise UsageError(
            f"{path}, line {reader.line_num}: {problem}", hint="quote texts with commas or lines"
        ) from None
    rows = [(number, row) for number, row in rows if any(row) and not row[0].startswith("#")]
    heads = rows[0][1] if rows else []
    place = _column(path, heads, column)
    # Without a name to go by, the first row is data: RDKit tells whether it is one.
    has_heads = place is not None and not (column is not None and column.isdigit() and not _names_smiles(heads))
    found = place or 0
    named = _name_column(heads, found) if has_heads else (1 if found == 0 and len(heads) > 1 else None)
    entries = []
    for number, row in rows[1:] if has_heads else rows:
        name = row[named] if named is not None and named < len(row) else ""
        if found < len(row) and row[found]:
            entries.append(Entry(number, row[found], name))
        else:
            entries.append(Entry(number, "", name, f"no SMILES in column {found + 1}"))
    return MoleculeFile(tuple(entries), "row", tuple(heads) if has_heads else ())


def _names_smiles(heads: Sequence[str]) -> bool:
    return any(_SMILES in head.casefold() for head in heads)


def _column(path: Path, heads: Sequence[str], column: str | None) -> int | None:
    """The place of the column with SMILES; None where no name tells it."""
    folded = [head.casefold() for head in heads]
    if column is not None:
        for wanted, names in ((column, list(heads)), (column.casefold(), folded)):
            if wanted in names:
                return names.index(wanted)
        if column.isdigit() and 1 <= int(column) <= len(heads):
            return int(column) - 1
        raise UsageError(f"{path} has no column {column!r}", hint=f"columns: {shortened(', '.join(heads)) or 'none'}")
    if _SMILES in folded:
        return folded.index(_SMILES)
    like = [place for place, head in enumerate(folded) if _SMILES in head]
    if len(like) > 1:
        several = ", ".join(heads[place] for place in like)
        raise UsageError(f"{path} has several columns of SMILES: {several}", hint=f"{path}:{heads[like[0]]}")
    return like[0] if like else None


def _name_column(heads: Sequence[str], smiles: int) -> int | None:
    folded = [head.casefold() for head in heads]
    return next((folded.index(name) for name in _NAMES if name in folded and folded.index(name) != smiles), None)


def _nested(path: Path, data: Any, column: str | None) -> MoleculeFile:
    """The molecules of lists and dictionaries."""
    if isinstance(data, Mapping):
        lists = {str(key): value for key, value in data.items() if isinstance(value, (list, tuple, Mapping))}
        if data and (column is not None or len(lists) == len(data)):
            return _columns(path, lists, column)
        pairs = [(value, str(key)) for key, value in data.items()]
        return MoleculeFile(tuple(_text(path, n, *pair) for n, pair in enumerate(pairs, start=1)), "entry")
    if isinstance(data, (list, tuple)):
        return _items(path, data, column, "entry")
    raise UsageError(f"{path} holds {_kind(data)}, not molecules", hint=_FORMS)


def _columns(path: Path, lists: Mapping[str, Any], column: str | None) -> MoleculeFile:
    """Of an object with a list for each column; tables of pandas have objects in place of lists."""
    heads = list(lists)
    found = _column(path, heads, column) or 0
    columns = [list(value.values()) if isinstance(value, Mapping) else list(value) for value in lists.values()]
    named = _name_column(heads, found)
    names = [] if named is None else columns[named]
    entries = (
        _text(path, number, value, str(names[number - 1]) if number <= len(names) else "")
        for number, value in enumerate(columns[found], start=1)
    )
    return MoleculeFile(tuple(entries), "entry", tuple(heads))


def _items(path: Path, data: Sequence[Any], column: str | None, place: str) -> MoleculeFile:
    """Of a list of texts, of objects, or of rows."""
    heads = list(map(str, next((item for item in data if isinstance(item, Mapping)), {})))
    key = heads[_column(path, heads, column) or 0] if heads else None
    named = None if key is None else _name_column(heads, heads.index(key))
    entries = []
    for number, item in enumerate(data, start=1):
        if isinstance(item, Mapping):
            values = {str(name): value for name, value in item.items()}
            name = "" if named is None else str(values.get(heads[named], ""))
            lost = Entry(number, "", name, f"no {key!r}")
            entries.append(_text(path, number, values[key], name, place) if key in values else lost)
        elif isinstance(item, (list, tuple)):
            found = _column(path, list(map(str, range(1, len(item) + 1))), column) or 0
            name = str(item[1]) if found == 0 and len(item) > 1 else ""
            entries.append(_text(path, number, item[found] if item else None, name, place))
        elif column is not None:
            raise UsageError(f"{path}, {place} {number} is {_kind(item)}, without columns", f"leave out :{column}")
        else:
            entries.append(_text(path, number, item, "", place))
    return MoleculeFile(tuple(entries), place, tuple(heads))


def _text(path: Path, number: int, value: Any, name: str = "", place: str = "entry") -> Entry:
    if not isinstance(value, str):
        raise UsageError(f"{path}, {place} {number}: expected a SMILES, found {_kind(value)}", hint=_FORMS)
    return Entry(number, value.strip(), name, None if value.strip() else "no SMILES")


def _kind(value: object) -> str:
    """What a value is, in words of JSON."""
    words = {dict: "an object", list: "a list", tuple: "a tuple", bool: "true or false", str: "a text"}
    words |= {int: "a number", float: "a number", type(None): "nothing"}
    return words.get(type(value), f"a {type(value).__name__}")


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith(("[", "{")):
        return False
    try:
        return isinstance(json.loads(text), (list, dict))
    except (ValueError, RecursionError):  # `[Na+].[Cl-]` is a SMILES
        return False


def _parsed(path: Path, text: str, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise UsageError(f"{path}, line {line or problem.lineno}: not JSON: {problem.msg}", hint=_FORMS) from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply", hint=_FORMS) from None


def _json_lines(path: Path, text: str, column: str | None) -> MoleculeFile:
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    found = _items(path, [_parsed(path, line, number) for number, line in numbered], column, "line")
    entries = (
        Entry(number, entry.text, entry.name, entry.problem)
        for (number, _), entry in zip(numbered, found.entries, strict=True)
    )
    return MoleculeFile(tuple(entries), "line", found.columns)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror or problem}") from problem


class _RefusedError(Exception):
    """A pickle names something that is not plain data."""


class _PlainUnpickler(pickle.Unpickler):
    """Makes built-in data only. Whatever else a pickle can do begins with a name, which is looked up here."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _RefusedError(f"{module}.{name}")


def _unpickled(path: Path) -> Any:
    file = io.BytesIO(_read(path))
    try:
        data = _PlainUnpickler(file).load()
    except _RefusedError as problem:
        raise UsageError(f"{path} holds {shortened(str(problem))}, which is not plain data", hint=_PLAIN) from None
    except Exception as problem:  # a damaged pickle may raise anything
        raise UsageError(f"{path} is no pickle that can be read: {problem or type(problem).__name__}", _PLAIN) from None
    if file.read(1):
        raise UsageError(f"{path} holds more than one object", hint=_PLAIN)
    return data
