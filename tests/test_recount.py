"""Counts and device times of random traces, as Chrome JSON and as packets, equal a recount in plain Python."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import native_trace
import pytest
import tiny_trace
from hypothesis import example, given, settings
from hypothesis import strategies as st

from molprof.analysis.figures.build import build_report
from molprof.analysis.reader.open import open_trace
from molprof.common.errors import TraceError

# Few numbers, so that they meet: equal times, shared correlations, calls and work without any.
WORK = ("kernel", "gpu_memcpy")
CORRELATION = st.one_of(st.none(), st.integers(0, 4))
EVENT = st.tuples(
    st.sampled_from(["cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "kernel", "gpu_memcpy"]),
    st.integers(0, 60).map(lambda quarter: quarter / 4),
    st.integers(0, 20).map(lambda quarter: quarter / 4),
    CORRELATION,
    st.integers(0, 1),
)


@settings(max_examples=8, deadline=None)
@given(st.lists(EVENT, min_size=1, max_size=25))
@example([("cudaGraphLaunch", 0.0, 0.0, 1, 0), ("kernel", 0.0, 0.0, 1, 0)])  # a graph that takes no time
def test_counts_equal_a_recount(tmp_path_factory: pytest.TempPathFactory, events: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("random")
    document = native_trace.named({"traceEvents": [_event(*event) for event in events]})
    path = tiny_trace.write(folder / "random.json", document)
    events = [(*event[:3], event[3] or None, event[4]) for event in events]  # 0 stands for no number
    with open_trace(path) as (engine, info):
        if _ambiguous(events):
            with pytest.raises(TraceError, match="of several calls"):
                build_report(engine, info)
            return
        report = build_report(engine, info)
    assert _figures(report.to_json()) == _recount(events)
    try:
        with open_trace(native_trace.write(folder / "random.pftrace", document)) as (engine, info):
            native = build_report(engine, info).to_json()
    except TraceError as error:  # equal numbers on two devices, or at one time, which JSON may hold
        assert re.search("holds several runs|was appended to itself", str(error))  # noqa: PT017
    else:
        trace = {"path": str(path), "bytes": path.stat().st_size}
        assert {**native, "trace": {**native["trace"], **trace}} == report.to_json()
    assert all(check.holds for check in report.checks)


def _ambiguous(events: list[Any]) -> bool:
    """Whether launches at different times share a number."""
    spans = defaultdict(list)
    for name, ts, dur, correlation, _ in events:
        if name in ("cudaLaunchKernel", "cudaGraphLaunch") and correlation is not None:
            spans[correlation].append((ts, ts + dur))
    return any(max(ts for ts, _ in same) > min(end for _, end in same) for same in spans.values())


def _event(name: str, ts: float, dur: float, correlation: int | None, device: int) -> dict[str, Any]:
    args = {} if correlation is None else {"correlation": correlation}
    if name.startswith("cuda"):
        return tiny_trace.slice_("cuda_runtime", name, 1e9 + ts, dur, **args)
    # A tid of its own number, so that the reader needs lanes for what overlaps.
    return tiny_trace.slice_(name, f"work {dur}", 1e9 + ts, dur, pid=device, tid=7, device=device, **args)


def _figures(report: dict[str, Any]) -> dict[str, Any]:
    counts = dict(report["counts"])
    moves = counts.pop("memory_operations")
    del counts["kernels_with_call"]
    return {**counts, "moves": sum(move["count"] for move in moves.values()), "devices": report["devices"]}


def _recount(events: list[Any]) -> dict[str, Any]:
    kernels = [event for event in events if event[0] == "kernel"]
    work = [event for event in events if event[0] in WORK]
    calls = [event for event in events if event[0].startswith("cuda")]
    started, calling = {event[3] for event in work}, {event[3] for event in calls}
    busy: dict[str, set[int]] = defaultdict(set)
    ends: dict[str, list[float]] = defaultdict(list)
    for _, ts, dur, _, device in work:
        ends[str(device)] += [ts, ts + dur]
        busy[str(device)].update(range(round(ts * 4), round((ts + dur) * 4)))
    devices = {}
    for device in ends:
        span_ns, busy_ns = round((max(ends[device]) - min(ends[device])) * 1000), 250 * len(busy[device])
        devices[device] = {"span_ns": span_ns, "busy_ns": busy_ns, "idle_ns": span_ns - busy_ns}
    return {
        "launches": sum(event[0] == "cudaLaunchKernel" for event in calls),
        "graph_launches": sum(event[0] == "cudaGraphLaunch" for event in calls),
        "kernels": len(kernels),
        "kernel_time_ns": round(sum(event[2] for event in kernels) * 1000),
        "kernel_names": len({event[2] for event in kernels}),
        "launches_without_gpu_work": sum(event[3] not in started for event in calls if event[0] == "cudaLaunchKernel"),
        "kernels_without_call": sum(event[3] not in calling for event in kernels),
        "moves": len(work) - len(kernels),
        "devices": devices,
    }
