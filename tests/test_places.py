"""Findings and idle time have the right locations: shares of small traces, and of public ones.

The values of public traces were counted plainly from their events.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from certificate_data import needs_traces, whole
from finding_cases import findings, plain
from tiny_trace import slice_, work, write

from molprof import api
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import Finding

Event = dict[str, Any]


def launch(ts: float, correlation: int, start: float, dur: float, name: str = "add", stream: int = 7) -> list[Event]:
    """A call of 2 µs and its kernel."""
    call = slice_("cuda_runtime", "cudaLaunchKernel", ts, 2, correlation=correlation)
    return [call, work("kernel", name, start, dur, correlation, stream)]


def launched_in(*operators: tuple[str, ...], every: float = 100, gpu: float = 5, category: str = "cpu_op") -> Event:
    """A launch in each of some stacks of operators, the outermost first, that the GPU waits for."""
    events = []
    for number, names in enumerate(operators):
        ts = 1000 + every * number
        for depth, name in enumerate(names):
            events.append(slice_(category, name, ts + depth, every - 10 - 2 * depth))
        events += launch(ts + 20, number + 1, ts + 30, gpu)
    return plain(events)


def found_in(tmp_path: Path, content: Event, rule: str = "launch_bound") -> Finding:
    return findings(tmp_path, content)[rule]


def causes(report: Report) -> dict[str, int]:
    return {str(row["cause"]): row["time_ns"] for row in report.table("idle_causes").to_json()}  # type: ignore[misc]


def test_a_place_with_less_than_half_is_told_with_its_share(tmp_path: Path) -> None:
    names = [("aten::first",)] + [("aten::a",)] * 3 + [("aten::b",)] * 2 + [("aten::c",)] * 2
    found = found_in(tmp_path, launched_in(*names))
    assert (found.location, found.location_ratio) == ("aten::a", pytest.approx(3 / 7))
    assert found.location_text == "spread, most in aten::a (42.9 % of it)"
    assert found.evidence.endswith("; by place: this one 3 (285 µs), aten::b 2 (190 µs), aten::c 2 (190 µs)")


def test_a_place_has_the_time_of_gaps_and_not_the_most_launches(tmp_path: Path) -> None:
    # 20 gaps of 20 us end with a launch in aten::many, and 3 of 355 and 295 us with one in aten::slow.
    many = launched_in(*[("aten::many",)] * 21, every=40, gpu=20)["traceEvents"]
    slow = [
        event
        for number in range(3)
        for event in (
            slice_("cpu_op", "aten::slow", 2000 + 300 * number, 250),
            *launch(2200 + 300 * number, 90 + number, 2205 + 300 * number, 5),
        )
    ]
    found = found_in(tmp_path, plain(many, slow))
    assert found.location == "aten::slow"
    assert found.location_ratio == pytest.approx(945 / 1345)


def test_what_is_around_most_of_the_time_is_told_where_no_operator_has_most(tmp_path: Path) -> None:
    backward = [("ConvBackward", "aten::conv_backward", name) for name in ("aten::weight", "aten::input") * 3]
    found = found_in(tmp_path, launched_in(("aten::first",), *backward, ("aten::add",), ("aten::mul",)))
    assert (found.location, found.location_ratio) == ("aten::conv_backward", pytest.approx(6 / 8))
    assert found.evidence.endswith("; in it: aten::input 3 (285 µs), aten::weight 3 (285 µs)")


def test_steps_and_numbers_of_steps_are_no_places(tmp_path: Path) -> None:
    content = launched_in(*[(f"aten::op{number}",) for number in range(8)])
    for number in range(8):
        ts = 1000 + 100 * number
        content["traceEvents"] += [
            slice_("user_annotation", f"ProfilerStep#{number}", ts - 1, 99),
            slice_("user_annotation", f"decoder batch=0 layer={number % 2}" if number else "head", ts - 0.5, 98),
        ]
    found = found_in(tmp_path, content)
    # Of all launches 7 of 8 are in the decoder, of gaps all.
    assert (found.location, found.location_ratio) == ("decoder", 1)


def test_what_is_around_all_launches_is_left_out(tmp_path: Path) -> None:
    content = launched_in(*[("Model", f"aten::{name}") for name in "aabbcc"])
    found = found_in(tmp_path, content)
    assert (found.location, found.location_ratio) == ("aten::b", pytest.approx(2 / 5))
    assert found.location_text == "spread, most in aten::b (40.0 % of it)"


def test_work_without_a_recorded_call_has_no_place(tmp_path: Path) -> None:
    copies = [work("kernel", "direct_copy_kernel", 5000 + 20 * number, 10, 900 + number) for number in range(6)]
    content = plain(slice_("cpu_op", "aten::copy_", 4900, 50), launch(4910, 1, 4950, 10, "direct_copy_kernel"), copies)
    found = found_in(tmp_path, content, "copies")
    assert (found.location, found.location_ratio) == (None, pytest.approx(6 / 7))
    assert found.location_text == "no location recorded for 85.7 % of it"
    assert found.evidence.endswith("; by place: call not recorded 6 (60.0 µs), aten::copy_ 1 (10.0 µs)")


def test_a_gap_with_nothing_recorded_has_no_place_and_is_told_by_what_comes_next(tmp_path: Path) -> None:
    content = plain(
        slice_("cpu_op", "aten::conv1d", 1000, 100), launch(1010, 1, 1020, 50),
        slice_("cpu_op", "delta_r2", 9000, 100), slice_("cpu_op", "fallback_function", 9010, 80),
        slice_("cpu_op", "aten::sub", 9020, 60), launch(9040, 2, 9050, 50),
    )  # fmt: skip
    found = found_in(tmp_path, content, "host_work")
    assert (found.location, found.location_ratio) == (None, pytest.approx(7.9 / 7.97, abs=0.003))
    assert "; the longest, 7.97 ms, is before aten::sub < fallback_function < delta_r2; by place: " in found.evidence


@pytest.mark.parametrize(
    ("called", "starts", "cause"),
    [
        (1050, 1130, "other_stream"),  # called while the other stream runs, which is done at 1110
        (1112, 1300, "other"),  # called later
        (1050, 1500, "other"),  # starts much later than the other stream is done
    ],
)
def test_another_stream_is_waited_for_only_while_it_runs(
    tmp_path: Path, called: float, starts: float, cause: str
) -> None:
    content = plain(launch(1000, 1, 1010, 100), launch(called, 2, starts, 50, stream=8))
    found = causes(api.report(write(tmp_path / "a.json", content)))
    assert found.pop(cause) > 0
    assert not {*found} & {"other", "other_stream"}


@pytest.mark.parametrize("category", ["cpu_op", "user_annotation"])
def test_time_in_a_data_loader_is_named_by_it(tmp_path: Path, category: str) -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    content = plain(
        slice_("cpu_op", "aten::mm", 1000, 100), launch(1010, 1, 1020, 50),
        slice_(category, loader, 1200, 7000), slice_("cpu_op", "aten::div", 2000, 2000),
        slice_("cpu_op", "aten::stack", 5000, 1000),
        slice_("cpu_op", "aten::mm", 8300, 100), launch(8320, 2, 8330, 50),
    )  # fmt: skip
    report = api.report(write(tmp_path / "a.json", content))
    assert causes(report)["cpu_data"] == 7_000_000
    found = {item.id: item for item in report.findings}
    gap_us = 8320 - 1070  # until the call
    assert found["host_work"].figures["cpu_data_ns"] == 7_000_000
    assert found["host_work"].location == loader
    assert found["host_work"].location_ratio == pytest.approx(7000 / gap_us, abs=0.01)
    assert "num_workers" in found["host_work"].fix
    assert "the data loader" in found["limits"].evidence


def test_time_in_python_of_compiled_code_is_no_time_in_operators(tmp_path: Path) -> None:
    content = plain(
        slice_("cpu_op", "aten::mm", 1000, 100), launch(1010, 1, 1020, 50),
        slice_("cpu_op", "Torch-Compiled Region: 0/0", 1200, 900), slice_("cpu_op", "CompiledFunction", 1250, 800),
        slice_("user_annotation", "## Call CompiledFxGraph abc ##", 1300, 700),
        slice_("cpu_op", "aten::empty", 1400, 100), slice_("cpu_op", "aten::mm", 1600, 300), launch(1800, 2, 1810, 50),
    )  # fmt: skip
    found = causes(api.report(write(tmp_path / "a.json", content)))
    # From 1200 on, without the 100 µs of aten::empty, up to aten::mm at 1600, in which the call is.
    assert (found["cpu_compiled"], found["cpu_operators"]) == (300_000, 30_000 + 100_000 + 200_000)


# Trace, finding, place, and its share of the time.
RIGHT = [
    ("a100_torchscript_cold", "host_work", None, 365.94 / 372.5),
    ("a100_torchscript_cold", "long_calls", "aten::cudnn_convolution", 1),
    ("v100_resnet50_dataloader", "launch_bound", "Optimizer.zero_grad#SGD.zero_grad", 36.470 / 95.412),
    ("v100_resnet50_dataloader", "host_work", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0.994),
    ("v100_resnet50_dataloader", "fp32_matmul", "aten::cudnn_convolution_backward", 268 / 394),
    ("h100_one_layer", "launch_bound", "Self-Attention", 0.457),
    # Of the time in which nothing else runs: 1.897 of 4.149 ms of communication, and 2.415 of 3.665 ms of a product.
    ("h800_ep64_dualpipe", "communication", "dispatch(B)", 1.897 / 4.149),
    ("h800_ep64_dualpipe", "dominant_kernel", "attn(W)", 2.415 / 3.665),
]


@needs_traces
@pytest.mark.parametrize(("name", "rule", "place", "ratio"), RIGHT)
def test_places_of_public_traces(name: str, rule: str, place: str | None, ratio: float) -> None:
    found = {item.id: item for item in whole(f"more/{name}").findings}[rule]
    assert (found.location, found.location_ratio) == (place, pytest.approx(ratio, abs=0.003))


@needs_traces
def test_the_jit_specializes_before_a_subtraction() -> None:
    (found,) = (item for item in whole("more/a100_torchscript_cold").findings if item.id == "host_work")
    assert "; the longest, 366 ms, is before aten::sub < fallback_function < delta_r2; " in found.evidence


@needs_traces
@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_rank_waits_for_cannot_be_told_from_its_trace(rank: int) -> None:
    report = whole(f"more/a100_moe_rank{rank}")
    assert "other_stream" not in causes(report)
    assert not [item for item in report.findings if item.id == "device_waits"]
    (found,) = (item for item in report.findings if item.id == "unknown_waits")
    assert found.gain is None


@needs_traces
def test_the_data_loader_is_the_main_cause_of_idle_time() -> None:
    report = whole("more/v100_resnet50_dataloader")
    found = causes(report)
    assert max(found, key=lambda cause: found[cause]) == "cpu_data"
    # 286.877 ms of the gaps are in the data loader; nothing is queued, and no copy under way, in all but 3.
    assert found["cpu_data"] == pytest.approx(286_877_000, rel=0.02)
    (limits,) = (item for item in report.findings if item.id == "limits")
    assert limits.location_text == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ (99.9 % of it)"
