"""A figure is declared once: comparisons, thresholds, pages and stored reports take it from its declaration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_trace
from page_data import render

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.compare.thresholds import judge_report, parse_threshold
from molprof.analysis.documents import figures as documents
from molprof.analysis.figures import catalog
from molprof.analysis.figures.figure import gpu_figure
from molprof.analysis.figures.tables import TABLES as SHARED
from molprof.analysis.reports import read_stored

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
