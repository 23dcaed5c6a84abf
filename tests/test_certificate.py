"""The certificate: each check on a real trace whose events are removed. The truth is within the bounds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tiny_trace
from certificate_data import (
    CALLS,
    DDP,
    GPU,
    GRAPHS,
    TRITON,
    bound,
    certified,
    changed,
    correlation,
    found,
    launches,
    needs_traces,
    real,
    whole,
    without,
    without_work_of,
)
from msgspec.structs import replace

from molprof.analysis.figures.certificate import CHECKS
from molprof.analysis.figures.model import Bound, combined


@needs_traces
@pytest.mark.parametrize(
    ("check", "chosen"),
    [("started_late", slice(0, 20)), ("cut_end", slice(-20, None)), ("dropped", slice(1000, 1020))],
)
def test_launches_without_kernels(tmp_path: Path, check: str, chosen: slice) -> None:
    content, truth = real(DDP), whole(DDP)
    report = changed(tmp_path, without_work_of(content, launches(content)[chosen]))
    groups = {(check, group, "bounded") for group in ("gpu_work", "gpu_time", "gpu_idle", "links", "steps")}
    assert found(report) == groups
    assert bound(report, "counts.kernels") == (4330, 4350)
    assert bound(report, "counts.launches_without_gpu_work") == (0, 20)
    low, high = bound(report, "steps.kernels_per_step")
    assert (low, high) == (866, 870)
    for figure, true_ns in (("busy_ns", truth.devices["0"].busy_ns), ("idle_ns", truth.devices["0"].idle_ns)):
        low, high = bound(report, f"devices.0.{figure}")
        assert low is not None
        assert high is not None
        assert low <= true_ns <= high
        assert low <= getattr(report.devices["0"], figure) <= high


@needs_traces
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_removed_the_truth_is_within_the_bounds(tmp_path: Path, seed: int) -> None:
    content, truth, chance = real(TRITON), whole(TRITON), random.Random(seed)
    numbers = [correlation(call) for call in launches(content)]
    chance.shuffle(numbers)
    work, calls = set(numbers[: chance.randint(1, 6)]), set(numbers[6 : 6 + chance.randint(0, 3)])
    report = changed(
        tmp_path,
        without(
            content,
            lambda event: (
                (event.get("cat") in GPU and correlation(event) in work)
                or (event.get("cat") in CALLS and correlation(event) in calls)
            ),
        ),
    )
    device, was = report.devices["2"], truth.devices["2"]
    bounds = {item.figure: item for group in certified(report).groups for item in group.bounds}
    for figure, reported, true in (
        ("counts.kernels", report.counts.kernels, truth.counts.kernels),
        ("counts.launches", report.counts.launches, truth.counts.launches),
        ("devices.2.busy_ns", device.busy_ns, was.busy_ns),
        ("devices.2.idle_ns", device.idle_ns, was.idle_ns),
    ):
        limits = bounds.get(figure, Bound(figure, reported, reported, reported))
        assert limits.value == reported
        assert limits.low is not None
        assert limits.high is not None
        assert limits.low <= true <= limits.high, figure


@needs_traces
def test_no_kernels_at_all(tmp_path: Path) -> None:
    report = changed(tmp_path, without(real(TRITON), lambda event: event.get("cat") in GPU))
    groups = ("gpu_work", "gpu_time", "gpu_idle", "links")
    assert found(report) == {("no_work", group, "not_to_be_had") for group in groups}
    assert certified(report).verdict == "not_to_be_had"


@needs_traces
def test_dropped_calls_and_the_log(tmp_path: Path) -> None:
    content = real(TRITON)
    gone = correlation(launches(content)[4])
    content = without(content, lambda event: event.get("cat") in CALLS and correlation(event) == gone)
    content["WARNING"] = ["WARNING: CuptiActivityApi.cpp:160] Exceeded max GPU buffer count (33 >= 33)"]
    report = changed(tmp_path, content)
    assert found(report) == {
        ("dropped", "launches", "bounded"),
        ("dropped", "links", "bounded"),
        ("dropped", "gpu_work", "bounded"),
    }
    assert bound(report, "counts.launches") == (11, 12)
    assert bound(report, "counts.kernels_without_call") == (0, 1)
    assert bound(report, "counts.kernels") == (12, None)
    content["WARNING"] = []
    content["INFO"] = ["Record counts: Out-of-range = 3, GPU stopped early? = 0"]
    assert ("dropped", "gpu_work", "bounded") not in found(changed(tmp_path, content))


@needs_traces
def test_work_launched_before_the_recording(tmp_path: Path) -> None:
    content = real(TRITON)
    first = correlation(launches(content)[0]) or 0
    report = changed(
        tmp_path, without(content, lambda event: event.get("cat") in CALLS and (correlation(event) or 0) <= first)
    )
    assert found(report) == {("earlier_work", "gpu_work", "bounded"), ("earlier_work", "gpu_time", "bounded")}
    assert bound(report, "counts.kernels") == (11, 12)
    low, high = bound(report, "counts.kernel_time_ns")
    assert high == whole(TRITON).counts.kernel_time_ns
    assert low is not None
    assert low < high


@needs_traces
def test_no_calls_at_all(tmp_path: Path) -> None:
    report = changed(tmp_path, without(real(TRITON), lambda event: event.get("cat") in CALLS))
    assert found(report) == {("earlier_work", group, "not_to_be_had") for group in ("launches", "links")}


@needs_traces
def test_a_step_without_gpu_work(tmp_path: Path) -> None:
    content, truth = real(DDP), whole(DDP)
    (step,) = (event for event in content["traceEvents"] if event["name"] == "ProfilerStep#103" and event["ph"] == "X")
    start, end = float(step["ts"]), float(step["ts"]) + float(step["dur"])
    numbers = {
        correlation(event)
        for event in content["traceEvents"]
        if event.get("cat") in CALLS and start <= float(event["ts"]) < end
    }
    gone = lambda event: event.get("cat") in (*GPU, *CALLS) and correlation(event) in numbers  # noqa: E731
    report = changed(tmp_path, without(content, gone))
    assert found(report) == {("steps", "steps", "bounded")}
    low, high = bound(report, "steps.profiler.kernels_per_step")
    assert (low, high) == (4 * 870 / 5, 870)
    assert truth.counts.kernels == 5 * 870


@needs_traces
def test_kernels_that_are_too_long(tmp_path: Path) -> None:
    content, truth = real(TRITON), whole(TRITON)
    kernels = sorted((e for e in content["traceEvents"] if e.get("cat") == "kernel"), key=lambda e: float(e["ts"]))
    gap = float(kernels[5]["ts"]) - float(kernels[4]["ts"]) - float(kernels[4]["dur"])
    kernels[4]["dur"] = round(float(kernels[4]["dur"]) + gap + 7, 3)
    report = changed(tmp_path, content)
    assert found(report) == {("overlap", "gpu_time", "bounded")}
    low, high = bound(report, "counts.kernel_time_ns")
    assert low is not None
    assert high == report.counts.kernel_time_ns
    assert high - low == pytest.approx(7000, abs=300)  # its times are floats of 250 ns
    assert truth.counts.kernel_time_ns < high


@needs_traces
def test_graph_launches_without_their_kernels(tmp_path: Path) -> None:
    content, truth = real(GRAPHS), whole(GRAPHS)
    graphs = launches(content, "*GraphLaunch*")
    report = changed(tmp_path, without_work_of(content, graphs[3:8]))
    groups = ("graphs", "gpu_work", "gpu_time", "gpu_idle", "steps")
    assert {item for item in found(report) if item[0] == "graphs"} == {("graphs", group, "bounded") for group in groups}
    assert bound(report, "counts.kernels") == (report.counts.kernels, None)
    low, high = bound(report, "graphs.kernels_per_graph")
    (row,) = truth.table("graphs").to_json()
    assert low is not None
    assert low <= row["kernels_per_graph"]
    assert high is None
    reason = "5 graph launches of 25 without GPU work"
    uncertain = {finding.id: finding.uncertain for finding in report.findings}
    assert uncertain["limits"] == f"GPU time: {reason}; GPU idle time: {reason}"
    assert uncertain["attention_small"] == f"GPU work: {reason}; GPU time: {reason}"
    report = changed(tmp_path, without_work_of(content, graphs))
    assert ("graphs", "graphs", "not_to_be_had") in found(report)


@needs_traces
def test_memory_events_are_absent(tmp_path: Path) -> None:
    content = without(real("traces/h100_qwen1.5_0.5b"), lambda event: event.get("name") == "[memory]")
    assert ("memory", "allocations", "not_to_be_had") in found(changed(tmp_path, content))
    content["profile_memory"] = 0
    assert {check for check, *_ in found(changed(tmp_path, content))} == {"earlier_work"}


@pytest.mark.parametrize("phase", ["i", "B", "?"])
def test_kernels_that_are_no_complete_events(tmp_path: Path, phase: str) -> None:
    content = tiny_trace.document()
    kernels = [event for event in content["traceEvents"] if event.get("cat") == "kernel"]
    kernels[1]["ph"] = phase
    report = changed(tmp_path, content)
    assert report.counts.kernels == len(kernels) - 1
    groups = {group.group: group for group in certified(report).groups}
    assert "not read: 1 event of category kernel" in (groups["gpu_work"].reason or "")
    assert {group.verdict for group in groups.values() if group.group != "allocations"} == {"bounded"}


def test_bounds_of_several_doubts_add_up() -> None:
    both = combined(iter([Bound("kernels", 10, 10, 12), Bound("kernels", 7, 10, 11), Bound("x_ns", 1, 2, None)]))
    assert both == (Bound("kernels", 7, 10, 13), Bound("x_ns", 1, 2, None))
    assert combined(iter([both[0], Bound("kernels", 10, 10, None)])) == (Bound("kernels", 7, 10, None),)


def test_ids_of_checks_are_unique() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_a_run_without_a_gpu_is_exact(tmp_path: Path) -> None:
    report = tiny_trace.report(tmp_path / "cpu.json", tiny_trace.fine(tiny_trace.cpu_document()))
    certificate = certified(report)
    assert certificate.verdict == "exact"
    assert not certificate.uncertain
    verdicts = {item.group: item.verdict for item in certificate.groups}
    assert verdicts["gpu_work"] == "not_to_be_had"
    assert verdicts["host_time"] == "exact"
    assert replace(report, certificate=None).to_json()["certificate"] is None
