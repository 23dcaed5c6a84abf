"""SQL that makes tables of facts: of rows, or of the events of an exported trace."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from molprof.queries import FACT_CATEGORY

_ID_BITS = 32
# How the statement of a table begins.
HEAD = "CREATE PERFETTO TABLE _molprof_fact_"
_ROWS = 10_000  # that are encoded at once
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


def of_rows(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """The statement that makes a table of rows. columns: name and type of each."""
    left, parts = iter(rows), []
    while some := list(itertools.islice(left, _ROWS)):
        parts.append(msgspec.json.encode(some)[1:-1].decode())
    text = f"[{','.join(parts)}]".replace("'", "''")
    return _statement(name, columns, lambda _, place: f"value ->> {place}", f"FROM json_each('{text}')")


def of_ids(name: str, columns: Sequence[str], ids: Sequence[np.ndarray]) -> str:
    """The statement that makes a table of one or two columns of ids, negative ones NULL: a third of the time of rows.

    ids: int64, in one integer for each row; all are below 2**31.
    """
    if len(ids) == 1:
        return _statement(name, columns, lambda _, place: "value", f"FROM json_each('{ids[0].tolist()}')")
    values = [f"value >> {_ID_BITS}", f"NULLIF(value & {2**_ID_BITS - 1}, 0) - 1"]
    text = ((ids[0] << _ID_BITS) + np.maximum(ids[1] + 1, 0)).tolist()
    return _statement(name, columns, lambda _, place: values[place], f"FROM json_each('{text}')")


def module(tables: Mapping[str, Sequence[str]]) -> str:
    """The module `molprof.facts`: it makes tables, of which these are the columns, from events of an exported trace."""
    made = (
        _statement(
            name,
            columns,
            lambda column, _: f"EXTRACT_ARG(arg_set_id, 'args.{column}')",
            f"FROM _molprof_fact\nWHERE fact = '{name}'",
        )
        for name, columns in tables.items()
    )
    return "\n\n".join([_MODULE_HEAD, *(f"{sql};" for sql in made)]) + "\n"


def _statement(name: str, columns: Sequence[str], value: Callable[[str, int], str], source: str) -> str:
    names = [column.split()[0] for column in columns]
    declared = ",\n".join(f"  {column}" for column in columns)
    values = ",\n".join(f"  {value(column, place)} AS {column}" for place, column in enumerate(names))
    return f"{HEAD}{name}(\n{declared}\n) AS\nSELECT\n{values}\n{source}"
