"""Frames: named columns with units and meanings, and what they become."""

from __future__ import annotations

import numpy as np

from molprof.analysis.frame import Frame
from molprof.common.document import Column

FRAME = Frame.of_rows(
    ("name", "time_ns", "size_bytes", "ratio", "blob"),
    [("a", 5, None, 0.5, b"\xff"), (None, 7, 8, float("inf"), None)],
    units={"ratio": "ratio"},
    meanings={"name": "What ran."},
)


def test_columns_and_rows() -> None:
    assert (len(FRAME), FRAME.names) == (2, ("name", "time_ns", "size_bytes", "ratio", "blob"))
    assert FRAME["time_ns"].dtype == np.int64
    assert FRAME.rows()[0] == ("a", 5, None, 0.5, b"\xff")
    late = FRAME.where(FRAME["time_ns"] > 5)
    assert late.rows() == [(None, 7, 8, float("inf"), None)]
    assert (late.unit("ratio"), late.meanings) == ("ratio", {"name": "What ran."})
    assert (len(Frame.of_rows(("a", "b"), [])), len(Frame({}))) == (0, 0)


def test_json_has_every_value() -> None:
    assert FRAME.to_json() == [
        {"name": "a", "time_ns": 5, "size_bytes": None, "ratio": 0.5, "blob": "ff"},
        {"name": None, "time_ns": 7, "size_bytes": 8, "ratio": "inf", "blob": None},
    ]


def test_a_table_for_people_has_units() -> None:
    table = FRAME.table()
    assert table.columns == (
        Column("name", "name"),
        Column("time_ns", "ns"),
        Column("size_bytes", "bytes"),
        Column("ratio", "ratio"),
        Column("blob", "number"),
    )
    assert [column.unit for column in FRAME.table(raw=True).columns] == ["text", "raw", "raw", "raw", "text"]


def test_a_view_of_the_package_brings_units_and_meanings() -> None:
    columns = {"ts": np.array([1]), "dur": np.array([2]), "own": np.array([3])}
    frame = Frame.of_view(columns, "molprof_gpu_work")
    assert (frame.unit("dur"), frame.unit("own")) == ("ns", "number")
    assert frame.meanings["dur"]
    assert "own" not in frame.meanings
