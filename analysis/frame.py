"""Frames: named numpy columns with unit and meaning; source of rows, JSON, Arrow and tables for people."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.document import Column, Table
from molprof.common.errors import MissingExtraError, UsageError
from molprof.common.text import escaped
from molprof.common.values import Unit, Value, counted, cut, unit_of, width
from molprof.queries import modules
from molprof.queries.catalog import homes, read_module

# Units of the SQL package's columns that are units of values too.
_UNITS: dict[str, Unit] = {"ns": "ns", "bytes": "bytes", "ratio": "ratio"}
_NUMBERS = (int, float)
_PLACE = "operator, operator_id, module, layer, source, phase, step, step_id"

_WORK = (
    "id, ts, dur, name, category, class, device, stream, rank, correlation, bytes, in_graph, call_id, frame_id,"
    f" {_PLACE}"
)
_CALLS = (
    "call_id AS id, ts, dur, name, kind, correlation, rank, upid, tid, kernels, gpu_ns, is_sync, sync_ns, frame_id,"
    f" {_PLACE}"
)
_SHOWN_ROWS = 20
# At a prompt: rows, columns of the screen where it is none, and most characters of a text.
_REPR_ROWS, _ROOM, _REPR_TEXT = 10, 100, 40


class Declared(NamedTuple):
    """The query or view that a frame is read from."""

    view: str  # of the SQL package
    columns: str
    order: str = "ts, id"
    where: str = "TRUE"


# Frames of a trace. Times are ns since its earliest event. Ids are of slices, and join: `call_id` with those of calls,
# `frame_id`, of the innermost around the call, with those of operators, or of functions where there is no operator.
# `source` is the innermost Python function, `module` the modules.
FRAMES = {
    "work": Declared("molprof_origin", _WORK),
    "kernels": Declared("molprof_origin", _WORK, where="category = 'kernel'"),
    "calls": Declared("molprof_call_origin", _CALLS),
    "launches": Declared("molprof_call_origin", _CALLS, where="kind IN ('launch', 'graph_launch')"),
    "syncs": Declared(
        "molprof_call_origin", f"call_id AS id, ts, dur, name, rank, frame_id, {_PLACE}", where="is_sync"
    ),
    "operators": Declared(
        "molprof_operator_origin",
        "id, ts, dur, name, own_ns, caller_id, upid, tid, track_id, module, layer, source, phase, step, step_id",
    ),
    "functions": Declared(
        "molprof_frame", "id, parent_id, ts, dur, kind, name, class, module, upid, tid", where="kind != 'operator'"
    ),
    "phases": Declared("molprof_phase", "id, ts, dur, phase, batch, step, upid, tid"),
    "steps": Declared(
        "molprof_any_step",
        "id, ts, dur, source, name, kind, number, batch, prompt_sequences, prompt_tokens, prompt_length,"
        " generating_sequences, generating_length, tokens, least_tokens, most_tokens, upid, tid",
    ),
    "memory": Declared(
        "molprof_memory_event",
        "id, ts, upid, device, bytes, total_bytes, reserved_bytes, unexplained_bytes, allocation_id, freed_ts,"
        " category, frame_id, operator, module, source, phase, step, step_id",
    ),
    "tokens": Declared(
        "molprof_token",
        "sequence, batch, position, step, token_id, text, kind, block, slice_id, ts, dur",
        order="sequence, position",
    ),
}


@dataclass(frozen=True, repr=False)
class Frame:
    """Columns of equal length by name: int64, float64, or object arrays of text, bytes, or anything with None.

    Attributes:
        units: of the columns whose name does not say it (`unit_of`).
        meanings: what a column holds, as text; not every column has one.
    """

    columns: Mapping[str, np.ndarray]
    units: Mapping[str, Unit] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_rows(cls, names: Sequence[str], rows: Iterable[Sequence[Any]], **about: Any) -> Frame:
        """Return a frame of Python rows. about: `units` and `meanings`."""
        values = list(zip(*rows, strict=True)) or [()] * len(names)
        return cls({name: _array(column) for name, column in zip(names, values, strict=True)}, **about)

    @classmethod
    def of_view(cls, columns: Mapping[str, np.ndarray], view: str) -> Frame:
        """Return columns of a table or view of the SQL package with its units and meanings; `id` may be its `call_id`.

        Raises KeyError for another view.
        """
        key = homes()[view]
        entry = next(entry for entry in read_module(key, modules()[key]).entries if entry.name == view)
        named = {column.name: column for column in entry.columns}
        described = {
            name: named.get(name) or named[f"call_{name}"] for name in columns if {name, f"call_{name}"} & {*named}
        }
        units = {name: _UNITS[column.unit] for name, column in described.items() if column.unit in _UNITS}
        return cls(columns, units, {name: column.comment for name, column in described.items()})

    def __repr__(self) -> str:
        """Return the first rows, and as many columns as fit the terminal."""
        room, shown = shutil.get_terminal_size((_ROOM, 0)).columns, self.where(np.arange(min(len(self), _REPR_ROWS)))
        columns: list[list[str]] = []
        left = room
        for name in self.names:
            cells = [self._heading(name), *(cut(escaped(str(value)), _REPR_TEXT) for value in shown[name].tolist())]
            size = max(map(width, cells))
            if columns and size > left:
                break
            spaces = [" " * (size - width(cell)) for cell in cells]
            is_number = self._raw_unit(name) == "raw"
            columns.append(
                [f"{space}{cell}" if is_number else f"{cell}{space}" for cell, space in zip(cells, spaces, strict=True)]
            )
            left -= size + 2
        lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
        more = f"; more columns: {', '.join(hidden)}" if (hidden := self.names[len(columns) :]) else ""
        said = f"[{counted(len(self), 'row')} x {counted(len(self.names), 'column')}{more}]"
        return "\n".join([*lines, *textwrap.wrap(said, room)])

    def __getattr__(self, name: str) -> np.ndarray:
        """Return a column, unless a method or attribute has its name."""
        columns: Mapping[str, np.ndarray] = self.__dict__.get("columns", {})  # none while it is copied
        if name not in columns:
            raise AttributeError(f"the frame has no column or attribute {name!r}; columns: {', '.join(columns)}")
        return columns[name]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.names})

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.names)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.columns)

    def unit(self, name: str) -> Unit:
        """Return the unit of a column; `name` for text, `number` for numbers whose name does not say it."""
        column = self.columns[name]
        if name in self.units:
            return self.units[name]
        is_text = column.dtype == object and any(isinstance(value, str) for value in column)
        return "name" if is_text else unit_of(name)

    def known(self, name: str) -> np.ndarray:
        """Return True for rows that have a value in a column."""
        return np.asarray(self.columns[name] != None, dtype=bool)  # noqa: E711

    def select(self, *names: str) -> Frame:
        """Return these columns alone."""
        return Frame({name: self.columns[name] for name in names}, self.units, self.meanings)

    def where(self, mask: np.ndarray) -> Frame:
        """Return the rows that a mask or an array of row numbers selects."""
        return Frame({name: column[mask] for name, column in self.columns.items()}, self.units, self.meanings)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return rows of Python values: int, float, str, bytes or None."""
        return list(zip(*(column.tolist() for column in self.columns.values()), strict=True))

    def to_json(self) -> list[dict[str, Value]]:
        """Return a dict for each row: bytes as hexadecimal text, numbers that are not finite as text."""
        return [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows()]

    def table(self, raw: bool = False, **how: Any) -> Table:
        """Return the table for people and CSV. raw: numbers as they are, not in their unit. how: fields of `Table`."""
        shown = [[value.hex() if isinstance(value, bytes) else value for value in row] for row in self.rows()]
        columns = [Column(name, self._raw_unit(name) if raw else self.unit(name)) for name in self.columns]
        return Table(tuple(columns), shown, **how)

    def to_arrow(self) -> Any:
        """Return the `pyarrow.Table`: int64, double, string or binary columns, NULL as null, texts exactly as they are.

        A column that mixes kinds, as SQL allows, is a string column. Raises MissingExtraError without pyarrow.
        """
        try:
            import pyarrow
        except ImportError as error:
            raise MissingExtraError("pyarrow", "parquet", "Arrow") from error
        return pyarrow.table({name: _arrow(pyarrow, column) for name, column in self.columns.items()})

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return an Arrow stream for polars, pandas or DuckDB. Raises MissingExtraError without pyarrow."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """Return the `pandas.DataFrame` of the columns, None where not recorded. Raises UsageError without pandas."""
        return _package("pandas").DataFrame(dict(self.columns))

    def to_polars(self) -> Any:
        """Return the `polars.DataFrame`, by way of Arrow. Raises UsageError without polars or pyarrow."""
        return _package("polars").from_arrow(self.to_arrow())

    def _repr_html_(self) -> str:
        """Return the first rows, for a notebook."""
        head = "".join(f'<th title="{escape(self.meanings.get(name, ""))}">{escape(name)}</th>' for name in self.names)
        rows = self.where(np.arange(min(len(self), _SHOWN_ROWS))).rows()
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(escaped(str(value)))}</td>' for value in row)}</tr>" for row in rows
        )
        said = f"{counted(len(self), 'row')} x {counted(len(self.names), 'column')}"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{said}</p>"

    def _heading(self, name: str) -> str:
        """Return the name of a column, with its unit unless the name contains it."""
        unit = self.units.get(name)
        return name if unit is None or unit_of(name) == unit or self._raw_unit(name) == "text" else f"{name} ({unit})"

    def _raw_unit(self, name: str) -> Unit:
        column = self.columns[name]
        numeric = len(column) and (column.dtype != object or any(isinstance(value, _NUMBERS) for value in column))
        return "raw" if numeric else "text"


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(
            f"to_{name} needs the package {name!r}, which is not installed", f"pip install {name}"
        ) from error


def read_frame(engine: TraceProcessor, name: str, columns: str = "", where: str = "") -> Frame:
    """Return a frame of a loaded trace, one of FRAMES.

    columns: names of those to read, apart by spaces, else all. where: SQL that rows must meet, in place of the
    declared.
    """
    declared = FRAMES[name]
    items = {item.rpartition(" ")[2]: item for item in declared.columns.split(", ")}
    selected = ", ".join(items[column] for column in columns.split() or items)
    arrays = engine.query(
        f"INCLUDE PERFETTO MODULE {homes()[declared.view]};\nSELECT {selected} FROM {declared.view}"
        f" WHERE {where or declared.where} ORDER BY {declared.order}"
    )
    return Frame.of_view(arrays, declared.view)


def _array(values: Sequence[Any]) -> np.ndarray:
    kinds = set(map(type, values))
    if kinds in ({int}, {float}):
        return np.array(values)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _plain(value: Any) -> Value:
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _arrow(pyarrow: Any, column: np.ndarray) -> Any:
    if column.dtype != object:
        return pyarrow.array(column)
    values = column.tolist()
    kinds = {type(value) for value in values} - {type(None)}
    types = {int: pyarrow.int64(), float: pyarrow.float64(), bytes: pyarrow.binary()}
    if len(kinds) == 1 and (arrow_type := types.get(kinds.pop())):
        return pyarrow.array(values, type=arrow_type)
    texts = [value.hex() if isinstance(value, bytes) else None if value is None else str(value) for value in values]
    # A lone surrogate has no UTF-8 form.
    encoded = [None if text is None else text.encode("utf-8", "backslashreplace") for text in texts]
    return pyarrow.array(encoded, type=pyarrow.string())
