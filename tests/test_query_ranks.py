"""SQL modules on collectives and ranks: exact rows of literal events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rank_traces import ALLREDUCE, SIZES, gpu, launch
from sql_rows import events_loaded
from tiny_trace import slice_, write

from molprof import api
from molprof.analysis.reader.load import load_trace
from molprof.analysis.reader.open import open_trace
from molprof.analysis.trace_processor import open_engine
from molprof.common.errors import TraceError
from molprof.queries import PACKAGE, modules


def test_collectives_by_name_and_by_args(tmp_path: Path) -> None:
    events = [
        gpu(ALLREDUCE, 0, 5, 1, 20, **SIZES),
        gpu("ncclDevKernel_AllGather_RING_LL", 10, 5, 2, 20),
        gpu(
            "ncclKernel_SendRecv", 20, 5, 3, 20, **SIZES | {"Collective name": "all_to_allv", "dtype": "Float8_e4m3fn"}
        ),
        gpu("custom", 30, 5, 4, 20, **{**SIZES, "Collective name": "_reduce_scatter_base", "In msg nelems": 4000}),
        gpu("gemm", 40, 5, 5),
        # What torch called it, where its args do not say.
        slice_("user_annotation", "nccl:all_to_all", 50, 8),
        launch(51, 6),
        gpu("ncclKernel_SendRecv_RING_SIMPLE", 60, 5, 6, 20),
        gpu("ncclKernel_SendRecv_RING_SIMPLE", 70, 5, 7, 20),
    ]
    sql = "SELECT operation, group_name, group_ranks, group_size, dtype, elements, bytes FROM molprof_collective"
    group = ("0", "[0, 1]", 2)
    with events_loaded(tmp_path, events) as rows:
        assert rows("collectives", sql) == [
            ("allreduce", *group, "BFloat16", 1000, 2000),
            ("allgather", None, None, None, None, None, None),
            ("alltoall", *group, "Float8_e4m3fn", 1000, 1000),
            ("reducescatter", *group, "BFloat16", 4000, 8000),
            ("alltoall", None, None, None, None, None, None),
            ("sendrecv", None, None, None, None, None, None),
        ]


def test_args_that_cannot_be_are_none(tmp_path: Path) -> None:
    wrong = {"Group size": -2, "dtype": 7, "In msg nelems": 2**62, "Process Group Ranks": [0, 1], "Seq": "x"}
    events = [
        gpu(ALLREDUCE, 0, 5, 1, 20, **SIZES | wrong),
        gpu(ALLREDUCE, 10, 5, 2, 20, **SIZES | {"In msg nelems": -5, "Out msg nelems": -1}),
    ]
    path = write(tmp_path / "a.json", {"traceEvents": events})
    with open_trace(path, all_args=False) as (engine, _):
        engine.register_package(PACKAGE, modules())
        sql = "SELECT group_size, group_ranks, dtype, elements, bytes FROM molprof_collective"
        found = engine.query(f"INCLUDE PERFETTO MODULE molprof.collectives; {sql}")
        rows = list(zip(*(column.tolist() for column in found.values()), strict=True))
    assert rows == [(None, "[0,1]", "7", None, None), (2, "[0, 1]", "BFloat16", None, None)]


@pytest.mark.parametrize("all_args", [False, True])
def test_sizes_from_the_annotation_around_the_launch(tmp_path: Path, all_args: bool) -> None:
    def around(name: str, ts: float, dims: Any, correlation: int) -> list[dict[str, Any]]:
        args = {"Input Dims": dims, "Input type": ["c10::Half"] * len(dims)}
        return [slice_("user_annotation", name, ts, 8, **args), launch(ts + 1, correlation)]

    events = [
        *around("nccl:all_reduce", 0, [[4, 5], [7]], 1),
        *around("nccl:_all_gather_base", 10, [[4, 5]], 2),
        *around("nccl:all_reduce", 20, [[4, 5], []], 3),
        *around("anything", 30, [[4, 5]], 4),
        *(gpu(name, 50 + 10 * number, 5, number, 20) for number, name in enumerate(
            (ALLREDUCE, "ncclKernel_AllGather", ALLREDUCE, ALLREDUCE), 1
        )),
    ]  # fmt: skip
    path = write(tmp_path / "a.json", {"traceEvents": events})
    with open_trace(path, all_args=all_args) as (engine, _):
        engine.register_package(PACKAGE, modules())
        sql = "INCLUDE PERFETTO MODULE molprof.collectives; SELECT dtype, elements, bytes FROM molprof_collective"
        found = list(zip(*(column.tolist() for column in engine.query(sql).values()), strict=True))
    assert found == [("c10::Half", 27, 54), ("c10::Half", None, None), ("c10::Half", None, None), (None, None, None)]


def test_a_device_that_is_no_number_is_shown_as_what_it_is(tmp_path: Path) -> None:
    devices = [True, False, [1], {"a": 1}, "x", 1.5, None]
    events = [
        slice_("kernel", "k", 10 * number, 5, 3, 7, device=device, stream=7, correlation=number)
        for number, device in enumerate(devices)
    ]
    path = write(tmp_path / "a.json", {"traceEvents": events})
    report = api.report(path)
    assert list(report.devices) == sorted(["true", "false", "[1]", '{"a":1}', "x", "1.5", "None"])
    with open_engine() as engine:
        load_trace(path, engine)
        engine.register_package(PACKAGE, modules())
        sql = "INCLUDE PERFETTO MODULE molprof.gpu_work; SELECT device FROM molprof_gpu_work LIMIT 2"
        assert engine.query(sql)["device"].tolist() == ["true", "false"]


@pytest.mark.parametrize("stream", ["true", "1e999", '"x"', "[7]"])
def test_a_stream_that_is_no_number_is_refused(tmp_path: Path, stream: str) -> None:
    text = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2,"args":{"device":0,"stream":STREAM}}'
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents":[' + text.replace("STREAM", stream) + "]}")
    with pytest.raises(TraceError, match=r"has the stream .*, which is not an integer"):
        api.report(path)


def test_a_merged_trace_links_within_each_rank(tmp_path: Path) -> None:
    """Both ranks have the numbers 1 and 2, and device 0."""
    events = [
        *(launch(10 * number, 1 + number % 2, pid=f"rank{number // 2}_100") for number in range(4)),
        *(
            slice_("kernel", f"k{number}", 100 + 10 * number, 5 + number, f"rank{number // 2}_0", 7, device=0, stream=7)
            for number in range(4)
        ),
    ]
    for number, event in enumerate(events[4:]):
        event["args"]["correlation"] = 1 + number % 2
    linked = "SELECT work.name, work.device, call.ts FROM molprof_gpu_work_call AS link JOIN molprof_gpu_work AS work"
    linked += " ON work.id = link.work_id JOIN molprof_gpu_call AS call ON call.id = link.call_id ORDER BY work.ts"
    times = "SELECT rank, device, span_ns, compute_ns, idle_ns, kernels, kernels_without_call FROM molprof_rank"
    with events_loaded(tmp_path, events) as rows:
        assert rows("work_calls", linked) == [
            ("k0", "0:0", 0),
            ("k1", "0:0", 10_000),
            ("k2", "1:0", 20_000),
            ("k3", "1:0", 30_000),
        ]
        assert rows("rank_times", times) == [
            (0, "0:0", 16_000, 11_000, 5_000, 2, 0),
            (1, "1:0", 18_000, 15_000, 3_000, 2, 0),
        ]
        found = rows("process_ranks", "SELECT rank, name FROM molprof_process_rank ORDER BY rank, name")
        assert found == [(rank, f"rank {rank}: rank{rank}_{pid}") for rank in (0, 1) for pid in (0, 100)]
        tracks = "SELECT rank, COUNT() FROM molprof_track_rank GROUP BY rank"
        assert rows("process_ranks", tracks) == [(0, 2), (1, 2)]
        counts = "SELECT launches_without_gpu_work, kernels_with_call FROM molprof_launch_count"
        assert rows("launches", counts) == [(0, 4)]


def test_a_number_of_several_calls_links_nothing(tmp_path: Path) -> None:
    events = [
        launch(0, 1),
        launch(5, 1, pid=200),
        launch(10, 2),
        launch(20, 2),
        slice_("cuda_runtime", "hipLaunchKernel", 30, 5, correlation=3),
        slice_("cuda_runtime", "hipModuleLaunchKernel", 31, 2, correlation=3),
        *(gpu("k", 50 + 10 * number, 5, number) for number in (1, 2, 3)),
    ]
    with events_loaded(tmp_path, events) as rows:
        ambiguous = rows("work_calls", "SELECT rank, correlation, calls FROM molprof_ambiguous_call")
        assert ambiguous == [(None, 1, 2), (None, 2, 2)]
        linked = "SELECT call.ts FROM molprof_gpu_work_call JOIN slice AS call ON call.id = call_id"
        assert rows("work_calls", linked) == [(30_000,)]
