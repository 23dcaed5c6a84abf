"""The certificate: runs, clocks, ranks, the profiler's start and damage, on real traces that are changed for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from certificate_data import (
    GPU,
    GRAPHS,
    TRITON,
    Event,
    bound,
    changed,
    correlation,
    found,
    launches,
    needs_traces,
    real,
    text_of,
    whole,
)

from molprof import api
from molprof.analysis.compare.thresholds import judge_report, parse_threshold


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
    uncertain = parse_threshold("uncertain", relative=False)
    assert judge_report(truth, [uncertain]).failed == ()
    assert judge_report(report, [uncertain]).failed == ("uncertain: GPU idle time (bounded)",)


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
    parts = [json.loads(text_of(f"ranks/megatron_tp8_rank{rank}")) for rank in (0, 1)]
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
    path.write_bytes(text_of(TRITON)[:-3_000])
    report = api.report(path, partial=True)
    assert ("file", "gpu_work", "bounded") in found(report)
    assert bound(report, "counts.kernels")[1] is None


@needs_traces
def test_parts_of_steps_were_trimmed(tmp_path: Path) -> None:
    content = real(GRAPHS)
    content["molprof_trimmed"] = {"source": "a.json", "whole_steps": False, "without": ["kernel"]}
    assert ("file", "steps", "not_to_be_had") in found(changed(tmp_path, content))
