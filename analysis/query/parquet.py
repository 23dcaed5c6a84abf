"""Results of a query as a Parquet file, through pyarrow."""

from __future__ import annotations

import importlib.util
import io

from molprof.analysis.query import Result
from molprof.common.errors import MissingExtraError


def check_parquet() -> None:
    """Raises MissingExtraError where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError("pyarrow", "parquet", "the format parquet")


def result_to_parquet(result: Result) -> bytes:
    """The file's bytes. Raises UsageError for several results."""
    check_parquet()
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(result.frame.to_arrow(), buffer, compression="zstd")
    return buffer.getvalue()
