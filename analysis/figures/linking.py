"""Whether calls and GPU work of a trace can be linked."""

from __future__ import annotations

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row
from molprof.common.errors import TraceError

AMBIGUOUS = Query("work_calls", "SELECT COUNT() AS numbers, MIN(correlation) AS least FROM molprof_ambiguous_call")


def refuse_ambiguous(engine: Engine, path: str) -> None:
    """Raise TraceError for a trace merged from several whose calls cannot be told apart.

    The engine must know the SQL package.
    """
    found = query_row(engine, AMBIGUOUS)
    if found["numbers"]:
        what = f"{found['numbers']:,} correlation numbers, such as {found['least']}, are of several calls"
        raise TraceError(
            f"{path}: {what}: it was merged from several traces, and which call started which kernel cannot be told",
            hint="read the separate traces with molprof ranks, or merge them with process numbers that begin with the"
            " rank, such as rank3_1234",
        )
