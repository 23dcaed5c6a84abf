"""Totals of all steps of a run: estimated from the recorded steps, exact where all are recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_trace
from decoding_trace import decoding, gemms
from page_data import render

from molprof.analysis.documents.figures import figure_values
from molprof.analysis.figures.run_model import RunTotal


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(10, RunTotal(110, 103, 117, False, 3, 10)), (3, RunTotal(33, 33, 33, True, 3, 3))],
)
def test_steps_that_were_not_recorded_are_like_those_that_were(tmp_path: Path, steps: int, expected: RunTotal) -> None:
    launches = {1000: 10, 2000: 12, 3000: 11}
    content = decoding(lambda start: gemms(start, 20, 5, launches[start]), steps=3, lengths=[steps] * 8)
    run = tiny_trace.report(tmp_path / "run.json", content).run
    assert run is not None
    assert run.totals == {"launches": expected, "kernels": expected}


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
