"""GPU work and operators with all that is known of them, on literal events."""

from __future__ import annotations

from pathlib import Path

from origin_trace import EVENTS
from sql_rows import events_loaded
from tiny_trace import slice_


def test_work_in_order_with_its_origin(tmp_path: Path) -> None:
    with events_loaded(tmp_path, EVENTS) as rows:
        sql = """
            SELECT item.ts, item.class, item.device, item.operator, operator.ts, item.layer,
              item.phase, step.name, item.in_graph, item.call_id IS NOT NULL
            FROM molprof_origin AS item
            LEFT JOIN slice AS operator ON operator.id = item.operator_id
            LEFT JOIN slice AS step ON step.id = item.step_id
            ORDER BY item.ts
        """
        found = rows("origin", sql)
    step = "ProfilerStep#1"
    assert found == [
        (23_000, "matmul", "0", "aten::mm", 6_000, 0, None, step, 0, 1),
        (33_000, "matmul", "0", "aten::mm", 16_000, 1, None, step, 0, 1),
        (60_000, "copy", "0", "aten::copy_", 33_000, None, None, step, 0, 1),
        (70_000, "other", "0", None, None, None, None, step, 1, 1),
        (74_000, "other", "0", None, None, None, None, step, 1, 1),
        (80_000, "matmul", "0", "aten::mm", 41_000, None, None, step, 0, 1),
        (90_000, "other", "0", None, None, None, None, None, 0, 0),
    ]


def test_operators_with_their_callers_and_self_time(tmp_path: Path) -> None:
    events = [
        slice_("user_annotation", "ProfilerStep#1", 0, 50),
        slice_("cpu_op", "aten::linear", 10, 20),
        slice_("user_annotation", "inside", 14, 10),
        slice_("cpu_op", "aten::mm", 15, 5),
        slice_("cpu_op", "aten::add", 60, 5),
    ]
    sql = """
        SELECT item.name, caller.name, item.own_ns, item.module, item.layer, item.source, item.phase, item.step
        FROM molprof_operator_origin AS item
        LEFT JOIN slice AS caller ON caller.id = item.caller_id
        ORDER BY item.id
    """
    with events_loaded(tmp_path, events) as rows:
        found = rows("origin", sql)
    assert found == [
        ("aten::linear", None, 15_000, None, None, None, None, 1),
        ("aten::mm", "aten::linear", 5_000, "inside", None, None, None, 1),
        ("aten::add", None, 5_000, None, None, None, None, None),
    ]


def test_calls_with_what_they_did(tmp_path: Path) -> None:
    sql = """
        SELECT name, kind, kernels, gpu_ns, is_sync, correlation FROM molprof_call_origin
        WHERE name != 'cudaLaunchKernel' ORDER BY ts
    """
    with events_loaded(tmp_path, EVENTS) as rows:
        found = rows("origin", sql)
    assert found == [
        ("cudaGraphLaunch", "graph_launch", 2, 7_000, 0, 30),
        ("cudaStreamSynchronize", None, 0, 0, 1, 31),
    ]


def test_classes_of_modules(tmp_path: Path) -> None:
    with events_loaded(tmp_path, EVENTS) as rows:
        found = rows("origin", "SELECT name, class, module FROM molprof_frame WHERE kind IN ('module', 'range')")
    assert found == [
        ("Model_0", "Model", "Model_0"),
        ("Layer_0", "Layer", "Model_0/Layer_0"),
        ("Linear_0", "Linear", "Model_0/Layer_0/Linear_0"),
        ("Layer_1", "Layer", "Model_0/Layer_1"),
        ("Linear_1", "Linear", "Model_0/Layer_1/Linear_1"),
        ("cast", "cast", "Model_0/cast"),
    ]


def test_modules_of_stacks(tmp_path: Path) -> None:
    with events_loaded(tmp_path, EVENTS) as rows:
        found = rows("modules", "SELECT name, class, depth, ts FROM molprof_module")
    assert found == [
        ("Model_0", "Model", 0, 2_000),
        ("Layer_0", "Layer", 1, 3_000),
        ("Linear_0", "Linear", 2, 4_500),
        ("Layer_1", "Layer", 1, 13_000),
        ("Linear_1", "Linear", 2, 14_500),
    ]
