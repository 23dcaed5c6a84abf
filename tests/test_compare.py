"""Comparing runs: the difference adds up, predictions follow from figures, nothing is made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from page_data import render

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.figures import Report
from molprof.common.errors import UsageError


def report_of(tmp_path: Path, name: str, content: dict[str, Any]) -> Report:
    return tiny_trace.report(tmp_path / f"{name}.json", content)


def qwen_document() -> dict[str, Any]:
    """Twice the forward time of the tiny run, one more token, and another label."""
    content = tiny_trace.document()
    manifest = content["molprof"]
    manifest["model"].update(name="hub/qwen", family="qwen3")
    manifest["timings"]["repeats"] = [tiny_trace.repeat(wall, wall - 105) for wall in (2005, 2105, 2205)]
    manifest["molecules"][1]["token_ids"].append(10)
    return content


@pytest.fixture
def llama(tmp_path: Path) -> Report:
    return report_of(tmp_path, "llama", tiny_trace.document())


@pytest.fixture
def qwen(tmp_path: Path) -> Report:
    return report_of(tmp_path, "qwen", qwen_document())


@pytest.fixture
def foreign(tmp_path: Path) -> Report:
    return report_of(tmp_path, "foreign", {"traceEvents": [tiny_trace.work("kernel", "fmha", 5, 2, 1)]})


def test_predictions_follow_from_the_figures(llama: Report, qwen: Report) -> None:
    found = {item.id: item for item in compare([qwen, llama]).predictions}
    assert {name: item.verdict for name, item in found.items()} == {
        "fewer_tokens_per_molecule": "confirmed",
        "fewer_launches_per_molecule": "equal",
        "fewer_elementwise_per_attention": "equal",
        "faster": "confirmed",
    }
    # The LLaMA run is recognized by its family, wherever it stands.
    assert found["faster"].figures == {"llama lp:generic": 1095, "qwen lp:generic": 2105}


def test_predictions_on_a_cpu_say_nothing_of_launches(tmp_path: Path, qwen: Report) -> None:
    cpu = report_of(tmp_path, "cpu", tiny_trace.cpu_document())
    verdicts = {item.id: item.verdict for item in compare([cpu, qwen]).predictions}
    assert verdicts["fewer_launches_per_molecule"] == "not recorded"
    assert verdicts["fewer_elementwise_per_attention"] == "not recorded"
    assert verdicts["faster"] == "confirmed"


def test_a_constrained_run_is_not_held_against_an_unconstrained_one(tmp_path: Path, qwen: Report) -> None:
    content = tiny_trace.document()
    content["molprof"]["generation"] |= {"processor": None, "placeholder": None}
    comparison = compare([report_of(tmp_path, "free", content), qwen])
    assert {item.verdict for item in comparison.predictions} == {"not recorded"}


def test_more_than_two_runs_each_against_the_first(llama: Report, qwen: Report, foreign: Report) -> None:
    comparison = compare([llama, qwen, foreign, llama])
    assert comparison.labels == ("llama lp:generic #1", "qwen lp:generic", "foreign", "llama lp:generic #2")
    differences = comparison.to_json()["difference"]
    assert [item and item["wall_ns"] for item in differences] == [1010, None, 0]
    assert differences[2]["residual_ratio"] is None


def test_a_foreign_trace_has_no_difference(llama: Report, foreign: Report) -> None:
    comparison = compare([foreign, llama])
    assert comparison.to_json()["difference"] is None
    rows = {row.figure.id: row for row in comparison.rows}
    assert rows["wall_ns"].values == (None, 1095)
    assert rows["wall_ns"].ratios == (None, None)
    assert rows["kernels"].values == (1, 6)


def test_launches_of_steps_that_the_engine_marked(tmp_path: Path, foreign: Report) -> None:
    mark = "execute_context_0(0)_generation_4(4)"
    events = [tiny_trace.slice_("user_annotation", mark, ts, 50) for ts in (0, 100)]
    for index, ts in enumerate((1, 5, 101)):
        events.append(tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", ts, 2, correlation=index))
        events.append(tiny_trace.work("kernel", "k", ts + 10, 2, index))
    marked = api.report(tiny_trace.write(tmp_path / "marked.json", {"traceEvents": events}))
    rows = {row.figure.id: row for row in compare([marked, foreign]).rows}
    assert rows["launches_per_step"].values == (1.5, None)
    assert rows["launches_per_token"].values == (0.375, None)


def test_what_no_trace_records_is_one_line(foreign: Report) -> None:
    shown = " ".join(render(compare([foreign, foreign])).split())
    assert "not recorded: Unprofiled time; Tokens; Launches; Kernels (kernels of all steps (estimate), " in shown
    assert "molecule" not in shown
    assert "not recorded: Settings of the run; Trace (devices in the trace)" in shown


def test_one_report_is_no_comparison(llama: Report) -> None:
    with pytest.raises(UsageError, match="at least two traces, got 1"):
        compare([llama])
