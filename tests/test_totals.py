"""Totals of all steps of a run: estimated from the recorded steps, exact where all are recorded."""

from __future__ import annotations

from pathlib import Path

import tiny_trace
from page_data import render

from molprof.analysis.documents.figures import figure_values
from molprof.analysis.figures.run_model import RunTotal
from molprof.analysis.figures.totals import _total


def test_steps_that_were_not_recorded_are_like_those_that_were() -> None:
    prefills, decodes = [100], [10, 12, 11]
    # One more prefill, and seven more decode steps.
    assert _total([(prefills, 2), (decodes, 10)]) == RunTotal(310, 303, 317, False, 4, 12)
    assert _total([(prefills, 1), (decodes, 3)]) == RunTotal(133, 133, 133, True, 4, 4)


def test_a_run_on_a_cpu_has_leaf_operators(tmp_path: Path) -> None:
    report = tiny_trace.report(tmp_path / "cpu.json", tiny_trace.cpu_document())
    assert report.run is not None
    assert report.run.totals == {"leaf_operators": RunTotal(6, 4, 8, False, 2, 3)}
    figures = figure_values(report)
    assert (figures["run_leaf_operators"], figures["run_launches"], figures["run_kernels"]) == (6, None, None)
    assert "estimate: 2 of 3 steps recorded" in render(report, "table")


def test_a_run_on_a_gpu_has_launches_and_kernels(tmp_path: Path) -> None:
    report = tiny_trace.report(tmp_path / "gpu.json", tiny_trace.document())
    assert report.run is not None
    assert report.run.totals == {
        "launches": RunTotal(6, 5, 7, False, 2, 3),
        "kernels": RunTotal(8, 7, 8, False, 2, 3),
    }
