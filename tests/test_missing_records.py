"""Missing or impossible records: bounds contain the truth, and findings and headline claim less."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from certificate_data import needs_traces, real, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_trace import slice_, work

from molprof import api
from molprof.analysis.documents.report import report_document
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import Finding

CASES = Path(__file__).parent / "cases"
Event = dict[str, Any]
Content = dict[str, Any]
GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def case(name: str) -> Content:
    content: Content = json.loads((CASES / f"{name}.json").read_text())
    return content


def report_of(tmp_path: Path, content: Content) -> Report:
    return api.report(tiny_trace.write(tmp_path / "changed.json", content))


def bounds(report: Report) -> dict[str, tuple[float | None, float | None]]:
    """What all groups say of each figure."""
    assert report.certificate is not None
    return {bound.figure: (bound.low, bound.high) for item in report.certificate.groups for bound in item.bounds}


def verdicts(report: Report) -> dict[str, str]:
    assert report.certificate is not None
    return {item.group: item.verdict for item in report.certificate.groups if item.doubts}


def gains(report: Report) -> dict[str, float]:
    return {item.id: item.gain.high for item in report.findings if item.gain is not None}


def finding(report: Report, name: str) -> Finding:
    return next(item for item in report.findings if item.id == name)


def headline(report: Report) -> str:
    return report_document(report).summary[0]


def without_trace_event(content: Content) -> Content:
    events = [event for event in content["traceEvents"] if event.get("cat") != "Trace"]
    return {**content, "traceEvents": events}


def scaled(content: Content, by: float) -> Content:
    events = copy.deepcopy(content["traceEvents"])
    for event in events:
        for key in ("ts", "dur"):
            if key in event:
                event[key] = round(event[key] * by, 3)
    return {**content, "traceEvents": events}


def profiler(end: float, start: float = 0.0) -> Event:
    return slice_("Trace", "PyTorch Profiler (0)", start, end - start, "Spans", 1)


# Times that run over what follows.


def check_overrun(report: Report) -> None:
    assert report.counts.kernel_time_ns == 10_116 + 9_731 + 9_907
    assert report.devices["0"].busy_ns == 29_754
    assert verdicts(report)["gpu_time"] == "bounded"
    low, high = bounds(report)["counts.kernel_time_ns"]
    assert low == 19_638
    assert high == 29_754
    assert gains(report)["dominant_kernel"] < 0.4
    assert "3.40 s" not in headline(report)


def test_an_overrun_is_cut_at_the_next_start(tmp_path: Path) -> None:
    check_overrun(report_of(tmp_path, case("overrun")))


def test_an_overrun_is_seen_by_the_sync_alone(tmp_path: Path) -> None:
    check_overrun(report_of(tmp_path, without_trace_event(case("overrun"))))


def test_an_overrun_is_seen_by_the_end_of_the_recording_alone(tmp_path: Path) -> None:
    content = case("overrun")
    events = [event for event in content["traceEvents"] if "Synchronize" not in event["name"]]
    check_overrun(report_of(tmp_path, {**content, "traceEvents": events}))


def test_a_last_kernel_that_is_longer_than_the_recording(tmp_path: Path) -> None:
    content = case("overrun")
    for event in content["traceEvents"]:
        if event["name"] == "a":
            event["dur"] = 9.0
        elif event["name"] == "c":
            event["dur"] = 5e6
    report = report_of(tmp_path, content)
    assert report.counts.kernel_time_ns == 9_000 + 9_731 + (61_000 - 35_523)


@pytest.mark.parametrize("dur", [11.0, 20.0, 45.0])
def test_an_overlap_within_the_recording_is_believed(tmp_path: Path, dur: float) -> None:
    content = case("overrun")
    for event in content["traceEvents"]:
        if event["name"] == "a":
            event["dur"] = dur
    report = report_of(tmp_path, content)
    assert report.counts.kernel_time_ns == round(dur * 1000) + 9_731 + 9_907
    assert verdicts(report)["gpu_time"] == "bounded"  # the union or the sum


# Launches without work.


def test_two_launches_without_work_in_one_gap_count_once(tmp_path: Path) -> None:
    report = report_of(tmp_path, case("negative"))
    assert report.devices["0"].span_ns == 91_529
    assert bounds(report)["devices.0.idle_ns"] == (0, 71_891)
    assert bounds(report)["devices.0.busy_ns"] == (19_638, 91_529)
    assert "21.5 % to 100 %" in headline(report)
    assert "main cause" not in headline(report)
    assert "device_waits" not in gains(report)
    assert finding(report, "unknown_waits").note


def check_no_kernels(report: Report) -> None:
    assert not gains(report)
    assert finding(report, "not_to_be_had").note
    shown = report_document(report)
    assert "a kernel runs for" not in str(shown)
    assert "how long the GPU was busy is not to be had: 10 launches, all without GPU work" in headline(report)


def test_launches_without_any_kernel(tmp_path: Path) -> None:
    check_no_kernels(report_of(tmp_path, case("xpu_no_kernels")))
    check_no_kernels(report_of(tmp_path, scaled(case("xpu_no_kernels"), 100)))


def test_a_kernel_before_its_launch(tmp_path: Path) -> None:
    report = report_of(tmp_path, case("kernels_lost_at_start"))
    assert report.counts.kernels == 38
    assert bounds(report)["counts.kernels"] == (38, 50)
    assert verdicts(report)["gpu_idle"] == "not_to_be_had"
    assert not {"launch_bound", "host_work", "host_syncs", "limits"} & {item.id for item in report.findings}
    # What rests on times of kernels leaves the impossible one out, and is a share of the profiler's span.
    assert finding(report, "elementwise_chains").figures["kernels"] == 37
    assert finding(report, "dominant_kernel").figures["count"] == 37
    low, high = bounds(report)["devices.0.busy_ns"]
    assert low is not None
    assert low <= 1_000_000 <= (high or 0)
    assert "is not to be had: the clocks jump" in headline(report)


# Syncs that outlast all recorded work.


def check_sync(report: Report, host_ns: int) -> None:
    """No gain from the syncs, and idle time is not exact. host_ns: how long the host was in no sync."""
    assert verdicts(report)["gpu_idle"] == verdicts(report)["gpu_work"] == "bounded"
    assert "host_syncs" not in gains(report)
    low, high = bounds(report)["devices.0.idle_ns"]
    device = report.devices["0"]
    assert low is not None
    assert high is not None
    assert 0 <= low <= host_ns
    assert device.idle_ns <= high
    low, high = bounds(report)["devices.0.busy_ns"]
    assert low == device.busy_ns
    assert bounds(report)["counts.kernels"] == (report.counts.kernels, None)
    assert "main cause" not in headline(report)
    assert "host sync" not in headline(report)
    assert finding(report, "unknown_waits").figures["long_syncs"] > 0


@pytest.mark.parametrize("by", [1, 20])
def test_a_sync_that_outlasts_all_recorded_work(tmp_path: Path, by: float) -> None:
    check_sync(report_of(tmp_path, scaled(case("sync"), by)), round(100_000 * by))


def test_syncs_of_a_loop_in_a_graph(tmp_path: Path) -> None:
    report = report_of(tmp_path, case("graph_while"))
    check_sync(report, 4_500_000)
    # Each time the GPU was busy until the sync ended: of 10.268 ms between the first and the last work.
    low, high = bounds(report)["devices.0.busy_ns"]
    truth = 2 * 2_939_600 + 103_600
    assert low is not None
    assert high is not None
    assert low <= truth <= high


def test_a_sync_that_ends_with_its_work_is_a_host_sync(tmp_path: Path) -> None:
    content = case("sync")
    for event in content["traceEvents"]:
        if event["name"] == "body_b" and event["ts"] < 1000:
            event["dur"] = 2_820.0  # until 8 us before the end of the sync
    report = report_of(tmp_path, content)
    assert not verdicts(report)


# Steps.


def test_most_steps_without_work_and_one_huge_kernel(tmp_path: Path) -> None:
    report = report_of(tmp_path, case("empty_steps_one_huge"))
    said = headline(report).partition(": ")[2]
    assert said.startswith("30 of 32 steps have no GPU work, and kernel_4 takes 31.5 ms once, 98.1 % of the time; ")
    content = case("empty_steps_one_huge")
    for event in content["traceEvents"]:
        if event.get("cat") == "kernel" and event["dur"] > 1000:
            event["dur"] = 10.0
    said = headline(report_of(tmp_path, content))
    assert "30 of 32 steps have no GPU work; " in said
    assert "once" not in said


# What is around calls.


@pytest.mark.parametrize("shift", [0.0, -30.0, 10.0])
def test_an_annotation_that_overlaps_a_function_in_part(tmp_path: Path, shift: float) -> None:
    content = case("frame")
    for event in content["traceEvents"]:
        if event["name"] == "forward_pass":
            event["ts"] += shift
    path = tiny_trace.write(tmp_path / "frame.json", content)
    assert finding(api.report(path), "launch_bound").location == "train.py(20): forward"
    inside = api.query(
        path,
        "SELECT COUNT() AS launches FROM slice WHERE name = 'cudaLaunchKernel' AND EXISTS("
        "SELECT 1 FROM ancestor_slice(slice.id) AS outer WHERE outer.name = 'train.py(20): forward')",
        stacks=True,
    )
    assert inside.frame["launches"].tolist() == [2]


# Bounds hold what was counted before records were dropped.


@st.composite
def launches(draw: st.DrawFn) -> tuple[list[Event], set[int]]:
    """Launches with their kernels, in order, and a device sync behind them; the numbers of which the work is lost."""
    count = draw(st.integers(4, 12))
    events, ready, at = [], 0, 100
    for number in range(1, count + 1):
        at += draw(st.integers(5, 400))
        begin = max(ready, at + draw(st.integers(3, 20)))
        length = draw(st.integers(1, 300))
        events += [
            slice_("cuda_runtime", "cudaLaunchKernel", at, 3, correlation=number),
            work("kernel", "gemm", begin, length, number),
        ]
        ready = begin + length
        at += 3
    events.append(slice_("cuda_runtime", "cudaDeviceSynchronize", at + 1, max(5, ready - at + 5), correlation=99))
    end = events[-1]["ts"] + events[-1]["dur"] + 10
    lost = draw(st.sets(st.integers(1, count), max_size=count - 2))
    return [slice_("cpu_op", "aten::mm", 90, 5), *events, profiler(end)], lost


@settings(max_examples=12, deadline=None)
@given(launches())
def test_bounds_hold_the_truth(tmp_path_factory: pytest.TempPathFactory, trace: tuple[list[Event], set[int]]) -> None:
    events, lost = trace
    kernels = [event for event in events if event["cat"] == "kernel"]
    kept = [event for event in events if event["cat"] != "kernel" or event["args"]["correlation"] not in lost]
    report = report_of(tmp_path_factory.mktemp("lost"), {"traceEvents": kept})
    device, known = report.devices["0"], bounds(report)
    left = [event for event in kernels if event["args"]["correlation"] not in lost]
    busy_ns = 1000 * sum(event["dur"] for event in kernels)
    low, high = known.get("devices.0.busy_ns", (device.busy_ns, device.busy_ns))
    assert low is not None
    assert high is not None
    assert 0 <= low <= busy_ns <= high
    # Idle between the recorded work: what the lost work did not take.
    start, end = left[0]["ts"], max(event["ts"] + event["dur"] for event in left)
    inside = sum(max(0, min(end, event["ts"] + event["dur"]) - max(start, event["ts"])) for event in kernels)
    low, high = known.get("devices.0.idle_ns", (device.idle_ns, device.idle_ns))
    assert low is not None
    assert high is not None
    assert 0 <= low <= 1000 * (end - start - inside) <= high
    low, high = known.get("counts.kernels", (report.counts.kernels, report.counts.kernels))
    assert low is not None
    assert high is not None
    assert low <= len(kernels) <= high
    span_ns = 1000 * (max(event["ts"] + event["dur"] for event in kept if event["cat"] != "Trace") - 90)
    for figure, (low, high) in known.items():
        if figure.startswith("devices."):
            assert low is not None
            assert low >= 0
            assert high is None or high <= span_ns


# The recording ends where the file says.


def run(end: float, *more: Event) -> Content:
    """Two kernels; the program is done at 220 us."""
    events = [
        slice_("cpu_op", "aten::mm", 100, 20), slice_("cuda_runtime", "cudaLaunchKernel", 105, 5, correlation=1),
        work("kernel", "gemm", 112, 50, 1),
        slice_("cpu_op", "aten::mm", 150, 20), slice_("cuda_runtime", "cudaLaunchKernel", 155, 5, correlation=2),
        work("kernel", "gemm", 165, 50, 2), slice_("cuda_runtime", "cudaDeviceSynchronize", 175, 45, correlation=3),
    ]  # fmt: skip
    return {"traceEvents": [*events, *more, profiler(end)]}


def recorded(tmp_path: Path, content: Content) -> tuple[int, int]:
    """First and last recorded moment, us after the earliest event."""
    path = tiny_trace.write(tmp_path / "recorded.json", content)
    found = api.query(
        path, "INCLUDE PERFETTO MODULE molprof.recorded; SELECT ts, ts_end FROM molprof_recorded", stacks=False
    )
    return found.frame["ts"][0] / 1000, found.frame["ts_end"][0] / 1000


STRAY = slice_("cuda_runtime", "cudaEventQuery", 9000, 3, tid=300, correlation=77)


def test_stray_calls_after_the_profiler_are_no_time_of_the_program(tmp_path: Path) -> None:
    assert recorded(tmp_path, run(230)) == (100, 220)
    assert recorded(tmp_path, run(230, STRAY)) == (100, 230)
    report = report_of(tmp_path, run(230, STRAY))
    assert finding(report, "dominant_kernel").gain_ratio == pytest.approx(100 / 130)
    # In a call that goes on, and before the profiler.
    assert recorded(tmp_path, run(230, slice_("cpu_op", "aten::mm", 225, 900, tid=300))) == (100, 230)


@pytest.mark.parametrize(
    "name",
    [
        "torch/profiler/profiler.py(806): stop", "torch/profiler/profiler.py(235): stop_trace",
        "<built-in method _disable_profiler of PyCapsule object at 0x7bc6041db5>",
    ],
)  # fmt: skip
def test_frames_tell_when_the_profiler_was_stopped(tmp_path: Path, name: str) -> None:
    content = without_trace_event(run(230, STRAY))
    frames = [slice_("python_function", "train.py(1): main", 100, 130), slice_("python_function", name, 221, 9)]
    assert recorded(tmp_path, {"traceEvents": [*content["traceEvents"], *frames]}) == (0, 130)


def test_gpu_work_goes_on_after_the_profiler(tmp_path: Path) -> None:
    content = run(
        230, slice_("cuda_runtime", "cudaLaunchKernel", 222, 3, correlation=4), work("kernel", "gemm", 226, 80, 4)
    )
    assert recorded(tmp_path, content) == (100, 306)
    # Launched after it: no time of the program.
    content = run(
        230,
        slice_("cuda_runtime", "cudaLaunchKernel", 500, 3, tid=300, correlation=4),
        work("kernel", "gemm", 505, 80, 4),
    )
    assert recorded(tmp_path, content) == (100, 230)
    report = report_of(tmp_path, content)
    assert report.counts.kernels == 3
    assert finding(report, "dominant_kernel").gain_ratio == pytest.approx(100 / 130)


def test_what_comes_before_the_profiler_is_no_time_of_the_program(tmp_path: Path) -> None:
    content = run(230)
    content["traceEvents"][-1] = profiler(230, start=140)
    assert recorded(tmp_path, content) == (140 - 100, 220 - 100)


def test_a_profiler_span_of_another_clock_is_not_believed(tmp_path: Path) -> None:
    content = run(230)
    content["traceEvents"][-1] = profiler(9000, start=8000)
    assert recorded(tmp_path, content) == (0, 120)


@settings(max_examples=4, deadline=None)
@given(st.floats(1, 1e6), st.integers(0, 3))
def test_strays_change_no_gain(tmp_path_factory: pytest.TempPathFactory, late: float, count: int) -> None:
    tmp_path = tmp_path_factory.mktemp("strays")
    touching = slice_("cuda_runtime", "cudaEventQuery", 228, 5, tid=300, correlation=80)  # until the end
    strays = [
        slice_("cuda_runtime", "cudaEventQuery", round(230 + late, 1) + 10 * n, 3, tid=300 + n, correlation=90 + n)
        for n in range(count)
    ]
    assert gains(report_of(tmp_path, run(230, touching, *strays))) == gains(report_of(tmp_path, run(230, touching)))


@needs_traces
def test_a_recording_with_stray_calls() -> None:
    report = whole("more/h100_vllm_tp4")
    span_ns = finding(report, "dominant_kernel").gain.of_ns  # type: ignore[union-attr]
    assert span_ns == pytest.approx(268.9e6, rel=1e-3)
    found = gains(report)
    assert found["dominant_kernel"] == pytest.approx(0.333, abs=5e-4)
    # Without a pointwise kernel of Inductor that has all_reduce in its name: 0.02 ms.
    assert found["communication"] == pytest.approx(0.0900, abs=2e-4)
    assert found["pauses"] == pytest.approx(0.0470, abs=5e-5)
    ends = finding(report, "recording_ends")
    assert ends.note
    assert ends.gain is None
    assert ends.figures["after_ns"] == pytest.approx(7.03e6, rel=1e-2)


@needs_traces
def test_stray_calls_of_another_thread_on_a_v100(tmp_path: Path) -> None:
    _, end = recorded(tmp_path, real("traces/v100_resnet_ddp"))
    assert end == pytest.approx(578_888.5)


@needs_traces
def test_ends_of_a_short_recording_are_a_note() -> None:
    report = whole("more/h100_one_layer")
    ends = finding(report, "recording_ends")
    assert ends.figures["before_ns"] + ends.figures["after_ns"] == pytest.approx(454_000, rel=0.01)
    assert gains(report).get("host_work", 0.0) < 0.02
