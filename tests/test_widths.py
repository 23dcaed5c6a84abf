"""The table output of real traces and captured runs fits 100 columns, whatever it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny_trace
from msgspec.structs import replace
from page_data import render, report_of, timed, two_runs

from molprof.analysis.compare import Comparison, compare
from molprof.analysis.documents.comparison import comparison_document
from molprof.analysis.documents.report import report_document
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import Finding, Gain
from molprof.analysis.render import render as render_document
from molprof.analysis.render import table
from molprof.analysis.render.table import NARROW, WIDTH
from molprof.common.document import Column, Document, Section, Table
from molprof.common.values import width


def widest(subject: Report | Comparison, form: str = "table") -> int:
    return max(width(line) for line in render(subject, form).splitlines())


@pytest.mark.parametrize("count", [2, 4])
def test_comparisons_of_runs_with_large_figures(tmp_path: Path, count: int) -> None:
    """Hours instead of seconds, and names as long as those of hub models."""
    content = tiny_trace.document()
    content["molprof"]["model"]["name"] = "organisation/a-model-with-a-rather-long-name-0.6B-conformers"
    long = timed(report_of(tmp_path, content), 86_400_000_000_123, 10_000_000_000)
    first, second = two_runs(tmp_path).runs
    runs: Sequence[Report] = [first, long, second, long][:count]
    comparison = compare(runs)
    assert widest(comparison) <= WIDTH
    assert max(widest(report) for report in runs) <= WIDTH
    assert "86,400 s" in render(comparison)


def test_a_narrow_terminal(tmp_path: Path) -> None:
    """Numbers are not cut, so no line is wider than 60 columns, and none need be on a terminal of 40."""
    comparison = two_runs(tmp_path)
    for terminal in (60, 40):
        lines = table.render(comparison_document(comparison), terminal).splitlines()
        lines += table.render(report_document(comparison.runs[0]), terminal).splitlines()
        assert max(map(width, lines)) <= NARROW
        assert any("5.38 s" in line for line in lines)


@pytest.mark.parametrize("worth", [0, 3, 8])
@pytest.mark.parametrize("terminal", [None, 60, 80])
def test_the_first_screen_has_forty_lines(tmp_path: Path, worth: int, terminal: int | None) -> None:
    """Whatever is found: each of the first five is named with its place, and no text is cut."""
    long = " ".join(["long words"] * 20)
    finding = Finding(
        id="a",
        title="A title",
        evidence=f"a fact; {long}; another {long}",
        gain=Gain(0.125, 0.25, "unprofiled wall time", "all of it"),
        fix=long,
        explanation=long,
        query="steps",
        figures={},
        place="file.py(3): function",
    )
    notes = [replace(finding, note=True, title=f"Worth knowing {number}") for number in range(3)]
    report = timed(report_of(tmp_path, tiny_trace.document()), 5_380_000_000, 1_000)
    document = report_document(replace(report, findings=(*[finding] * worth, *notes)))
    lines = render_document(document, "table", terminal, whole=False).splitlines()
    assert len(lines) <= 40
    assert sum(line.endswith("file.py(3): function") for line in lines) == min(worth, 5)
    assert sum(line.endswith("12.5 % to 25.0 %: A title") for line in lines) == min(worth, 5)
    assert sum(line.endswith("evidence     a fact") for line in lines) >= {3: 1}.get(worth, 0)
    assert not any("…" in line for line in lines[1:])
    assert ("  Nothing worth doing was found." in lines) == (not worth)


def test_all_is_shown_on_demand_and_in_data(tmp_path: Path) -> None:
    document = report_document(report_of(tmp_path, tiny_trace.document()))
    for form in ("table", "markdown"):
        assert "Events" not in render_document(document, form, whole=False)
        assert "Events" in render_document(document, form)
    assert render_document(document, "json", whole=False) == render_document(document, "json")


def test_results_of_queries_are_cut_to_a_terminal_alone() -> None:
    result = Table((Column("a"), Column("b")), [("x" * 50, "y" * 50)], wide=True)
    document = Document("", (Section("", table=result),), dict, lambda: result)
    whole, cut = table.render(document), table.render(document, 70)
    assert "y" * 50 in whole
    assert max(map(width, cut.splitlines())) == 70
    assert "lines are cut to 70 columns; --format csv has them whole" in cut
    assert "y" * 50 in render_document(document, "csv", 70)
