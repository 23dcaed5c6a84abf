"""SQL modules on launches, queues, gaps, graphs, streams and copies: exact rows of literal events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sql_rows import events_loaded
from tiny_trace import GPU, slice_, work


def call(name: str, ts: float, dur: float, correlation: int) -> dict[str, Any]:
    return slice_("cuda_runtime", name, ts, dur, correlation=correlation)


def test_queue_depth_counts_what_was_submitted_before_and_has_not_ended(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 0, 2, 1),
        call("cudaMemcpyAsync", 3, 1, 2),
        call("cudaLaunchKernel", 5, 3, 3),
        call("cudaLaunchKernel", 30, 2, 4),
        call("cudaLaunchKernel", 40, 2, 5),
        call("cudaGraphLaunch", 50, 5, 6),
        call("cudaLaunchKernel", 60, 2, 7),
        work("kernel", "a", 4, 20, 1),
        work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 24, 1, 2, bytes=8),
        work("kernel", "b", 25, 5, 3),
        # It begins as "b" ends: the launch at 30 finds nothing.
        work("kernel", "c", 33, 2, 4),
        work("kernel", "d", 58, 4, 6),
        work("kernel", "d", 62, 4, 6),
        work("kernel", "e", 66, 1, 7),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("launch_queue", "SELECT ts, name, device, kernels, delay, queue_depth FROM molprof_launch") == [
            (0, "cudaLaunchKernel", "0", 1, 4_000, 0),
            (5_000, "cudaLaunchKernel", "0", 1, 20_000, 2),
            (30_000, "cudaLaunchKernel", "0", 1, 3_000, 0),
            (40_000, "cudaLaunchKernel", None, 0, None, None),
            (50_000, "cudaGraphLaunch", "0", 2, 8_000, 0),
            (60_000, "cudaLaunchKernel", "0", 1, 6_000, 2),
        ]
        # name, kind, calls, time, mean, kernels, delays: shortest, mean, longest; depths: mean, largest; empty
        assert rows("launch_queue", "SELECT * FROM molprof_launch_queue_summary") == [
            ("cudaLaunchKernel", "launch", 5, 11_000, 2_200.0, 4, 3_000, 8_250.0, 20_000, 1.0, 2, 2),
            ("cudaGraphLaunch", "graph_launch", 1, 5_000, 5_000.0, 2, 8_000, 8_000.0, 8_000, 0.0, 0, 1),
        ]


def test_kernels_shorter_than_their_launch(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 0, 5, 1),
        call("cudaLaunchKernel", 10, 5, 2),
        call("cudaLaunchKernel", 20, 5, 3),
        call("cudaGraphLaunch", 30, 5, 4),
        work("kernel", "a", 6, 2, 1),
        work("kernel", "a", 16, 5, 2),
        work("kernel", "b", 26, 9, 3),
        work("kernel", "a", 40, 1, 4),
        work("kernel", "a", 50, 1, 99),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("short_kernels", "SELECT * FROM molprof_short_kernel") == [("a", 2, 1, 2_000, 5_000)]


def test_copies_have_direction_memory_and_bandwidth(tmp_path: Path) -> None:
    events = [
        work("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 0, 2, 1, bytes=4_000),
        work("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 5, 1, 2),
        work("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 10, 1, 3, bytes=100),
        work("gpu_memset", "Memset (Device)", 20, 0, 4, bytes=16),
        work("gpu_memcpy", "Memcpy", 30, 1, 5),
    ]
    with events_loaded(tmp_path, events) as rows:
        sql = "SELECT direction, source, target, bytes, bytes_per_second, device, stream FROM molprof_memory_copy"
        assert rows("memory_copies", sql) == [
            ("HtoD", "Pageable", "Device", 4_000, 2e9, "0", 7),
            ("HtoD", "Pageable", "Device", None, None, "0", 7),
            ("PtoP", "Device", "Device", 100, 1e8, "0", 7),
            ("set", None, "Device", 16, None, "0", 7),
            ("Memcpy", None, None, None, None, "0", 7),
        ]
        assert rows("memory_copies", "SELECT * FROM molprof_memory_direction") == [
            ("HtoD", "Pageable", "Device", 2, 3_000, 4_000, 2e9),
            ("Memcpy", None, None, 1, 1_000, None, None),
            ("PtoP", "Device", "Device", 1, 1_000, 100, 1e8),
            ("set", None, "Device", 1, 0, 16, None),
        ]


def test_a_size_below_0_is_none(tmp_path: Path) -> None:
    events = [
        work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 2, 1, bytes=-7),
        work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 4, 2, 2, bytes=8),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("memory_copies", "SELECT ts, bytes FROM molprof_memory_copy") == [(0, None), (4_000, 8)]
        assert rows("memory_operations", "SELECT name, bytes FROM molprof_memory_operation") == [("Memcpy HtoD", 8)]


def test_graphs_and_their_kernels(tmp_path: Path) -> None:
    events = [
        call("cudaGraphLaunch", 0, 5, 1),
        call("cudaGraphLaunch", 50, 5, 2),
        call("cudaLaunchKernel", 60, 5, 3),
        work("kernel", "a", 10, 4, 1),
        work("kernel", "b", 12, 6, 1, tid=8),
        work("gpu_memset", "Memset (Device)", 20, 1, 1, bytes=4),
        work("kernel", "a", 70, 1, 3),
    ]
    with events_loaded(tmp_path, events) as rows:
        sql = "SELECT ts, dur, kernels, memory_operations, gpu_ns, span_ns, delay FROM molprof_graph_launch"
        assert rows("graphs", sql) == [
            (0, 5_000, 2, 1, 11_000, 11_000, 10_000),
            (50_000, 5_000, 0, 0, 0, None, None),
        ]
        assert rows("graphs", "SELECT * FROM molprof_graph_summary") == [
            ("cudaGraphLaunch", 2, 10_000, 2, 1.0, 11_000, 10_000.0)
        ]
        # The delay is to a call's first work, whatever it is and however much follows, wherever it is shown.
        sql = "SELECT name, kind, mean_delay_ns FROM {} ORDER BY name"
        delays = [("cudaGraphLaunch", "graph_launch", 10_000.0), ("cudaLaunchKernel", "launch", 10_000.0)]
        assert rows("launches", sql.format("molprof_launch_summary")) == delays
        assert rows("launch_queue", sql.format("molprof_launch_queue_summary")) == delays


def test_what_calls_add_to_where_they_ran(tmp_path: Path) -> None:
    events = [
        call("cudaGraphLaunch", 0, 5, 1),
        call("cudaMemcpy", 10, 30, 2),
        call("cudaEventQuery", 50, 1, 3),
        call("cudaLaunchKernel", 60, 5, 4),
        call("cudaLaunchKernel", 70, 5, 5),
        work("kernel", "a", 10, 4, 1),
        work("gpu_memset", "Memset (Device)", 12, 6, 1, bytes=4),
        work("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 20, 15, 2),
        work("kernel", "b", 59, 1, 4),
        work("kernel", "c", 70, 2, 8),
        work("gpu_memset", "Memset (Device)", 80, 3, 9),
    ]
    with events_loaded(tmp_path, events) as rows:
        sql = "SELECT call.ts, {0}.* FROM {0} JOIN molprof_gpu_call AS call ON call.id = call_id ORDER BY call.ts"
        # start, device, kernels, memory operations, GPU time, span, delay
        assert [row[:1] + row[2:] for row in rows("launches", sql.format("molprof_call_work"))] == [
            (0, "0", 1, 1, 10_000, 8_000, 10_000),
            (10_000, "0", 0, 1, 15_000, 15_000, 10_000),
            (60_000, "0", 1, 0, 1_000, 1_000, -1_000),
        ]
        # start, launches, graph launches, kernels, GPU time, waits, time waited
        assert [row[:1] + row[2:] for row in rows("call_facts", sql.format("molprof_call_fact"))] == [
            (0, 0, 1, 1, 10_000, 0, 0),
            (10_000, 0, 0, 0, 15_000, 1, 30_000),
            (60_000, 1, 0, 1, 1_000, 0, 0),
            (70_000, 1, 0, 0, 0, 0, 0),
        ]
        assert rows("call_facts", "SELECT * FROM molprof_work_without_call") == [(1, 5_000)]
    with events_loaded(tmp_path, events[:-2]) as rows:
        assert rows("call_facts", "SELECT * FROM molprof_work_without_call") == []


def test_when_a_device_was_busy_before_each_piece_of_work(tmp_path: Path) -> None:
    events = [
        work("kernel", "a", 0, 10, 1),
        work("kernel", "b", 2, 3, 2, tid=8),
        work("kernel", "c", 12, 0, 3),
        work("kernel", "d", 20, 1, 4),
        slice_("kernel", "e", 30, 3, 1, 7, device=1, stream=7, correlation=6),
    ]
    with events_loaded(tmp_path, events) as rows:
        sql = "SELECT ts, ts_end, device, busy_until FROM molprof_device_work"
        assert rows("devices", sql) == [
            (0, 10_000, "0", None),
            (2_000, 5_000, "0", 10_000),
            (12_000, 12_000, "0", 10_000),
            (20_000, 21_000, "0", 12_000),
            (30_000, 33_000, "1", None),
        ]


def test_streams_and_what_runs_side_by_side(tmp_path: Path) -> None:
    events = [
        work("kernel", "a", 0, 10, 1),
        work("kernel", "b", 5, 10, 2, tid=8),
        work("kernel", "c", 8, 1, 3, tid=9),
        work("gpu_memset", "Memset (Device)", 30, 10, 4),
        # It overlaps the one before it on its own stream.
        work("kernel", "d", 35, 10, 5),
        slice_("kernel", "e", 100, 3, 1, 7, device=1, stream=7, correlation=6),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("streams", "SELECT * FROM molprof_stream") == [
            ("0", 7, 3, 2, 30_000, 45_000, 25_000, 25 / 45),
            ("0", 8, 1, 1, 10_000, 10_000, 10_000, 1.0),
            ("0", 9, 1, 1, 1_000, 1_000, 1_000, 1.0),
            ("1", 7, 1, 1, 3_000, 3_000, 3_000, 1.0),
        ]
        assert rows("concurrency", "SELECT * FROM molprof_concurrency") == [
            ("0", 0, 15_000, 15 / 45),
            ("0", 1, 20_000, 20 / 45),
            ("0", 2, 9_000, 9 / 45),
            ("0", 3, 1_000, 1 / 45),
            ("1", 1, 3_000, 1.0),
        ]
        idle = rows("devices", "SELECT device, idle_ns FROM molprof_device")
        assert idle == [("0", 15_000), ("1", 0)]


def test_idle_time_is_divided_by_what_happened_in_it(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 0, 2, 1),
        call("cudaLaunchKernel", 12, 2, 2),
        call("cudaStreamSynchronize", 15, 8, 3),
        call("cudaLaunchKernel", 25, 2, 4),
        call("cudaLaunchKernel", 27, 2, 5),
        call("cudaLaunchKernel", 29, 2, 6),
        call("cudaLaunchKernel", 31, 2, 7),
        work("kernel", "first", 5, 5, 1),
        # 10 to 16: the call came at 12, after the device had run out of work.
        work("kernel", "late call", 16, 6, 2),
        # 22 to 30: the CPU waited until 23, and was in an operator until 24 and in another call until 25.
        slice_("cpu_op", "aten::add", 23, 1),
        call("cudaMalloc", 24, 1, 8),
        work("kernel", "late call after a wait", 30, 10, 4),
        # 40 to 43: queued, below 5 us.
        work("kernel", "short", 43, 7, 5),
        # 50 to 56: queued at 29 on stream 8, while stream 7 ran.
        work("kernel", "other_stream", 56, 4, 6, tid=8),
        # 60 to 70: queued at 31 on stream 8, which was free.
        work("kernel", "other", 70, 10, 7, tid=8),
        # 80 to 90, then 90 to 93: nobody knows when they were queued.
        work("kernel", "not_recorded", 90, 3, 98),
        work("kernel", "short", 95, 3, 99),
    ]
    with events_loaded(tmp_path, events) as rows:
        sql = """
        SELECT gap.ts, gap.dur, gap.cause, slice.name FROM molprof_idle_gap AS gap
        JOIN slice ON slice.id = gap.next_id WHERE gap.position = 'between' ORDER BY gap.ts
        """
        gaps = rows("idle_causes", sql)
        assert gaps == [
            (10_000, 6_000, "launching", "late call"),
            (22_000, 8_000, "launching", "late call after a wait"),
            (40_000, 3_000, "short", "short"),
            (50_000, 6_000, "other_stream", "other_stream"),
            (60_000, 10_000, "other", "other"),
            (80_000, 10_000, "not_recorded", "not_recorded"),
            (93_000, 2_000, "short", "short"),
        ]
        assert rows("idle_causes", "SELECT * FROM molprof_idle_cause WHERE time_ns < 9000 OR cause = 'other'") == [
            ("0", "before", "launching", 1, 5_000, 1.0, 5_000),
            ("0", "between", "other", 1, 10_000, 10 / 45, 10_000),
            ("0", "between", "other_stream", 1, 6_000, 6 / 45, 6_000),
            ("0", "between", "short", 2, 5_000, 5 / 45, 3_000),
            ("0", "between", "cpu_outside", 1, 2_000, 2 / 45, 2_000),
            ("0", "between", "cpu_calls", 1, 1_000, 1 / 45, 1_000),
            ("0", "between", "cpu_operators", 1, 1_000, 1 / 45, 1_000),
            ("0", "between", "cpu_waited", 1, 1_000, 1 / 45, 1_000),
        ]
        assert rows("devices", "SELECT idle_ns FROM molprof_device") == [(sum(gap[1] for gap in gaps),)]


def test_a_gap_is_queued_for_when_any_later_work_is(tmp_path: Path) -> None:
    """Work of another stream was submitted before the gap and runs after it: the queue was not empty."""
    events = [
        call("cudaLaunchKernel", 0, 1, 1),
        call("cudaLaunchKernel", 2, 1, 2),
        call("cudaLaunchKernel", 12, 1, 3),
        work("kernel", "a", 5, 5, 1),
        work("kernel", "b", 30, 5, 2, tid=8),
        work("kernel", "c", 20, 5, 3, tid=9),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("idle_causes", "SELECT ts, dur, cause FROM molprof_idle_gap WHERE position = 'between'") == [
            (10_000, 10_000, "other_stream"),
            (25_000, 5_000, "other_stream"),
        ]


def test_work_that_a_device_lets_wait_is_queued(tmp_path: Path) -> None:
    """The queue was empty when the gaps began; the CPU was no longer busy for most of the second."""
    events = [
        call("cudaLaunchKernel", 0, 1, 1),
        call("cudaLaunchKernel", 20, 1, 2),
        call("cudaLaunchKernel", 140, 1, 3),
        call("hipMemcpyWithStream", 150, 400, 4),
        call("cudaLaunchKernel", 700, 1, 5),
        call("cudaLaunchKernel", 900, 150, 6),
        work("kernel", "a", 5, 5, 1),
        work("kernel", "late, but no later than a launch may be", 120, 5, 2),
        work("kernel", "late", 245, 5, 3),
        work("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 540, 5, 4),
        work("kernel", "b", 840, 5, 5),
        work("kernel", "of a slow call", 1060, 5, 6),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("idle_causes", "SELECT ts, dur, cause FROM molprof_idle_gap WHERE position = 'between'") == [
            (10_000, 110_000, "launching"),
            (125_000, 120_000, "other"),
            (250_000, 290_000, "other"),
            (545_000, 295_000, "cpu_outside"),
            (845_000, 215_000, "launching"),
        ]


def test_long_operations_in_order_of_time(tmp_path: Path) -> None:
    events = [
        slice_("cpu_op", "aten::mm", 0, 50),
        call("cudaDeviceSynchronize", 60, 40, 1),
        work("kernel", "gemm", 10, 60, 2),
        slice_("kernel", "bare", 20, 40, GPU, 9),
        slice_("cpu_op", "aten::add", 5, 10),
        slice_("python_function", "main", 0, 1000),
    ]
    with events_loaded(tmp_path, events) as rows:
        sql = "SELECT ts, dur, category, name, place FROM molprof_long_operations(40000)"
        assert rows("long_operations", sql) == [
            (0, 50_000, "cpu_op", "aten::mm", "process 100 thread 100"),
            (10_000, 60_000, "kernel", "gemm", "device 0 stream 7"),
            (20_000, 40_000, "kernel", "bare", "device 0"),
            (60_000, 40_000, "cuda_runtime", "cudaDeviceSynchronize", "process 100 thread 100"),
        ]
