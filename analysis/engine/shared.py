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

Answer = Callable[[str], Columns]


class Shared:
    """Answers to `queries`: this process takes them from the first on, the copy from the last on, until they meet.

    So queries that use the same tables should stand together. Wrong ones have no answer.
    """

    def __init__(self, answer: Answer, queries: Sequence[str]) -> None:
        self._answer = answer
        self._queries = queries
        self._answers: dict[str, Columns] = {}
        # A query belongs to the process that locks its byte. The system frees the locks of a process that was killed.
        self._claims = os.memfd_create("molprof")
        self._copy = Copy(self._serve)
        self._copys: set[str] = set()  # that it has not answered yet
        for place, query in enumerate(queries):
            if not self._claim(place):
                self._copys = set(queries[place:])
                break
            with contextlib.suppress(QueryError):  # whoever asks it gets the error
                self._answers[query] = answer(query)

    def take(self, query: str) -> Columns | None:
        """The answer, once it is there, as often as asked; None where there is none."""
        while query in self._copys:
            try:
                answered, columns = self._copy.connection.recv()
            except (EOFError, OSError):
                self._copys.clear()
                break
            self._copys.remove(answered)
            if columns is not None:
                self._answers[answered] = columns
        return self._answers.get(query)

    def close(self) -> None:
        """Ends the copy."""
        self._copy.close()
        os.close(self._claims)

    def _claim(self, place: int) -> bool:
        try:
            fcntl.lockf(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            return False
        return True

    def _serve(self, connection: Connection) -> None:
        """What the copy does. It stays until it is ended: with it, its claims would end."""
        for place in reversed(range(len(self._queries))):
            if not self._claim(place):
                break
            try:
                columns: Columns | None = self._answer(self._queries[place])
            except Exception:  # the parent asks again and reports the error
                columns = None
            connection.send((self._queries[place], columns))
        connection.recv()
