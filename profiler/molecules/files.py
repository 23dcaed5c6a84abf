"""Molecules of a file as texts: a SMILES per line, CSV, TSV, JSON, JSON lines, or a pickle of plain data.

The ending of the file's name decides. Each form is read into rows of cells, which the SMILES and the name are taken of.
A pickle can run any program when it is loaded; `_PlainUnpickler` looks up nothing by name, so that only built-in data
come of it.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from molprof.common.errors import UsageError
from molprof.common.files import read_text, refuse_stream
from molprof.common.text import shortened

_SMILES = "smiles"
_NAMES = ("name", "id", "title")
_SEPARATED = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_JSON_LINES, _PICKLES = (".jsonl", ".ndjson"), (".pkl", ".pickle", ".p")
_FORMS = 'a list of SMILES, a list of objects {"smiles": ...}, or an object {name: SMILES}'
_PLAIN = "only lists, tuples and dictionaries of text are read from a pickle: save the molecules as CSV or JSON"


@dataclass(frozen=True)
class MoleculeEntry:
    """One molecule as the file writes it."""

    number: int  # from 1
    text: str  # the SMILES
    name: str
    problem: str | None = None  # why there is no SMILES, else None


@dataclass(frozen=True)
class MoleculeFile:
    """The molecules of a file."""

    entries: tuple[MoleculeEntry, ...]
    unit: str  # what `Entry.number` counts: line, row or entry


class _CellRows(NamedTuple):
    """A file as cells: the number and cells of each row; without heads, the second cell is the molecule's name."""

    unit: str
    heads: Sequence[str]  # names of the columns; empty: they have none
    rows: Sequence[tuple[int, Sequence[Any]]]


def molecules_of(source: str) -> MoleculeFile:
    """Return the molecules of FILE or FILE:COLUMN.

    COLUMN is a column's name or its number from 1. Without it: the column `smiles` in any case, else the only one with
    that word in its name, else the first. Raises UsageError where the file cannot be read, has no such column, or holds
    something else.
    """
    path, column = split_column(source)
    refuse_stream(path)
    cell_rows = _read(path, column)
    widest = max((len(cells) for _, cells in cell_rows.rows), default=0)
    if column is not None and (cell_rows.unit == "line" or widest < 2) and not cell_rows.heads:
        raise UsageError(f"{path} has one SMILES per {cell_rows.unit} and no columns", f"leave out :{column}")
    heads = cell_rows.heads or [str(number) for number in range(1, widest + 1)]
    at = _column(path, heads, column) or 0
    named = _name_column(cell_rows.heads, at) if cell_rows.heads else (1 if at == 0 else None)
    entries = []
    for number, cells in cell_rows.rows:
        text = cells[at] if at < len(cells) else None
        name = str(cells[named]) if named is not None and named < len(cells) else ""
        if text is not None and not isinstance(text, str):
            raise UsageError(
                f"{path}, {cell_rows.unit} {number}: expected a SMILES, found {type(text).__name__}", hint=_FORMS
            )
        text = (text or "").strip()
        entries.append(MoleculeEntry(number, text, name, None if text else f"no SMILES in column {heads[at]}"))
    return MoleculeFile(tuple(entries), cell_rows.unit)


def split_column(source: str) -> tuple[Path, str | None]:
    """Return FILE and COLUMN of FILE:COLUMN; a file of the whole name comes first."""
    head, colon, column = source.rpartition(":")
    if not colon or not head or Path(source).exists():
        return Path(source), None
    if not column:
        raise UsageError(f"{source} names no column", hint=f"{head}, or {head}:COLUMN")
    return Path(head), column


def _read(path: Path, column: str | None) -> _CellRows:
    ending = path.suffix.lower()
    if ending in _PICKLES:
        return _nested(path, _unpickled(path), column)
    text = read_text(path)
    if ending in _SEPARATED:
        return _table(path, text, _SEPARATED[ending], column)
    if ending == ".json":
        return _nested(path, _parsed(path, text), column)
    # str.splitlines would also end a line at a form feed or U+2028, where no editor does.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if ending not in _JSON_LINES:
        return _CellRows(
            "line", (), [(number, line.split(maxsplit=1)) for number, line in lines if line.lstrip()[0] != "#"]
        )
    cell_rows = _list([_parsed(path, line, number) for number, line in lines])
    return _CellRows(
        "line", cell_rows.heads, [(number, row) for (number, _), (_, row) in zip(lines, cell_rows.rows, strict=True)]
    )


