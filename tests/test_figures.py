"""Figures declared once and used everywhere; frames; times of steps by position."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_trace
from page_data import render

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.compare.thresholds import judge_report, parse_threshold
from molprof.analysis.documents import figures as documents
from molprof.analysis.figures import catalog
from molprof.analysis.figures.figure import gpu_figure
from molprof.analysis.figures.run import MAX_POINTS, step_times
from molprof.analysis.figures.run_model import StepTime
from molprof.analysis.figures.tables import TABLES as SHARED
from molprof.analysis.frame import Frame
from molprof.analysis.reports import read_stored
from molprof.common.document import Column
from molprof.common.manifest import Repeat

SQL = "SELECT MAX(dur) AS dur_ns FROM slice WHERE category = 'kernel'"
FIGURE = gpu_figure("longest_kernel_ns", "Kernels", "longest kernel", "ns", SQL, "launches", ("gpu_time",), once=True)
(LONGEST,) = FIGURE.tables


def test_ids_are_unique_and_labels_complete() -> None:
    assert len({figure.id for figure in catalog.FIGURES}) == len(catalog.FIGURES)
    assert list(catalog.COMPARED.values()) == [figure for figure in catalog.FIGURES if figure.compared]
    assert all(figure.label == figure.label.strip() for figure in catalog.FIGURES)
    assert all(catalog.TABLES[table.name] is table for figure in catalog.FIGURES for table in figure.tables)
    assert all(catalog.TABLES[table.name] is table for table in SHARED)


def test_a_figure_with_its_query_needs_no_second_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(render(api.report(tiny_trace.write(tmp_path / "a.json", tiny_trace.document())), "json"))
    monkeypatch.setitem(catalog.COMPARED, FIGURE.id, FIGURE)
    monkeypatch.setitem(catalog.METRICS, FIGURE.id, FIGURE)
    monkeypatch.setattr(documents, "FIGURES", (*catalog.FIGURES, FIGURE))
    monkeypatch.setitem(catalog.TABLES, LONGEST.name, LONGEST)
    report = api.report(tiny_trace.write(tmp_path / "a.json", tiny_trace.document()))
    assert LONGEST.name not in [table.name for table in catalog.shown_tables(report)]
    stored = read_stored(path)  # written before the figure was there
    assert stored is not None
    comparison = compare([report, stored])
    (row,) = (row for row in comparison.to_json()["rows"] if row["id"] == FIGURE.id)
    assert row["values"] == [40_000, None]
    for style in ("table", "markdown", "html"):
        assert "longest kernel" in render(comparison, style)
    assert "longest_kernel_ns,ns,40000,," in render(comparison, "csv")
    assert "longest kernel" in render(report, "html")
    data = json.loads(render(report, "json"))
    assert (data["tables"][LONGEST.name], data["figures"][FIGURE.id]) == ([{"dur_ns": 40_000}], 40_000)
    assert "figures.longest_kernel_ns,40000\n" in render(report, "csv")
    assert judge_report(report, [parse_threshold("longest_kernel_ns>30us")]).failed
    assert judge_report(stored, [parse_threshold("longest_kernel_ns>30us")]).undecided


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


def repeat(*batches: list[int]) -> Repeat:
    return Repeat(sum(map(sum, batches)), {}, list(batches))


def test_medians_over_repeats_then_over_batches() -> None:
    repeats = [repeat([90, 10, 20], [80, 30]), repeat([70, 14, 22], [60, 34]), repeat([50, 12, 99], [70, 90])]
    assert step_times(repeats) == (
        StepTime(0, 0, 2, 70, 70, 70),
        StepTime(1, 1, 2, 23, 12, 34),
        StepTime(2, 2, 1, 22, 22, 22),
    )


def test_low_and_high_leave_out_a_tenth_on_either_side() -> None:
    batches = [[5, time] for time in range(100, 120)]
    assert step_times([repeat(*batches)])[1] == StepTime(1, 1, 20, 110, 102, 117)


def test_many_positions_are_put_together_and_prefill_stands_alone() -> None:
    points = step_times([repeat([1_000, *range(1, 2 * MAX_POINTS)])])
    assert len(points) == MAX_POINTS + 1
    assert points[0] == StepTime(0, 0, 1, 1_000, 1_000, 1_000)
    assert points[1] == StepTime(1, 2, 2, 2, 1, 2)
    assert points[-1].last_step == 2 * MAX_POINTS - 1
    assert sum(point.steps for point in points) == 2 * MAX_POINTS


def test_without_repeats_or_with_unlike_ones_there_are_none() -> None:
    assert step_times([]) == ()
    assert step_times([repeat([])]) == ()
    assert step_times([repeat([1, 2]), repeat([1, 2, 3])]) == ()


def test_phases_step_by_step_are_medians_over_passes(tmp_path: Path) -> None:
    content = tiny_trace.document()
    for repeat, more in zip(content["molprof"]["timings"]["repeats"], (-1, 5, 0), strict=True):
        times = {
            "forward": [list(range(1, 60)), list(range(60, 101))],
            "prefill": [[900], [700]],
            "processor": [[], []],
        }
        repeat["step_phases_ns"] = {name: [[ns + more for ns in batch] for batch in times[name]] for name in times}
    found = api.report(tiny_trace.write(tmp_path / "a.json", content)).to_json()["run"]["step_phases"]
    assert [tuple(row.values()) for row in found] == [
        ("prefill", 2, 700, None, None, 900), ("forward", 100, 50, 90, 99, 100)
    ]  # fmt: skip
