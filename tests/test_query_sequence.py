"""Sequences of GPU work and of operators on literal events."""

from __future__ import annotations

from pathlib import Path

from origin_trace import EVENTS
from sql_rows import events_loaded
from tiny_trace import slice_


def test_work_in_order_with_its_origin(tmp_path: Path) -> None:
    with events_loaded(tmp_path, EVENTS) as rows:
        sql = """
            SELECT item.ts, item.class, item.lane, item.operator, operator.ts, item.layer,
              item.phase, step.name, item.known
            FROM molprof_sequence_item AS item
            LEFT JOIN slice AS operator ON operator.id = item.operator_id
            LEFT JOIN slice AS step ON step.id = item.step_id
            ORDER BY item.ts
        """
        found = rows("work_sequence", sql)
    step = "ProfilerStep#1"
    assert found == [
        (23_000, "matmul", "0", "aten::mm", 6_000, 0, None, step, 1),
        (33_000, "matmul", "0", "aten::mm", 16_000, 1, None, step, 1),
        (60_000, "copy", "0", "aten::copy_", 33_000, None, None, step, 1),
        (70_000, "other", "0", None, None, None, None, step, 1),
        (74_000, "other", "0", None, None, None, None, step, 1),
        (80_000, "matmul", "0", "aten::mm", 41_000, None, None, step, 1),
        (90_000, "other", "0", None, None, None, None, None, 0),
    ]


def test_operators_where_there_is_no_gpu_work(tmp_path: Path) -> None:
    events = [
        slice_("user_annotation", "ProfilerStep#1", 0, 50),
        slice_("cpu_op", "aten::linear", 10, 20),
        slice_("cpu_op", "aten::mm", 15, 5),
    ]
    with events_loaded(tmp_path, events) as rows:
        found = rows("work_sequence", "SELECT name, category, operator, operator_id = id, step_id IS NOT NULL, known "
                     "FROM molprof_sequence_item ORDER BY ts")  # fmt: skip
        modules = rows("origin", "SELECT module, layer, source, phase FROM molprof_operator_origin ORDER BY id")
    assert found == [
        ("aten::linear", "cpu_op", "aten::linear", 1, 0, 1),
        ("aten::mm", "cpu_op", "aten::mm", 1, 1, 1),
    ]
    assert modules == [(None, None, None, None)] * 2
