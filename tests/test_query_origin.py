"""The SQL module `origin` on literal events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from origin_trace import EVENTS, launch, python
from sql_rows import events_loaded
from tiny_trace import document, slice_, work


def test_origin_in_sql(tmp_path: Path) -> None:
    columns = "name, operator, module, layer, source, step"
    with events_loaded(tmp_path, EVENTS) as rows:
        found = rows("origin", f"SELECT {columns} FROM molprof_origin")
    main = "main.py(3): main"
    assert found == [
        ("gemm", "aten::mm", "Model_0/Layer_0/Linear_0", 0, main, 1),
        ("gemm", "aten::mm", "Model_0/Layer_1/Linear_1", 1, main, 1),
        ("void at::native::direct_copy_kernel_cuda(int)", "aten::copy_", "Model_0/cast", None, main, 1),
        ("in_graph", None, "Model_0", None, main, 1),
        ("in_graph", None, "Model_0", None, main, 1),
        ("gemm", "aten::mm", None, None, None, 1),
        ("alone", None, None, None, None, None),
    ]


def test_calls_and_the_frames_around_them(tmp_path: Path) -> None:
    calls = """
        SELECT slice.name, origin.operator, origin.source, frame.kind, frame.name
        FROM molprof_call_origin AS origin
        JOIN slice ON slice.id = origin.call_id
        LEFT JOIN molprof_frame AS frame ON frame.id = origin.frame_id
        WHERE slice.name != 'cudaLaunchKernel'
        ORDER BY slice.ts
    """
    frames = """
        SELECT inner.kind, inner.name, outer.name
        FROM molprof_frame AS inner
        LEFT JOIN molprof_frame AS outer ON outer.id = inner.parent_id
        WHERE inner.kind NOT IN ('module', 'operator')
        ORDER BY inner.id
    """
    with events_loaded(tmp_path, EVENTS) as rows:
        found, around = rows("origin", calls), rows("origin", frames)
    assert found == [
        ("cudaGraphLaunch", None, "main.py(3): main", "module", "Model_0"),
        ("cudaStreamSynchronize", None, "main.py(3): main", "function", "main.py(3): main"),
    ]
    assert around == [
        ("function", "main.py(3): main", None),
        ("library", "torch/nn/modules/linear.py(9): forward", "Layer_0"),
        ("library", "torch/nn/modules/linear.py(9): forward", "Layer_1"),
        ("range", "cast", "Model_0"),
    ]


def test_steps_of_a_captured_run(tmp_path: Path) -> None:
    origins = """
        SELECT slice.name, origin.phase, origin.step, step.name
        FROM molprof_call_origin AS origin
        JOIN slice ON slice.id = origin.call_id
        LEFT JOIN molprof_any_step AS step ON step.id = origin.step_id
        ORDER BY slice.ts
    """
    with events_loaded(tmp_path, document()["traceEvents"]) as rows:
        found = rows("origin", origins)
    first, second = ("molprof.step batch=0 step=1", "molprof.step batch=0 step=2")
    assert found == [
        ("cudaLaunchKernel", "forward", 1, first),
        ("cudaLaunchKernelExC", "forward", 1, first),
        ("cudaLaunchKernel", "processor", 1, first),
        ("cudaMemcpyAsync", "sampling", 1, first),
        ("cudaStreamSynchronize", "sampling", 1, first),
        ("cudaGraphLaunch", "forward", 2, second),
        ("cuLaunchKernel", "bookkeeping", 2, second),
    ]


def test_ranges_that_begin_together_and_a_call_that_outlasts_its_function(tmp_path: Path) -> None:
    events = [
        python("run.py(1): run", 0, 100),
        python("<built-in function enter>", 1, 2),
        slice_("user_annotation", "outer", 2, 50),
        slice_("user_annotation", "inner", 2, 40),
        python("run.py(9): step", 10, 5),
        {**launch(14, 1), "dur": 3},
        work("kernel", "late", 20, 1, 1),
        launch(45, 2),
        work("kernel", "between", 46, 1, 2),
        launch(60, 3),
        work("kernel", "after", 61, 1, 3),
    ]
    with events_loaded(tmp_path, events) as rows:
        found = rows("origin", "SELECT name, module, source FROM molprof_origin")
    assert found == [
        ("late", "outer/inner", "run.py(9): step"),
        ("between", "outer", "run.py(1): run"),
        ("after", None, "run.py(1): run"),
    ]


def test_phase_of_the_launch(tmp_path: Path) -> None:
    with events_loaded(tmp_path, document()["traceEvents"]) as rows:
        found = rows("origin", "SELECT phase, operator, COUNT() FROM molprof_origin GROUP BY 1, 2 ORDER BY 1, 2")
    assert found == [
        (None, None, 1),
        ("forward", None, 2),
        ("forward", "aten::addmm", 1),
        ("forward", "aten::mm", 1),
        ("processor", "aten::index_put_", 1),
        ("sampling", "aten::_local_scalar_dense", 1),
    ]


def test_places_of_calls_and_of_idle_time(tmp_path: Path) -> None:
    def layer(start: int, number: int, kernel_us: int) -> list[Any]:
        return [
            slice_("python_function", "model.py(7): forward", start, 90),
            slice_("python_function", f"nn.Module: Linear_{number}", start + 5, 80),
            slice_("python_function", "torch/nn/linear.py(1): forward", start + 10, 70),
            slice_("cpu_op", "aten::mm", start + 40, 30),
            slice_("cuda_runtime", "cudaLaunchKernel", start + 50, 5, correlation=number),
            work("kernel", "gemm", start + 60, kernel_us, number),
        ]

    with events_loaded(tmp_path, [*layer(0, 1, 10), *layer(100, 2, 20)]) as rows:
        sql = """SELECT source, module, operator, class, launched.count, time_ns
            FROM molprof_launched_work AS launched JOIN molprof_call_place USING (place_id) ORDER BY time_ns"""
        assert rows("call_places", sql) == [
            ("model.py(7): forward", "Linear", "aten::mm", "matmul", 1, 10_000),
            ("model.py(7): forward", "Linear", "aten::mm", "matmul", 1, 20_000),
        ]
        # Operators and calls are recorded from 40 on: 10 us in the operator before the first launch. The gap is short.
        sql = """SELECT source, operator, idle.count, time_ns FROM molprof_idle_time AS idle
            JOIN molprof_idle_place USING (place_id)"""
        assert rows("idle_places", sql) == [("model.py(7): forward", "aten::mm", 1, 10_000)]
    with events_loaded(tmp_path, [*layer(0, 1, 10), *layer(2000, 2, 20)]) as rows:
        # From 70 to 2050: 20 us in the end of the first function, 1910 outside, 40 in the second, 10 in mm.
        sql = """SELECT source, operator, SUM(time_ns) FROM molprof_idle_time
            LEFT JOIN molprof_idle_place USING (place_id) GROUP BY source, operator ORDER BY 3"""
        assert rows("idle_places", sql) == [
            ("model.py(7): forward", "aten::mm", 20_000),
            ("model.py(7): forward", None, 60_000),
            (None, None, 1_910_000),
        ]
