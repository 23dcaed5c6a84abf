"""Queries that this process and a copy of it answer together: the trace processor uses a single processor."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from molprof.analysis.trace_processor.protocol import Columns
from molprof.common.errors import QueryError
from molprof.common.process import Copy
from molprof.queries import COSTS, included

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Who answers a query: this process, or the copy.
_SELF, _COPY = 1, 2


def answered(
    answer: Callable[[str], Columns],
    queries: Sequence[str],
    copies: contextlib.ExitStack,
    made: frozenset[str] = frozenset(),
    first: str = "",
) -> dict[str, Columns]:
    """The answers to `queries`, by this process and a copy of it.

    copies: waits for the copy to be gone, when it is closed itself; to free the copy's memory takes a while. made:
    modules whose tables this process has. first: what this process is asked before, while the copy begins. Those have
    no answer that are wrong, or that the copy was asked when it was killed.
    """
    answers: dict[str, Columns] = {}
    with _Claims(queries, made) as claims:

        def serve(connection: Connection) -> None:
            found: dict[str, Columns] = {}
            for query in claims.take(_COPY):
                with contextlib.suppress(Exception):  # whoever asks it in the other process gets the error
                    found[query] = answer(query)
            connection.send(found)  # all at once: a full pipe would stop this process
            connection.recv()  # with the end of this process its claims would end

        copy = copies.enter_context(contextlib.closing(Copy(serve)))
        for query in itertools.chain(filter(None, [first]), claims.take(_SELF)):
            with contextlib.suppress(QueryError):  # whoever asks it gets the error
                answers[query] = answer(query)
        with contextlib.suppress(EOFError, OSError):
            answers |= copy.connection.recv()
        copy.kill()  # it holds memory of its own
    return answers


class _Claims:
    """Which process answers which query. Each makes the tables of its own, so those that use the same go together."""

    def __init__(self, queries: Sequence[str], made: frozenset[str]) -> None:
        self._queries = queries
        self._needed = [included(query) - made for query in queries]
        # A query belongs to the process that locks its byte. The system frees the locks of a process that was killed.
        # The byte itself is the number of the process. One more byte belongs to the process that stops first.
        self._file = _unnamed_file()
        os.truncate(self._file, len(queries) + 1)

    def __enter__(self) -> _Claims:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def take(self, own: int) -> Iterator[str]:
        """The queries that the process `own` is to answer, until none is left for it.

        Next is the one whose tables cost it least, less what they would cost the other process. Of equal ones it is the
        costliest, so that small ones are left for the end; of these, the process takes the first and the copy the last.
        One that costs the other less is taken if it spares the other tables and is ready sooner, after all that each of
        both has taken. The first of the two to which none is left stops, and leaves the others to the other one.
        """
        while (place := self._next(own)) is not None:
            yield self._queries[place]

    def _next(self, own: int) -> int | None:
        owners = os.pread(self._file, len(self._queries), 0)
        here, there = (self._of(owners, number) for number in (own, _SELF + _COPY - own))
        ahead = _cost(there) - _cost(here)  # what the other has taken more

        def costs(place: int) -> tuple[int, int]:
            needed = self._needed[place]
            return _cost(needed - here), _cost(needed - there)

        def rank(place: int) -> tuple[int, int, int]:
            cost, other = costs(place)
            return cost - other, -cost, place if own == _SELF else -place

        def pays(place: int) -> bool:
            cost, other = costs(place)
            return cost <= other or (other > 0 and cost - other <= ahead)

        left = sorted((place for place, owner in enumerate(owners) if owner != own), key=rank)
        if (place := self._first(filter(pays, left), own)) is None and not self._lock(len(self._queries), own):
            return self._first(left, own)
        return place

    def _first(self, places: Iterable[int], own: int) -> int | None:
        return next((place for place in places if self._lock(place, own)), None)

    def _lock(self, place: int, own: int) -> bool:
        """Whether the byte is this process's now."""
        with contextlib.suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            os.pwrite(self._file, bytes([own]), place)
            return True
        return False

    def _of(self, owners: bytes, number: int) -> frozenset[str]:
        """The modules that a process needed for what it took."""
        return frozenset().union(
            *(needed for needed, owner in zip(self._needed, owners, strict=True) if owner == number)
        )


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("molprof")
    with tempfile.TemporaryFile() as file:  # for Pythons built on an old C library, as conda's and uv's were
        return os.dup(file.fileno())


def _cost(modules: frozenset[str]) -> int:
    return sum(COSTS.get(module, 0) for module in modules)
