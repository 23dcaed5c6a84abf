"""The SQL behind each figure gives that figure, and its certainty is the certificate's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tiny_trace import document, write

from molprof import api
from molprof.analysis.figures.catalog import FIGURES
from molprof.analysis.figures.figure import evidence_of
from molprof.analysis.query import check_reads
from molprof.common.errors import UsageError

# Worked out from the result, not the result itself.
INDIRECT = ("run_", "launches_per_molecule", "kernels_per_molecule")


@pytest.mark.parametrize("captured", [True, False])
def test_the_sql_of_every_figure_gives_it(tmp_path: Path, captured: bool) -> None:
    content: dict[str, Any] = document()
    if not captured:
        content = {"traceEvents": content["traceEvents"]}
    path = write(tmp_path / "trace.json", content)
    report = api.report(path)
    evidence = {figure.id: evidence_of(figure, report) for figure in FIGURES}
    asked = [
        (figure.value(report), sql)
        for figure in FIGURES
        if (sql := evidence[figure.id].sql) is not None
        and not figure.id.startswith(INDIRECT)
        and figure.value(report) is not None
    ]
    assert len(asked) > 30
    frames = api.query(path, ";\n".join(sql for _, sql in asked)).frames
    for (value, sql), frame in zip(asked, frames, strict=True):
        found = frame.rows()
        assert math.isclose((found or [(0,)])[0][0], float(str(value))), sql
    assert evidence["kernels"].verdict in ("exact", "bounded")
    assert (evidence["wall_ns"].verdict, evidence["wall_ns"].sql) == (
        ("bounded" if captured else "not_to_be_had"),
        None,
    )


@pytest.mark.parametrize(
    "sql",
    ["DROP TABLE a", "SELECT 1; PRAGMA a", "WITH a AS (SELECT 1) DELETE FROM b", "", "/* SELECT */ ATTACH 'a' AS b"],
)
def test_what_does_not_only_read_is_refused(sql: str) -> None:
    with pytest.raises(UsageError, match="only SELECT"):
        check_reads(sql)


def test_what_reads_passes() -> None:
    check_reads("INCLUDE PERFETTO MODULE molprof.launches; WITH a AS (SELECT 'DELETE; DROP') SELECT * FROM a;")
