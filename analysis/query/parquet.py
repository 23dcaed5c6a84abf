"""Results of a query as a Parquet file, through pyarrow."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

import numpy as np

from molprof.analysis.query import Result
from molprof.common.errors import MissingExtraError


def check_parquet() -> None:
    """Raises MissingExtraError where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError("pyarrow", "parquet", "the format parquet")


def result_to_parquet(result: Result) -> bytes:
    """The file's bytes: int64, double, string or binary columns, NULL as null, texts exactly as they are.

    A column that mixes kinds, as SQL allows, is a string column. Raises UsageError for several results.
    """
    check_parquet()
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({name: _array(pyarrow, column) for name, column in result.columns.items()})
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _array(pyarrow: Any, column: np.ndarray) -> Any:
    if column.dtype != object:
        return pyarrow.array(column)
    values = column.tolist()
    kinds = {type(value) for value in values} - {type(None)}
    types = {int: pyarrow.int64(), float: pyarrow.float64(), bytes: pyarrow.binary()}
    if len(kinds) == 1 and (known := types.get(kinds.pop())):
        return pyarrow.array(values, type=known)
    texts = [value.hex() if isinstance(value, bytes) else None if value is None else str(value) for value in values]
    # A lone surrogate has no UTF-8 form.
    encoded = [None if text is None else text.encode("utf-8", "backslashreplace") for text in texts]
    return pyarrow.array(encoded, type=pyarrow.string())
