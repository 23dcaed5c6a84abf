"""Queries that this process and a copy of it answer together: the trace processor uses a single processor."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from molprof.analysis.engine.columns import Columns
from molprof.common.copied import Copy
from molprof.common.errors import QueryError


def answered(answer: Callable[[str], Columns], queries: Sequence[str]) -> dict[str, Columns]:
    """The answers to `queries`: this process takes them from the first on, a copy from the last on, until they meet.

    So queries that use the same tables should stand together. Those have no answer that are wrong, or that the copy
    was asked when it was killed.
    """
    answers: dict[str, Columns] = {}
    # A query belongs to the process that locks its byte. The system frees the locks of a process that was killed.
    claims = os.fdopen(os.memfd_create("molprof"), "w")

    def claimed(place: int) -> bool:
        try:
            fcntl.lockf(claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            return False
        return True

    def serve(connection: Connection) -> None:
        found: dict[str, Columns] = {}
        for place in reversed(range(len(queries))):
            if not claimed(place):
                break
            with contextlib.suppress(Exception):  # whoever asks it in the other process gets the error
                found[queries[place]] = answer(queries[place])
        connection.send(found)  # all at once: a full pipe would stop this process
        connection.recv()  # with the end of this process its claims would end

    with claims, contextlib.closing(Copy(serve)) as copy:
        for place, query in enumerate(queries):
            if not claimed(place):
                break
            with contextlib.suppress(QueryError):  # whoever asks it gets the error
                answers[query] = answer(query)
        with contextlib.suppress(EOFError, OSError):
            answers |= copy.connection.recv()
    return answers
