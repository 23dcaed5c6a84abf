"""Tables of facts may have more text than the trace processor takes in one request."""

from __future__ import annotations

from molprof.analysis.facts import statements


def test_a_long_table_is_made_of_several() -> None:
    text = "x" * (9 << 20)
    made = statements.of_rows("long", ("number LONG", "name STRING"), [(1, text), (2, "'"), (3, text)])
    assert [len(sql) > len(text) for sql in made] == [True, True, False]
    assert made[-1].splitlines() == [
        "CREATE PERFETTO TABLE _molprof_fact_long(", "  number LONG,", "  name STRING", ") AS",
        "SELECT number, name FROM _molprof_fact_long_part_1", "UNION ALL",
        "SELECT number, name FROM _molprof_fact_long_part_2",
    ]  # fmt: skip
