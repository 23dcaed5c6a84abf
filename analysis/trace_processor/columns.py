"""Query results of the trace processor as numpy columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from molprof.analysis.trace_processor.protocol import Fields, content, contents, numbers, text

if TYPE_CHECKING:
    import numpy as np

# By name, in the order of the SELECT list: int64, float64, or object for text (str), blobs (bytes), anything with a
# NULL (None), and columns without rows.
Columns = dict[str, "np.ndarray"]

# Kinds of cells (CellType), and the fields of a CellsBatch that hold them.
_NULL, _INTEGER, _FLOAT, _TEXT, _BLOB = 1, 2, 3, 4, 5
_CELLS, _INTEGERS, _FLOATS, _BLOBS, _TEXTS = 1, 2, 3, 4, 5


def to_columns(names: Sequence[str], batches: Iterable[Fields]) -> Columns:
    """Columns from `CellsBatch` messages; a name that occurs twice gets a suffix: `name`, `name:1`."""
    import numpy as np  # heavy

    width = len(names)
    parts: list[list[np.ndarray]] = [[] for _ in names]
    kinds: list[set[int]] = [set() for _ in names]
    for batch in batches:
        cells = np.frombuffer(content(batch, _CELLS), np.uint8)
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


def _values_by_kind(batch: Fields) -> dict[int, np.ndarray]:
    import numpy as np  # heavy

    return {
        _INTEGER: numbers(content(batch, _INTEGERS)),
        _FLOAT: np.frombuffer(content(batch, _FLOATS), "<f8"),
        # Texts are joined, each ended by a NUL.
        _TEXT: np.array(text(batch, _TEXTS).split("\0")[:-1], dtype=object),
        _BLOB: np.array(list(map(bytes, contents(batch, _BLOBS))), dtype=object),
    }


def _joined(parts: list[np.ndarray], kinds: set[int]) -> np.ndarray:
    import numpy as np  # heavy

    if not parts:
        return np.empty(0, dtype=object)
    column = np.concatenate(parts, dtype=object if len(kinds) > 1 else None)
    # SQLite mixes both in IFNULL(ratio, 0).
    exact = kinds == {_INTEGER, _FLOAT} and all(isinstance(cell, float) or abs(cell) <= 2**53 for cell in column)
    return column.astype(np.float64) if exact else column
