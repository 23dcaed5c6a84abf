"""SQL modules behind the certificate: exact rows of literal events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sql_rows import events_loaded
from tiny_trace import HOST, slice_, work


def call(name: str, ts: float, correlation: int | None, dur: float = 2, tid: int = 100, pid: int = HOST) -> Any:
    args = {} if correlation is None else {"correlation": correlation}
    return slice_("cuda_runtime", name, ts, dur, pid, tid, **args)


def test_launches_without_work_by_place(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 0, 1),
        call("cudaLaunchKernel", 10, 2),
        call("cudaLaunchKernel", 20, 3),
        call("cudaStreamBeginCapture", 30, 4),
        call("cudaLaunchKernel", 35, 5),
        call("cudaStreamEndCapture", 38, 6),
        call("cudaLaunchKernel", 40, 7),
        call("cudaLaunchKernel", 60, 8),
        call("cudaLaunchKernel", 70, None),
        work("kernel", "a", 15, 10, 2),
        work("kernel", "b", 45, 5, 7),
        slice_("cpu_op", "aten::mm", 0, 100),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("certificate_launches", "SELECT ts, has_work FROM molprof_certified_launch") == [
            (0, 0), (10_000, 1), (20_000, 0), (40_000, 1), (60_000, 0),
        ]  # fmt: skip
        assert rows("certificate_launches", "SELECT * FROM molprof_missing_work") == [
            ("start", 1, 0, 0, 0),
            ("middle", 1, 0, 20_000, 20_000),
            ("end", 1, 0, 60_000, 60_000),
        ]
        # Idle from 25 to 45; before 15 and after 50 nothing is recorded.
        assert rows("certificate_time", "SELECT * FROM molprof_missing_time ORDER BY outside_ns, place") == [
            ("end", "0", 0, 40_000),
            ("middle", "0", 20_000, 50_000),
            ("start", "0", 20_000, 65_000),
        ]


def test_launches_with_several_pieces_of_work_and_numbers_of_several_calls(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 0, 1),
        call("cudaLaunchKernel", 10, 2),
        call("cudaMemcpyAsync", 20, 3),
        call("cudaMemsetAsync", 30, 3),
        call("cudaGraphLaunch", 40, 4),
        *(work("kernel", "a", ts, 1, number) for ts, number in ((5, 1), (12, 2), (14, 2), (16, 2), (45, 4), (47, 4))),
    ]
    with events_loaded(tmp_path, events) as rows:
        several = "SELECT name, launches, more_work FROM molprof_launch_of_several"
        assert rows("certificate_launches", several) == [("cudaLaunchKernel", 1, 2)]
        assert rows("certificate_launches", "SELECT * FROM molprof_number_of_several") == [(None, 3, 2)]


def test_a_capture_that_was_open_when_the_recording_began(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 0, 1),
        call("cudaStreamEndCapture", 5, 2),
        call("cudaLaunchKernel", 10, 3),
        work("kernel", "a", 15, 10, 3),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("certificate_launches", "SELECT COUNT() FROM molprof_certified_launch") == [(1,)]
        assert rows("certificate_launches", "SELECT * FROM molprof_missing_work") == []


def test_work_without_call_by_place(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 0, 10),
        work("kernel", "a", 5, 1, 3),
        work("kernel", "b", 6, 2, 10),
        work("kernel", "c", 8, 3, 11),
        work("gpu_memcpy", "Memcpy DtoD", 11, 4, 11),
        slice_("kernel", "d", 20, 5, 0, 7, device=0, stream=7),
    ]
    sql = "SELECT * FROM molprof_missing_call"
    with events_loaded(tmp_path, events) as rows:
        assert rows("certificate_launches", sql) == [
            ("start", 1, 1, 1000, 5000),
            ("later", 1, 1, 3000, 8000),
            ("unnumbered", 1, 0, 5000, 20_000),
        ]
    with events_loaded(tmp_path, events[1:-1]) as rows:
        assert rows("certificate_launches", sql) == [("all", 3, 3, 6000, 0)]


def test_streams_that_overlap(tmp_path: Path) -> None:
    events = [
        work("kernel", "a", 0, 10, 1),
        work("kernel", "b", 8, 4, 2),
        work("kernel", "c", 11, 4, 3),
        work("kernel", "d", 15, 4, 4),
        work("kernel", "e", 0, 19, 5, tid=8),
        slice_("kernel", "f", 0, 5, 0, 9, device=0),
        slice_("kernel", "g", 3, 5, 0, 9, device=0),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("certificate_overlap", "SELECT * FROM molprof_stream_overlap") == [
            ("0", 7, 2, 3000, 2000, 22_000, 19_000)
        ]


def test_overlaps_with_work_that_ends_before_earlier_work(tmp_path: Path) -> None:
    events = [work("kernel", "a", 0, 20, 1), work("kernel", "b", 2, 3, 2), work("kernel", "c", 10, 15, 3)]
    with events_loaded(tmp_path, events) as rows:
        assert rows("certificate_overlap", "SELECT * FROM molprof_stream_overlap") == [
            ("0", 7, 2, 13_000, 10_000, 38_000, 25_000)
        ]


def test_steps_and_graphs_without_work(tmp_path: Path) -> None:
    events = [
        *(slice_("user_annotation", f"ProfilerStep#{step}", 100 * step, 90) for step in (1, 2, 3)),
        call("cudaGraphLaunch", 110, 1),
        call("cudaGraphLaunch", 210, 2),
        call("cudaLaunchKernel", 310, 3),
        work("kernel", "a", 120, 4, 1),
        work("kernel", "a", 125, 4, 1),
        work("kernel", "a", 320, 3, 3),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("certificate_steps", "SELECT * FROM molprof_uneven_step") == [
            ("profiler", None, 3, 1, 1, 3, 11_000, 2, 8000)
        ]
        assert rows("certificate_graphs", "SELECT * FROM molprof_graph_without_work") == [("cudaGraphLaunch", 2, 1, 2)]
    with events_loaded(tmp_path, [*events, work("kernel", "a", 220, 3, 2)]) as rows:
        assert rows("certificate_steps", "SELECT * FROM molprof_uneven_step") == []
        assert rows("certificate_graphs", "SELECT * FROM molprof_graph_without_work") == []


def test_runs_of_the_profiler(tmp_path: Path) -> None:
    events = [
        slice_("Trace", "PyTorch Profiler (0)", 10, 30),
        slice_("Trace", "PyTorch Profiler (1)", 100, 20),
        slice_("cpu_op", "aten::mm", 0, 30),
        slice_("cpu_op", "aten::mm_inside", 5, 10),
        slice_("cpu_op", "aten::add", 30, 5),
        call("cudaLaunchKernel", 31, 1),
        call("cudaLaunchKernel", 102, 2),
        work("kernel", "a", 32, 10, 1),
        work("kernel", "a", 105, 10, 2),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("certificate_cycles", "SELECT number, ts, dur, name, gap_ns FROM molprof_profiler_run") == [
            (1, 10_000, 30_000, "PyTorch Profiler (0)", None),
            (2, 100_000, 20_000, "PyTorch Profiler (1)", 60_000),
        ]
        assert rows("certificate_cycles", "SELECT * FROM molprof_idle_between_runs") == [("0", 58_000)]
        over = "SELECT name, category, before_ns, dur, is_outermost FROM molprof_work_over_start"
        assert rows("certificate_start", over) == [
            ("aten::mm", "cpu_op", 10_000, 30_000, 1),
            ("aten::mm_inside", "cpu_op", 5000, 10_000, 0),
        ]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        # Nothing contradicts: 4 us from call to work, 3 us from work to the end of the sync.
        ([work("kernel", "a", 4, 8, 1)], (0, 0, 0, 0, 0, 0, 4000, 3000, 4000.0)),
        ([work("kernel", "a", 4, 12, 1)], (0, 0, 1, 1000, 0, 0, 4000, -1000, 4000.0)),
        ([work("kernel", "a", -2, 4, 1)], (1, 2000, 0, 0, 0, 0, -2000, 13_000, -2000.0)),
        ([call("cudaLaunchKernel", 4, 0)], (0, 0, 0, 0, 1, 4000, None, None, None)),
        ([call("cudaLaunchKernel", 4, 0, tid=101)], (0, 0, 0, 0, 0, 0, None, None, None)),
    ],
)
def test_clocks(tmp_path: Path, events: list[Any], expected: tuple[Any, ...]) -> None:
    events = [call("cudaLaunchKernel", 0, 1), call("cudaDeviceSynchronize", 10, 2, 5), *events]
    with events_loaded(tmp_path, events) as rows:
        assert rows("certificate_clocks", "SELECT * FROM molprof_clock") == [expected]
        slack = [] if expected[7] is None else [(expected[7],)]
        assert rows("certificate_clocks", "SELECT slack FROM molprof_device_sync") == slack
        roles = rows("certificate_calls", "SELECT ts, ts_end, role, tid FROM molprof_checked_call")
        assert roles[-1] == (10_000, 15_000, "device_sync", 100) or expected[0]


def test_processes_and_memory_events(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 0, 1, pid=10, tid=10),
        slice_("cpu_op", "aten::mm", 1, 1, 10, 10),
        call("cudaLaunchKernel", 2, 1, pid=20, tid=20),
        {"ph": "M", "name": "process_name", "pid": 20, "tid": 0, "args": {"name": "rank 1"}},
        {
            "ph": "i",
            "s": "t",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 10,
            "tid": 10,
            "ts": 1,
            "args": {},
        },
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("certificate_ranks", "SELECT pid, name, operators, gpu_calls FROM molprof_host_process") == [
            (10, None, 1, 1),
            (20, "rank 1", 0, 1),
        ]
        assert rows("certificate_memory", "SELECT events FROM molprof_memory_event_count") == [(1,)]


def test_processes_of_many_threads(tmp_path: Path) -> None:
    events = [slice_("cpu_op", "aten::mm", 5 + thread, 1, 10, 100 + thread) for thread in range(70)]
    events += [call("cudaLaunchKernel", 200, 1, pid=10, tid=100), call("cudaLaunchKernel", 2, 2, pid=20, tid=20)]
    with events_loaded(tmp_path, events) as rows:
        assert rows("certificate_ranks", "SELECT pid, operators, gpu_calls FROM molprof_host_process") == [
            (20, 0, 1),
            (10, 70, 1),
        ]
