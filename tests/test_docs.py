"""The SQL package is documented to the last column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from molprof.queries.catalog import Column, catalog, standalone_sql

ROOT = Path(__file__).parent.parent
CATALOG = catalog()
# What Perfetto's own library uses; durations and times are not plain numbers.
TYPES = r"LONG|DOUBLE|STRING|BOOL|TIMESTAMP|DURATION|ARGSETID|JOINID\([a-z_]+\.[a-z_]+\)"
# Tables, functions and keywords of Perfetto and SQLite that may stand after FROM or JOIN.
STOCK = {"slice", "thread_track", "thread", "process", "args", "ancestor_slice"}
STOCK |= {"counter", "counter_track", "process_counter_track", "_interval_intersect"}


@pytest.mark.parametrize("name", CATALOG)
def test_every_column_has_type_comment_and_unit(name: str) -> None:
    for entry in CATALOG[name].entries:
        for column in (*entry.arguments, *entry.columns):
            check_column(column)


def check_column(column: Column) -> None:
    assert re.fullmatch(TYPES, column.type), column
    assert column.comment.endswith("."), f"a comment is a sentence: {column}"
    if column.type in ("TIMESTAMP", "DURATION") or column.name.endswith("_ns"):
        assert column.unit == "ns", column
    if column.name.endswith(("_bytes", "bytes")):
        assert column.unit == "bytes", column
    if column.name.endswith("_ratio"):
        assert (column.unit, column.type) == ("ratio", "DOUBLE"), column
    if column.name.endswith("_per_second"):
        assert column.unit == "bytes/s", column
    if column.type == "DOUBLE" and not column.unit:
        # A mean or quotient of counts says so in its name.
        assert re.search(r"_per_[a-z]+$|^mean_", column.name), column


@pytest.mark.parametrize("name", CATALOG)
def test_every_module_has_a_line_an_example_and_documented_entries(name: str) -> None:
    module = CATALOG[name]
    assert module.line.endswith(".")
    assert len(f"{name:18} {module.line}") <= 120
    assert module.example.endswith(";")
    assert "ORDER BY" in module.example
    assert any(entry.name in module.example for entry in module.entries)
    assert set(re.findall(r"\$(\w+)", module.example)) == {key for key, _ in module.defaults}
    assert all(entry.comment and entry.columns for entry in module.entries)


@pytest.mark.parametrize("name", CATALOG)
def test_every_entry_is_tested(name: str) -> None:
    tests = "".join(path.read_text() for path in sorted((ROOT / "tests/sql").glob("*.txt")))
    assert [entry.name for entry in CATALOG[name].entries if not re.search(rf"\b{entry.name}\b", tests)] == []


@pytest.mark.parametrize("name", CATALOG)
def test_modules_use_stock_perfetto_and_what_they_include_alone(name: str) -> None:
    sql = re.sub(r"--.*|'[^']*'", "", CATALOG[name].sql)
    # Names that begin with _ are for the modules of the package alone.
    own, *others = (
        set(re.findall(r"^CREATE PERFETTO \w+ (\w+)", item.sql, re.MULTILINE))
        for item in (CATALOG[name], *(CATALOG[item] for item in CATALOG[name].includes))
    )
    local = set(re.findall(r"^ +(?:RECURSIVE )?(\w+)(?:\([^)]*\))? AS (?:MATERIALIZED )?\($", sql, re.MULTILINE))
    included = set().union(*others)
    read = set(re.findall(r"\b(?:FROM|JOIN)\s+(\w+)", sql))
    assert read <= own | local | included | STOCK
    assert sql.count("CREATE ") == sql.count("CREATE PERFETTO ")


def test_sql_to_paste_has_every_module_once_and_no_include() -> None:
    for name in CATALOG:
        sql = standalone_sql(name, CATALOG)
        assert "INCLUDE PERFETTO MODULE molprof" not in sql
        created = re.findall(r"^CREATE OR REPLACE PERFETTO \w+ (\w+)", sql, re.MULTILINE)
        assert len(created) == len(set(created))
        assert set(created) >= {entry.name for entry in CATALOG[name].entries}