def _table(path: Path, text: str, separator: str, column: str | None) -> _CellRows:
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    if separator == "," and ";" in first and "," not in first:
        separator = ";"
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        read = [(number, [cell.strip() for cell in row]) for number, row in enumerate(reader, start=1)]
    except csv.Error as problem:
        hint = "quote texts with commas or lines"
        raise UsageError(f"{path}, line {reader.line_num}: {problem}", hint) from None
    rows = [(number, cells) for number, cells in read if any(cells) and not cells[0].startswith("#")]
    heads = rows[0][1] if rows else []
    # Without a name to go by, the first row is data: RDKit tells whether it is one.
    named = any(_SMILES in head.casefold() for head in heads) or (column is not None and not column.isdigit())
    return _CellRows("row", heads, rows[1:]) if named else _CellRows("row", (), rows)


def _column(path: Path, heads: Sequence[str], column: str | None) -> int | None:
    """Return the index of the column with SMILES; None if no name shows it."""
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
    like = [index for index, head in enumerate(folded) if _SMILES in head]
    if len(like) > 1:
        several = ", ".join(heads[index] for index in like)
        raise UsageError(f"{path} has several columns of SMILES: {several}", hint=f"{path}:{heads[like[0]]}")
    return like[0] if like else None


def _name_column(heads: Sequence[str], smiles: int) -> int | None:
    folded = [head.casefold() for head in heads]
    return next((folded.index(name) for name in _NAMES if name in folded and folded.index(name) != smiles), None)


def _nested(path: Path, data: Any, column: str | None) -> _CellRows:
    """Return the rows of lists and dictionaries."""
    if isinstance(data, (list, tuple)):
        return _list(data)
    if not isinstance(data, Mapping):
        raise UsageError(f"{path} holds {type(data).__name__}, not molecules", hint=_FORMS)
    # An object with a list for each column; tables of pandas have objects in place of lists.
    lists = {str(key): value for key, value in data.items() if isinstance(value, (list, tuple, Mapping))}
    if data and (column is not None or len(lists) == len(data)):
        columns = [value.values() if isinstance(value, Mapping) else value for value in lists.values()]
        return _CellRows("entry", list(lists), list(enumerate(itertools.zip_longest(*columns), start=1)))
    return _CellRows("entry", (), list(enumerate(((value, key) for key, value in data.items()), start=1)))


def _list(data: Sequence[Any]) -> _CellRows:
    """Return the rows of a list of texts, of objects, or of lists."""
    heads = list(next((item for item in data if isinstance(item, Mapping)), {}))
    rows: list[Sequence[Any]] = []
    for item in data:
        if isinstance(item, Mapping):
            rows.append([item.get(head) for head in heads])
        else:
            rows.append(item if isinstance(item, (list, tuple)) else [item])
    return _CellRows("entry", list(map(str, heads)), list(enumerate(rows, start=1)))


def _parsed(path: Path, text: str, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise UsageError(f"{path}, line {line or problem.lineno}: not JSON: {problem.msg}", hint=_FORMS) from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply", hint=_FORMS) from None


class _PickleRefusedError(Exception):
    """A pickle names something that is not plain data."""


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler of built-in data only. Anything else in a pickle needs a name, which is refused here."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _PickleRefusedError(f"{module}.{name}")


def _unpickled(path: Path) -> Any:
    try:
        file = io.BytesIO(path.read_bytes())
        data = _PlainUnpickler(file).load()
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror or problem}") from problem
    except _PickleRefusedError as problem:
        raise UsageError(f"{path} holds {shortened(str(problem))}, which is not plain data", hint=_PLAIN) from None
    except Exception as problem:  # a damaged pickle may raise anything
        raise UsageError(f"{path} is no pickle that can be read: {problem or type(problem).__name__}", _PLAIN) from None
    if file.read(1):
        raise UsageError(f"{path} holds more than one object", hint=_PLAIN)
    return data
