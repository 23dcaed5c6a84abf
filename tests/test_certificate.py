"""The certificate: each check on a real trace whose events are removed or changed. The truth is within the bounds."""

from __future__ import annotations

import fnmatch
import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny_trace

from molprof.analysis.certificate import CHECKS
from molprof.analysis.certificate.findings import RESTS_ON
from molprof.analysis.certificate.model import Bound, Certificate, combined
from molprof.analysis.figures import Report
from molprof.analysis.findings import RULES
from molprof.analysis.reports.load import load_report

CORPUS = os.environ.get("MOLPROF_CORPUS")
needs_traces = pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to change")
Event = dict[str, Any]
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
TRITON, DDP, GRAPHS = "torch_compile_triton", "v100_resnet_ddp", "mi300x_vllm_piecewise_graph"


@cache
def _text(name: str) -> bytes:
    return gzip.decompress(Path(str(CORPUS), f"{name}.json.gz").read_bytes())


def real(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(_text(f"traces/{name}"))
    return content


def changed(tmp_path: Path, content: dict[str, Any]) -> Report:
    return load_report(tiny_trace.write(tmp_path / "changed.json", content))


def certified(report: Report) -> Certificate:
    assert report.certificate is not None
    return report.certificate


def found(report: Report) -> set[tuple[str, str, str]]:
    """Check, group and verdict of every doubt."""
    return {(doubt.check, doubt.group, doubt.verdict) for doubt in certified(report).doubts}


def bound(report: Report, figure: str) -> tuple[float | None, float | None]:
    (item,) = (item for group in certified(report).groups for item in group.bounds if item.figure == figure)
    return item.low, item.high


def correlation(event: Event) -> int | None:
    number: int | None = event.get("args", {}).get("correlation")
    return number


def launches(content: dict[str, Any], pattern: str = "*Launch*Kernel*") -> list[Event]:
    calls = [event for event in content["traceEvents"] if event.get("cat") in CALLS]
    return sorted((e for e in calls if fnmatch.fnmatchcase(e["name"], pattern)), key=lambda e: float(e["ts"]))


def without(content: dict[str, Any], gone: Callable[[Event], bool]) -> dict[str, Any]:
    return {**content, "traceEvents": [event for event in content["traceEvents"] if not gone(event)]}


def without_work_of(content: dict[str, Any], calls: list[Event]) -> dict[str, Any]:
    numbers = {correlation(call) for call in calls}
    return without(content, lambda event: event.get("cat") in GPU and correlation(event) in numbers)


@cache
def whole(name: str) -> Report:
    return load_report(Path(str(CORPUS), "traces", f"{name}.json.gz"))


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
    report = changed(tmp_path, without_work_of(content, graphs))
    assert ("graphs", "graphs", "not_to_be_had") in found(report)


@needs_traces
def test_memory_events_are_absent(tmp_path: Path) -> None:
    content = without(real("h100_qwen1.5_0.5b"), lambda event: event.get("name") == "[memory]")
    assert ("memory", "allocations", "not_to_be_had") in found(changed(tmp_path, content))
    content["profile_memory"] = 0
    assert {check for check, *_ in found(changed(tmp_path, content))} == {"earlier_work"}


def shifted(events: list[Event], by_us: float, add: int = 0) -> list[Event]:
    """The events later, with other correlation numbers."""
    result = json.loads(json.dumps(events))
    for event in result:
        if "ts" in event:
            event["ts"] = float(event["ts"]) + by_us
        if correlation(event) is not None:
            event["args"]["correlation"] += add
    return result  # type: ignore[no-any-return]


@needs_traces
def test_two_runs_of_the_profiler(tmp_path: Path) -> None:
    content, truth = real(TRITON), whole(TRITON)
    again = {**content, "traceEvents": content["traceEvents"] + shifted(content["traceEvents"], 100_000, 1000)}
    report = changed(tmp_path, again)
    assert found(report) == {("cycles", "gpu_idle", "bounded")}
    low, high = bound(report, "devices.2.idle_ns")
    both_ns = 2 * truth.devices["2"].idle_ns
    assert low is not None
    assert high is not None
    assert both_ns <= low < high == report.devices["2"].idle_ns


@needs_traces
@pytest.mark.parametrize(
    ("by_us", "verdict"), [(-20.0, "bounded"), (-5000.0, "not_to_be_had"), (5000.0, "not_to_be_had")]
)
def test_the_clock_of_the_gpu_jumps(tmp_path: Path, by_us: float, verdict: str) -> None:
    content, truth = real(TRITON), whole(TRITON)
    for event in content["traceEvents"]:
        if event.get("cat") in GPU:
            event["ts"] = float(event["ts"]) + by_us
    report = changed(tmp_path, content)
    assert ("clocks", "links", verdict) in found(report)
    if verdict == "bounded":
        low, high = bound(report, "mean_delay_ns")
        rows = truth.table("launch_calls").to_json()
        mean_ns = sum(row["mean_delay_ns"] * row["count"] for row in rows) / sum(row["count"] for row in rows)
        assert low is not None
        assert high is not None
        assert low <= mean_ns <= high


@needs_traces
def test_the_clock_of_the_host_jumps_back(tmp_path: Path) -> None:
    content = real(TRITON)
    middle = float(launches(content)[6]["ts"])
    for event in content["traceEvents"]:
        if event.get("ph") == "X" and float(event["ts"]) >= middle:
            event["ts"] = float(event["ts"]) - 300
    report = changed(tmp_path, content)
    assert {("clocks", group, "not_to_be_had") for group in ("host_time", "links", "gpu_idle")} <= found(report)


def of_ranks(told: bool) -> dict[str, Any]:
    """Two ranks of a job merged, with equal device numbers; processes named by rank, or calls numbered apart."""
    parts = [json.loads(_text(f"ranks/megatron_tp8_rank{rank}")) for rank in (0, 1)]
    for rank, part in enumerate(parts):
        for event in part["traceEvents"]:
            if told:
                event["pid"] = f"rank{rank}_{event['pid']}"
            elif correlation(event) is not None:
                event["args"]["correlation"] += 1_000_000 * rank
            if event.get("args", {}).get("device") == 1:
                event["args"]["device"] = 0
    return {**parts[0], "traceEvents": [event for part in parts for event in part["traceEvents"]]}


@needs_traces
def test_merged_ranks(tmp_path: Path) -> None:
    assert found(changed(tmp_path, of_ranks(told=True))) == {("ranks", "host_time", "bounded")}
    mixed = {item for item in found(changed(tmp_path, of_ranks(told=False))) if item[0] == "ranks"}
    groups = [("gpu_time", "not_to_be_had"), ("gpu_idle", "not_to_be_had"), ("host_time", "bounded")]
    assert mixed == {("ranks", *group) for group in groups}


@needs_traces
def test_work_over_the_start_of_the_profiler(tmp_path: Path) -> None:
    content = real(TRITON)
    (start_us,) = (float(event["ts"]) for event in content["traceEvents"] if event.get("cat") == "Trace")
    first = min((e for e in content["traceEvents"] if e.get("cat") == "cpu_op"), key=lambda e: float(e["ts"]))
    first["dur"] = float(first["ts"]) + float(first["dur"]) - start_us + 40
    first["ts"] = start_us - 40
    report = changed(tmp_path, content)
    assert found(report) == {("start", "host_time", "bounded")}
    low, high = bound(report, "work_over_start_ns")
    assert low is not None
    assert high is not None
    assert high - low == pytest.approx(40_000, abs=300)


@needs_traces
def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(_text(f"traces/{TRITON}")[:-3_000])
    from molprof.analysis.reports.load import ReportOptions

    report = load_report(path, ReportOptions(partial=True))
    assert ("file", "gpu_work", "bounded") in found(report)
    assert bound(report, "counts.kernels")[1] is None


def test_bounds_of_several_doubts_add_up() -> None:
    both = combined(iter([Bound("kernels", 10, 10, 12), Bound("kernels", 7, 10, 11), Bound("x_ns", 1, 2, None)]))
    assert both == (Bound("kernels", 7, 10, 13), Bound("x_ns", 1, 2, None))
    assert combined(iter([both[0], Bound("kernels", 10, 10, None)])) == (Bound("kernels", 7, 10, None),)


def test_every_finding_says_what_it_rests_on() -> None:
    assert set(RESTS_ON) == {name for rule in RULES for name in rule.ids}


def test_ids_of_checks_are_unique() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_a_run_without_a_gpu_is_exact(tmp_path: Path) -> None:
    report = load_report(tiny_trace.write(tmp_path / "cpu.json", tiny_trace.cpu_document()))
    certificate = certified(report)
    assert certificate.verdict == "exact"
    assert not certificate.uncertain
    verdicts = {item.group: item.verdict for item in certificate.groups}
    assert verdicts["gpu_work"] == "not_to_be_had"
    assert verdicts["host_time"] == "exact"
    assert replace(report, certificate=None).to_json()["certificate"] is None
