"""What a user says of foreign traces, and the figures and predictions that follow from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_trace

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.compare.thresholds import Expectation
from molprof.analysis.documents.figures import figure_values
from molprof.analysis.documents.report import report_document
from molprof.analysis.figures.model import Report
from molprof.analysis.render import render
from molprof.analysis.reports import read_stored, with_given
from molprof.common.errors import UsageError


def foreign(folder: Path, name: str = "foreign", launches: int = 6) -> Report:
    """A trace of so many launches and kernels, and 1 graph launch, without steps."""
    events = [tiny_trace.slice_("cuda_runtime", "cudaGraphLaunch", 0, 1, correlation=0)]
    for place in range(1, launches + 1):
        events.append(tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", 10 * place, 1, correlation=place))
        events.append(tiny_trace.work("kernel", tiny_trace.COPY if place % 3 else "fmha", 10 * place + 5, 2, place))
    return api.report(tiny_trace.write(folder / f"{name}.json", {"traceEvents": events}))


def test_figures_per_token_and_molecule(tmp_path: Path) -> None:
    report = foreign(tmp_path)
    names = ("launches_per_token", "kernels_per_token", "gpu_ns_per_token", "launches_per_molecule",
             "kernels_per_molecule", "tokens_per_molecule", "generated_tokens")  # fmt: skip
    assert [figure_values(report)[name] for name in names] == [None] * len(names)
    (told,) = with_given([report], [12], [4])
    assert [figure_values(told)[name] for name in names] == [0.5, 0.5, 1000, 1.5, 1.5, 3, 12]
    assert told.to_json()["given"] == {"tokens": 12, "molecules": 4}
    path = tmp_path / "stored.json"
    path.write_text(render(report_document(told), "json"))
    stored = read_stored(path)
    assert stored is not None
    assert figure_values(stored) == figure_values(told)


def test_tokens_of_a_trace_without_a_gpu_make_no_launches(tmp_path: Path) -> None:
    events = [tiny_trace.slice_("cpu_op", "aten::mm", 0, 1)]
    report = api.report(tiny_trace.write(tmp_path / "cpu.json", {"traceEvents": events}))
    (told,) = with_given([report], [12], [4])
    assert figure_values(told)["launches_per_token"] is None
    assert figure_values(told)["kernels_per_molecule"] is None


def test_one_number_for_all_or_one_for_each(tmp_path: Path) -> None:
    report = foreign(tmp_path)
    run = tiny_trace.report(tmp_path / "run.json", tiny_trace.document())
    assert [it.given.tokens for it in with_given([report, run, report], [5], [])] == [5, None, 5]
    assert [it.given.molecules for it in with_given([report, run, report], [], [5, 6])] == [5, None, 6]
    with pytest.raises(UsageError, match="--tokens was given 3 times, for 2 foreign traces"):
        with_given([report, run, report], [1, 2, 3], [])
    with pytest.raises(UsageError, match=r"--molecules is for foreign traces; .*run\.json records its own"):
        with_given([run], [], [1])


def test_predictions_are_judged_where_the_figures_exist(tmp_path: Path) -> None:
    reports = with_given([foreign(tmp_path, "a", 6), foreign(tmp_path, "b", 9)], [], [2])
    found = {item.id: item for item in compare(reports).predictions}
    assert {name: item.verdict for name, item in found.items()} == {
        "fewer_tokens_per_molecule": "not recorded",
        "fewer_launches_per_molecule": "confirmed",
        "fewer_elementwise_per_attention": "equal",
        "faster": "not recorded",
    }
    assert found["fewer_launches_per_molecule"].figures == {"a": 3, "b": 4.5}
    reason = "not recorded in a and b; --tokens and --molecules say how many it generated"
    assert found["fewer_tokens_per_molecule"].reason == reason
    # The name of the file tells the family, wherever it stands.
    named = compare([foreign(tmp_path, "my-qwen"), foreign(tmp_path, "other"), foreign(tmp_path, "LLaMA-3")])
    assert list(named.predictions[0].figures) == ["LLaMA-3", "my-qwen"]


def test_what_was_measured_once_has_no_verdict(tmp_path: Path) -> None:
    reports = [foreign(tmp_path, "a"), foreign(tmp_path, "b", 60)]
    item = compare(reports, expectations=[Expectation("x", "x", "kernel_time_ns", "lower")]).predictions[-1]
    assert (item.verdict, item.reason) == ("not significant", "measured once, so its noise is not known")
