"""Traces of older versions of Kineto and of other devices: SQL reads their categories, or says what it left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from certificate_data import TRITON, Content, certified, changed, needs_traces, real
from tiny_trace import HOST, slice_, work, write

from molprof import load
from molprof.analysis.documents.report import report_verdict
from molprof.analysis.figures import Report
from molprof.analysis.trim import Wish, trim

OLD = {
    "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "cuda_runtime": "Runtime", "cpu_op": "Operator",
    "gpu_user_annotation": "User",
}  # fmt: skip
FORK = {
    "gpu_memcpy": "GCU_MEMCPY", "gpu_memset": "GCU_MEMSET", "cuda_runtime": "gcu_runtime", "cuda_driver": "gcu_driver",
    "gpu_user_annotation": "GCU_USER_ANNOTATION",
}  # fmt: skip


def named(content: Content, names: dict[str, str]) -> Content:
    """The trace with other names of categories; of the oldest, steps are operators too."""
    for event in content["traceEvents"]:
        if names is OLD and event.get("name", "").startswith("ProfilerStep#") and event["cat"] == "user_annotation":
            event["cat"] = "Operator"
        event |= {"cat": names.get(event["cat"], event["cat"])} if "cat" in event else {}
    return content


def figures(report: Report) -> dict[str, Any]:
    """All that a report holds but the file, and the numbers that the trace processor gave its rows."""
    found = report.to_json()
    return {name: found[name] for name in ("counts", "devices", "checks", "findings", "tables", "certificate")}


@needs_traces
@pytest.mark.parametrize(("trace", "names"), [("pairs/h100_bert_small", OLD), (TRITON, FORK)], ids=["old", "fork"])
def test_other_names_are_read_as_the_same(tmp_path: Path, trace: str, names: dict[str, str]) -> None:
    plain, other = changed(tmp_path, real(trace)), changed(tmp_path, named(real(trace), names))
    assert figures(other) == figures(plain)
    assert other.trace.gpu_recorded
    in_file = plain.trace.events_by_category
    read = {names[name]: {name: count} for name, count in in_file.items() if name in names}
    if steps := in_file["user_annotation"] - other.trace.events_by_category.get("user_annotation", 0):
        read["Operator"]["user_annotation"] = steps
    assert other.to_json()["trace"]["read_as"] == read
    assert "read_as" not in plain.to_json()["trace"]
    wish = Wish(end_ns=10_000_000)
    first = trim(write(tmp_path / "other.json", named(real(trace), names)), tmp_path / "1.json", wish)
    assert first.after == trim(write(tmp_path / "plain.json", real(trace)), tmp_path / "2.json", wish).after


def test_calls_of_an_xpu_count_once(tmp_path: Path) -> None:
    events = [
        slice_("xpu_runtime", "urEnqueueKernelLaunch", 10, 5, correlation=1),
        slice_("xpu_driver", "zeCommandListAppendLaunchKernel", 11, 3, correlation=1),
        slice_("xpu_runtime", "urEnqueueUSMMemcpy", 20, 5, correlation=2),
        slice_("xpu_driver", "zeCommandListAppendMemoryCopy", 21, 3, correlation=2),
        slice_("xpu_driver", "zeCommandListAppendLaunchKernel", 30, 3, correlation=3),  # by no runtime call
        slice_("xpu_driver", "zeEventHostSynchronize", 40, 20),
        work("kernel", "gemm", 20, 10, 1),
        work("gpu_memcpy", "Memcpy M2D (Host -> Device)", 30, 10, 2, bytes=64),
        work("kernel", "gemm", 40, 10, 3),
    ]
    with load(write(tmp_path / "xpu.json", {"traceEvents": events})) as trace:
        counts = trace.report.counts
        assert (counts.launches, counts.kernels, counts.kernels_without_call) == (2, 2, 0)
        assert trace.syncs["name"].tolist() == ["zeEventHostSynchronize"]
        assert certified(trace.report).verdict == "exact"


def test_work_of_mtia(tmp_path: Path) -> None:
    device: dict[str, Any] = {"pid": 9, "tid": 4}
    events = [
        slice_("mtia_runtime", "runFunction - job_prep_and_submit_for_execution", 10, 5, correlation=1),
        slice_("mtia_runtime", "synchronizeStream", 20, 30, correlation=2),
        slice_("mtia_runtime", "synchronize", 21, 29, correlation=2, **device),
        slice_("mtia_ccp_events", "fc-dtype_Float", 20, 20, correlation=1, stream=1, **device),
        slice_("mtia_ccp_events", "dma_request", 40, 5, **device),
        slice_("mtia_ccp_events", "event_wait", 45, 50, **device),
    ]
    report = changed(tmp_path, {"traceEvents": events})
    counts = report.counts
    assert (counts.launches, counts.kernels, counts.kernels_without_call) == (1, 1, 0)
    assert list(counts.memory_operations) == ["dma_request"]
    assert report.devices["9"].busy_ns == 25_000
    assert report.trace.read_as["mtia_ccp_events"] == {"kernel": 1, "gpu_memcpy": 1, "cuda_sync": 1}


@needs_traces
@pytest.mark.parametrize("category", ["kernel", "cuda_runtime"])
def test_an_unknown_category_is_named(tmp_path: Path, category: str) -> None:
    content = named(real(TRITON), {category: "odd"})
    count = sum(event.get("cat") == "odd" for event in content["traceEvents"])
    report = changed(tmp_path, content)
    doubted = {doubt.group for doubt in certified(report).doubts if doubt.check == "file"}
    assert doubted >= {"gpu_work", "gpu_time", "gpu_idle", "launches", "links", "host_time"}
    assert {item.group for item in certified(report).groups if item.verdict == "exact"} == set()
    reason = f"not read: {count:,} events of category odd"
    assert all(reason in str(item.reason) for item in certified(report).groups if item.group in doubted)


@needs_traces
def test_a_device_of_an_unknown_category_is_no_lack_of_work(tmp_path: Path) -> None:
    names = {"kernel": "npu_kernel", "cuda_runtime": "npu", "cuda_driver": "npu"}
    first = report_verdict(changed(tmp_path, named(real(TRITON), names)))[0]
    assert first.startswith("No GPU calls and no GPU work were read of changed: not read: ")
    assert "12 events of category npu_kernel" in first


@pytest.mark.parametrize(("pid", "device"), [("GPU 0 of worker", "GPU 0 of worker"), (2**32, str(2**32)), (3, "3")])
def test_a_device_without_number_has_the_text_of_its_process(tmp_path: Path, pid: Any, device: str) -> None:
    kernel = slice_("kernel", "gemm", 10, 5, pid, 7, stream=7)
    report = changed(tmp_path, {"traceEvents": [kernel, slice_("cpu_op", "aten::mm", 1, 5, HOST)]})
    assert list(report.devices) == [device]
