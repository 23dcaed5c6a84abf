"""Query results of the trace processor as numpy columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

# By name, in the order of the SELECT list: int64, float64, or object for text (str), blobs (bytes), anything with a
# NULL (None), and columns without rows.
Columns = dict[str, np.ndarray]

# Cell kinds of perfetto.protos.QueryResult.CellsBatch.CellType.
_NULL, _INTEGER, _FLOAT, _TEXT, _BLOB = 1, 2, 3, 4, 5


def to_columns(names: Sequence[str], batches: Iterable[Any]) -> Columns:
    """Columns from `CellsBatch` messages; a name that occurs twice gets a suffix: `name`, `name:1`."""
    width = len(names)
    parts: list[list[np.ndarray]] = [[] for _ in names]
    kinds: list[set[int]] = [set() for _ in names]
    for batch in batches:
        cells = np.asarray(batch.cells, dtype=np.uint8)
        if not len(cells):
            continue
        values = _values_by_kind(batch)
        rank = {kind: np.cumsum(cells == kind) - 1 for kind in values}
        for column in range(width):
            mine = cells[column::width]
            present = set(np.flatnonzero(np.bincount(mine)).tolist())
            kinds[column] |= present
            if len(present) == 1 and _NULL not in present:
                kind = present.pop()
                parts[column].append(values[kind][rank[kind][column::width]])
                continue
            part = np.full(len(mine), None, dtype=object)
            for kind in present - {_NULL}:
                here = mine == kind
                # Python's numbers: json and string formatting treat numpy's differently.
                part[here] = values[kind][rank[kind][column::width][here]].astype(object)
            parts[column].append(part)
    before = [names[:place].count(name) for place, name in enumerate(names)]
    distinct = [f"{name}:{count}" if count else name for name, count in zip(names, before, strict=True)]
    return {name: _joined(part, kind) for name, part, kind in zip(distinct, parts, kinds, strict=True)}


def _values_by_kind(batch: Any) -> dict[int, np.ndarray]:
    text = batch.string_cells
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return {
        _INTEGER: np.fromiter(batch.varint_cells, np.int64, len(batch.varint_cells)),
        _FLOAT: np.fromiter(batch.float64_cells, np.float64, len(batch.float64_cells)),
        # Texts are joined, each ended by a NUL.
        _TEXT: np.array(text.split("\0")[:-1], dtype=object),
        _BLOB: np.array(list(batch.blob_cells), dtype=object),
    }


def _joined(parts: list[np.ndarray], kinds: set[int]) -> np.ndarray:
    if not parts:
        return np.empty(0, dtype=object)
    column = np.concatenate(parts, dtype=object if len(kinds) > 1 else None)
    # SQLite mixes both in IFNULL(ratio, 0).
    exact = kinds == {_INTEGER, _FLOAT} and all(isinstance(cell, float) or abs(cell) <= 2**53 for cell in column)
    return column.astype(np.float64) if exact else column
