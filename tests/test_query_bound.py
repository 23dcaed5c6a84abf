"""What bounded each phase: every moment counts once."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from sql_rows import events_loaded
from tiny_trace import GPU, slice_, work

CORPUS = os.environ.get("MOLPROF_CORPUS")
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
TABLE = "SELECT phase, step, host_ns, gpu_busy_ns, sync_idle_ns, launch_ns FROM molprof_phase_bound"


def phase(name: str, ts: float, dur: float, tid: int = 100) -> dict[str, Any]:
    return slice_("user_annotation", f"molprof.{name} batch=0 step=1", ts, dur, tid=tid)


def test_the_tiny_run(tmp_path: Path) -> None:
    """Work counts where it runs: the processor's 18 µs are kernels that the forward launched."""
    with events_loaded(tmp_path, tiny_trace.EVENTS) as rows:
        assert rows("phase_bound", TABLE) == [
            ("forward", 1, 60_000, 30_000, 0, 30_000),
            ("processor", 1, 20_000, 18_000, 0, 2_000),
            ("sampling", 1, 15_000, 3_000, 5_000, 7_000),
            ("bookkeeping", 1, 5_000, 0, 0, 5_000),
            ("forward", 2, 50_000, 15_000, 0, 35_000),
            ("processor", 2, 10_000, 0, 0, 10_000),
            ("sampling", 2, 15_000, 0, 0, 15_000),
            ("bookkeeping", 2, 5_000, 1_000, 0, 4_000),
        ]
        assert rows("phase_bound", "SELECT * FROM molprof_phase_bound_summary") == [
            ("forward", 2, 110_000, 45_000, 0, 65_000),
            ("processor", 2, 30_000, 18_000, 0, 12_000),
            ("sampling", 2, 30_000, 3_000, 5_000, 22_000),
            ("bookkeeping", 2, 10_000, 1_000, 0, 9_000),
        ]


def test_overlap_counts_once(tmp_path: Path) -> None:
    """Two devices at once, one call inside another, work across a phase's end, and a phase without duration."""
    events = [
        phase("forward", 0, 100),
        slice_("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=1),
        slice_("cuda_runtime", "cudaDeviceSynchronize", 30, 40, correlation=2),
        slice_("cuda_driver", "cuCtxSynchronize", 31, 30, correlation=3),
        phase("processor", 100, 0),
        phase("sampling", 100, 20),
        slice_("cuda_runtime", "cudaStreamSynchronize", 101, 4, correlation=4),
        # Outside any phase.
        slice_("cuda_runtime", "cudaStreamSynchronize", 130, 9, correlation=5),
        work("kernel", "a", 10, 10, 1),
        work("kernel", "a", 40, 5, 1),
        slice_("kernel", "b", 42, 8, GPU + 1, 7, device=1, stream=7),
        slice_("kernel", "c", 95, 8, GPU + 1, 7, device=1, stream=7),
        # Of no time at all.
        work("gpu_memset", "Memset (Device)", 60, 0, 1),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("phase_bound", TABLE) == [
            # Busy 10-20, 40-50, 95-100; waiting 30-40 and 50-70.
            ("forward", 1, 100_000, 25_000, 30_000, 45_000),
            ("sampling", 1, 20_000, 3_000, 2_000, 15_000),
            ("processor", 1, 0, 0, 0, 0),
        ]


def test_another_thread_does_not_wait_for_this_one(tmp_path: Path) -> None:
    events = [
        phase("forward", 0, 50),
        phase("forward", 10, 30, tid=200),
        slice_("cuda_runtime", "cudaDeviceSynchronize", 15, 20, tid=200, correlation=2),
        work("kernel", "a", 20, 10, 1),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("phase_bound", TABLE) == [
            ("forward", 1, 50_000, 10_000, 0, 40_000),
            ("forward", 1, 30_000, 10_000, 10_000, 10_000),
        ]


def test_without_gpu_work_the_bounds_are_not_recorded(tmp_path: Path) -> None:
    with events_loaded(tmp_path, [phase("forward", 0, 50)]) as rows:
        assert rows("phase_bound", TABLE) == [("forward", 1, 50_000, None, None, None)]
    with events_loaded(tmp_path, [work("kernel", "a", 20, 10, 1)]) as rows:
        assert rows("phase_bound", TABLE) == []


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
@pytest.mark.parametrize("name", ["h100_qwen1.5_0.5b", "v100_resnet_ddp", "torch_compile_triton"])
def test_real_work_under_made_up_phases_against_a_plain_count(tmp_path: Path, name: str) -> None:
    """The busiest thread of a real trace, cut into 40 phases: busy and waiting as a loop over them has it."""
    content = json.loads(gzip.decompress(Path(str(CORPUS), "traces", f"{name}.json.gz").read_bytes()))
    events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    calls = [event for event in events if event.get("cat") == "cuda_runtime"]
    (pid, tid), _ = Counter((event["pid"], event["tid"]) for event in calls).most_common(1)[0]
    first = min(int(event["ts"]) for event in calls) - 5
    length = (max(int(event["ts"] + event["dur"]) for event in calls) - first) // 40 + 1
    named = [
        slice_("user_annotation", f"molprof.forward batch=0 step={step}", first + step * length, length, pid, tid)
        for step in range(40)
    ]
    kept = [event for event in calls if (event["pid"], event["tid"]) == (pid, tid)]
    kept += [event for event in events if event.get("cat") in GPU_CATEGORIES]
    with events_loaded(tmp_path, kept + named) as rows:
        spans = rows("gpu_work", "SELECT ts, ts + dur FROM molprof_gpu_work ORDER BY ts")
        waits = rows("host_syncs", "SELECT ts, ts + dur FROM molprof_host_sync ORDER BY ts")
        phases = rows("phases", "SELECT ts, ts + dur FROM molprof_phase ORDER BY ts")
        found = rows("phase_bound", "SELECT host_ns, gpu_busy_ns, sync_idle_ns, launch_ns FROM molprof_phase_bound")
    assert len(found) == 40
    busy = [covered(spans, *phase) for phase in phases]
    either = [covered(sorted(spans + waits), *phase) for phase in phases]
    assert sum(busy) > 0
    assert sum(either) >= sum(busy)
    assert found == [
        (end - start, gpu, both - gpu, end - start - both)
        for (start, end), gpu, both in zip(phases, busy, either, strict=True)
    ]


def covered(spans: list[tuple[Any, ...]], start: int, end: int) -> int:
    """Length of the union of spans, ordered by start, within one span."""
    total, until = 0, start
    for span_start, span_end in spans:
        cut = min(span_end, end)
        if cut > max(span_start, until):
            total += cut - max(span_start, until)
            until = cut
    return total
