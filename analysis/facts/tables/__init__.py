"""Facts as tables of the trace processor: each is made when a query reads it.

SQL modules read them as `_molprof_fact_NAME`. A new one is an entry of TABLES: its columns with their types in SQL, and
a function from `Facts` to its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from molprof.analysis.facts import statements
from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.tables import calls, devices, frames, graphs, links, phases, tokens, work
from molprof.analysis.facts.tables.ahead import ahead, made
from molprof.common.errors import MolprofError
from molprof.common.memory import processors
from molprof.queries import FACTS, PACKAGE, facts_in, modules

if TYPE_CHECKING:
    from molprof.analysis.trace_processor import TraceProcessor

_ROOMS = (links, devices, work, calls, graphs, frames, phases, tokens)
TABLES = {name: table for room in _ROOMS for name, table in room.TABLES.items()}
# Columns of ids that are written as one; rows that are made at once.
_FEW, _MOST_ROWS = 2, 10_000


def install(engine: TraceProcessor, everything: bool = False) -> None:
    """Register the SQL package with an engine that holds a trace, and add fact tables as queries read them.

    everything: add all of them now. Raises EngineError.
    """
    facts = Facts(engine)
    added: set[str] = set()

    def provide(sql: str) -> None:
        if sql.startswith(statements.HEAD):  # a table of facts, which reads none
            return
        for name in sorted(facts_in(sql) & TABLES.keys()):
            if name in added:  # also by what another one is made from
                continue
            added.add(name)  # first: what it is made from is asked too
            asked = engine.before_query  # this function: one that names itself is freed late, with all facts
            try:
                made_of = table_sql(name, facts)
                engine.before_query = None  # it takes long to look for facts in the values of one
                for statement in made_of:
                    engine.query(statement)
            except MolprofError:
                added.discard(name)
                raise
            finally:
                engine.before_query = asked

    engine.facts = facts
    engine.before_query = provide
    engine.register_package(PACKAGE, {**modules(), FACTS: statements.NO_MODULE})
    if everything:
        provide(" ".join(f"_molprof_fact_{name}" for name in TABLES))


def columns_of(name: str, facts: Facts) -> list[Sequence[Any]]:
    """Return the columns of a table of facts."""
    return [column.tolist() if isinstance(column, np.ndarray) else column for column in TABLES[name].make(facts)]


def computed_ahead(engine: TraceProcessor, processes: int | None) -> AbstractContextManager[None]:
    """Start a second thread that computes columns of tables that a report reads, unless `processes` is 1."""
    return ahead(engine.facts, TABLES, processes or processors())


def table_sql(name: str, facts: Facts) -> list[str]:
    """Return the statements that make a table of facts."""
    columns = TABLES[name].columns
    rows = made(name, facts, TABLES[name])
    if len(columns) <= _FEW and all(" JOINID(" in column for column in columns):
        return statements.of_ids(name, columns, [np.asarray(column, dtype=np.int64) for column in rows])
    return statements.of_rows(name, columns, _rows(rows))


def _rows(columns: Sequence[Sequence[Any] | np.ndarray]) -> Iterator[Sequence[Any]]:
    """Yield the rows of columns: as Python objects, some at a time, since these take several times the memory."""
    for start in range(0, len(columns[0]), _MOST_ROWS):
        some = (column[start : start + _MOST_ROWS] for column in columns)
        yield from zip(*(part.tolist() if isinstance(part, np.ndarray) else part for part in some), strict=True)
