"""SQL that makes tables of facts: of rows, or of the events of an exported trace."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from molprof.queries import FACT_CATEGORY

_ID_BITS = 32
# How the statement of a table begins.
HEAD = "CREATE PERFETTO TABLE _molprof_fact_"
_ROWS = 10_000  # that are encoded at once
# Of the values of a statement, and of an id: the trace processor stopped at a request of about 100 MB.
MOST_BYTES, _ID_BYTES = 1 << 24, 22
# The module `molprof.facts` where the tables are made otherwise, so that SQL for an exported trace runs there too.
NO_MODULE = "CREATE PERFETTO VIEW _molprof_facts_are_there AS SELECT 1 AS are_there;\n"
_MODULE_HEAD = f"""\
-- The facts that molprof computes of a trace, as tables that the other modules read: from a file of `molprof export`.
--
-- Made from TABLES of analysis/facts/tables/, which a test compares. molprof itself makes the tables without it.

-- Fails where there are no facts: tables without rows would look like a trace in which nothing happened.
CREATE PERFETTO TABLE _molprof_facts_are_there AS
SELECT
  IIF(
    EXISTS(SELECT 1 FROM slice WHERE category = '{FACT_CATEGORY}'),
    1,
    json_extract('[]', 'this trace has no facts: write one that has them with molprof export')
  ) AS are_there;

CREATE PERFETTO TABLE _molprof_fact AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.fact') AS fact,
  arg_set_id
FROM slice
WHERE category = '{FACT_CATEGORY}'
ORDER BY id;"""


def of_rows(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the statements that make a table from rows. columns: name and type of each."""
    sources = (f"FROM json_each('[{text}]')" for text in (part.replace("'", "''") for part in _texts(rows)))
    return _statements(name, columns, lambda _, column: f"value ->> {column}", sources)


def of_ids(name: str, columns: Sequence[str], ids: Sequence[np.ndarray]) -> list[str]:
    """Return the statements that make a table of one or two columns of ids, negative ones NULL.

    A third of the time of rows.

    ids: int64, in one integer for each row; all are below 2**31.
    """
    values, numbers = ["value"], ids[0]
    if len(ids) > 1:
        values = [f"value >> {_ID_BITS}", f"NULLIF(value & {2**_ID_BITS - 1}, 0) - 1"]
        numbers = (ids[0] << _ID_BITS) + np.maximum(ids[1] + 1, 0)
    most = MOST_BYTES // _ID_BYTES
    parts = (numbers[start : start + most].tolist() for start in range(0, max(len(numbers), 1), most))
    return _statements(name, columns, lambda _, column: values[column], (f"FROM json_each('{part}')" for part in parts))


def _texts(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the rows as JSON, in as few texts as the length of a statement allows, never splitting a row."""
    left, parts, size = iter(rows), list[bytes](), 0
    while some := list(itertools.islice(left, _ROWS)):
        text = msgspec.json.encode(some)[1:-1]
        for part in [text] if len(text) <= MOST_BYTES else map(msgspec.json.encode, some):
            if parts and size + len(part) > MOST_BYTES:
                yield b",".join(parts).decode()
                parts, size = [], 0
            parts.append(part)
            size += len(part)
    yield b",".join(parts).decode()


def module(tables: Mapping[str, Sequence[str]]) -> str:
    """Return the module `molprof.facts`.

    It makes tables, of which these are the columns, from events of an exported trace.
    """
    statements = (
        _statement(
            name,
            columns,
            lambda column, _: f"EXTRACT_ARG(arg_set_id, 'args.{column}')",
            f"FROM _molprof_fact\nWHERE fact = '{name}'",
        )
        for name, columns in tables.items()
    )
    return "\n\n".join([_MODULE_HEAD, *(f"{sql};" for sql in statements)]) + "\n"


def _statements(
    name: str, columns: Sequence[str], value: Callable[[str, int], str], sources: Iterable[str]
) -> list[str]:
    """Return the statements that make a table from a source.

    Of several, those of a table for each, then one of them all.
    """
    clauses = list(sources)
    if len(clauses) == 1:
        return [_statement(name, columns, value, clauses[0])]
    names = [f"{name}_part_{number}" for number in range(1, len(clauses) + 1)]
    parts = [_statement(part, columns, value, source) for part, source in zip(names, clauses, strict=True)]
    listed = ", ".join(column.split()[0] for column in columns)
    union = "\nUNION ALL\n".join(f"SELECT {listed} FROM {HEAD.split()[-1]}{part}" for part in names)
    return [*parts, f"{HEAD}{name}(\n{_declared(columns)}\n) AS\n{union}"]


def _declared(columns: Sequence[str]) -> str:
    return ",\n".join(f"  {column}" for column in columns)


def _statement(name: str, columns: Sequence[str], value: Callable[[str, int], str], source: str) -> str:
    names = [column.split()[0] for column in columns]
    values = ",\n".join(f"  {value(column, index)} AS {column}" for index, column in enumerate(names))
    return f"{HEAD}{name}(\n{_declared(columns)}\n) AS\nSELECT\n{values}\n{source}"
