"""Rows of the settings: which are shown, and what a comparison says of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_trace
from msgspec.structs import replace

from molprof.analysis.compare import compare
from molprof.analysis.documents.figures import Reports, settings_section
from molprof.analysis.figures import Report
from molprof.common.text_format import ANSWER, PROMPT


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return tiny_trace.report(tmp_path / "trace.json", tiny_trace.document())


def test_settings_of_torch_and_texts_are_rows_where_they_tell_something(report: Report) -> None:
    assert report.run is not None
    asked = {"tf32": True, "padding_multiple": 8, "max_cache_length": 99, "answer_format": "<{atom}({x} {y} {z})...>"}
    plain = {"tf32": False, "padding_multiple": 1, "max_cache_length": None, "answer_format": ANSWER}
    runs = [
        replace(report, run=replace(report.run, setup=replace(report.run.setup, prompt_format=PROMPT, **changes)))
        for changes in (plain, asked)
    ]

    def rows(*reports: Report) -> dict[str, tuple[object, ...]]:
        table = settings_section(Reports(("a", "b")[: len(reports)], reports)).table
        assert table is not None
        return {str(row[0]): tuple(cell.value for cell in row[1:]) for row in table.rows}  # type: ignore[union-attr]

    both = rows(*runs)
    assert both["TF32"] == ("off", "on")
    assert both["prompt padding"] == ("to the longest", "to a multiple of 8")
    assert both["KV cache length"] == ("as needed", "99")
    assert both["answer format"] == (ANSWER, asked["answer_format"])
    assert "prompt format" not in both
    assert {"KV cache length", "answer format"}.isdisjoint(rows(runs[0]))
    assert "TF32 (on, not off)" in next(note for note in compare(runs).notes if "differs from" in note)
