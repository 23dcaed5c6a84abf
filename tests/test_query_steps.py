"""SQL modules on steps of any origin: exact rows of literal events, and of public traces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from sql_rows import Rows, events_loaded, rows
from tiny_trace import slice_, work

from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import open_engine
from molprof.queries import PACKAGE, modules

CORPUS = os.environ.get("MOLPROF_CORPUS")
STEPS = "SELECT source, kind, number, prompt_sequences, prompt_tokens, tokens FROM molprof_any_step"
# source, kind, steps, tokens, prompt tokens, launches, graph launches, kernels, launches per token
SUMMARY = """
SELECT source, kind, steps, tokens, prompt_tokens, launches, graph_launches, kernels, launches_per_token
FROM molprof_step_launch_summary
"""


def annotation(name: str, ts: float, dur: float, tid: int = 100) -> dict[str, Any]:
    return slice_("user_annotation", name, ts, dur, tid=tid)


@pytest.fixture
def captured(tmp_path: Path) -> Iterator[Rows]:
    """The tiny captured run."""
    path = tiny_trace.write(tmp_path / "tiny.json", tiny_trace.document())
    with open_engine() as engine:
        load_trace(path, engine)
        engine.register_package(PACKAGE, modules())
        yield lambda module, sql: rows(engine, module, sql)


def test_annotations_keep_their_thread_on_a_lane(tmp_path: Path) -> None:
    events = [
        annotation("a", 0, 10),
        annotation("b", 5, 10),
        annotation("c", 20, 1, tid=101),
        slice_("cpu_op", "d", 0, 1),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("annotations", "SELECT name, ts, dur, tid FROM molprof_annotation") == [
            ("a", 0, 10_000, 100),
            ("b", 5_000, 10_000, 100),
            ("c", 20_000, 1_000, 101),
        ]


def test_what_annotations_mark(tmp_path: Path) -> None:
    marks = {
        "molprof.step batch=0 step=1": ("molprof", "step"),
        "molprof.forward batch=0 step=1": ("molprof", "phase"),
        "molprof.step 3": ("molprof", None),
        "step[DECODE bs=3]": ("sglang", "step"),
        "execute_context_0(0)_generation_5(5)": ("vllm", "step"),
        "ProfilerStep#3": ("profiler", "step"),
        "ProfilerStep": ("profiler", None),
        "Train_Step": ("program", "step"),
        "Optimizer.step": (None, None),
        "aten": (None, None),
    }
    with events_loaded(tmp_path, [annotation(name, 10 * n, 5) for n, name in enumerate(marks)]) as rows:
        found = rows("annotations", "SELECT name, source, role FROM molprof_annotation")
        named = rows("annotations", "SELECT DISTINCT source FROM molprof_annotation_pattern ORDER BY source")
    assert {name: mark for name, *mark in found} == {name: list(mark) for name, mark in marks.items()}
    assert named == [("molprof",), ("profiler",), ("program",), ("sglang",), ("vllm",)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("execute_context_1(888_788544)_generation_0(0)", ("vllm", "prefill", None, 1, 888, None)),
        ("execute_context_0(0_0)_generation_4(4)", ("vllm", "decode", None, 0, 0, 4)),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            ("vllm", "decode", None, 0, 0, 32),
        ),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            ("vllm", "mixed", None, 9, 8155, 37),
        ),
        ("execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_0(sq0sk0sqsq0sqsk0)", ("vllm", "idle", None, 0, 0, 0)),
        ("step[DECODE bs=32]", ("sglang", "decode", None, 0, 0, 32)),
        ("step[EXTEND bs=15 toks=15360]", ("sglang", "prefill", None, 15, 15360, None)),
        ("step[IDLE]", ("sglang", "idle", None, None, None, None)),
        ("step[TARGET_VERIFY bs=2]", ("sglang", "target_verify", None, None, None, None)),
        ("ProfilerStep#6", ("profiler", None, 6, None, None, None)),
        ("decode step 12", ("program", None, None, None, None, None)),
        ("Iteration_3", ("program", None, None, None, None, None)),
        ("generate_step", ("program", None, None, None, None, None)),
    ],
)
def test_a_step_by_its_name(tmp_path: Path, name: str, expected: tuple[Any, ...]) -> None:
    with events_loaded(tmp_path, [annotation(name, 0, 10)]) as query:
        assert query("steps", STEPS) == [expected]


@pytest.mark.parametrize(
    "name",
    [
        "steps",
        "molprof.forward batch=0 step=1",
        "my step[DECODE bs=1]",
        "execute_model",
        "ProfilerStep",
        "Optimizer.step#Adam",
    ],
)
def test_other_annotations_are_no_steps(tmp_path: Path, name: str) -> None:
    with events_loaded(tmp_path, [annotation(name, 0, 10), slice_("cpu_op", "step[DECODE bs=1]", 0, 1)]) as query:
        assert query("steps", STEPS) == []
        assert query("step_launches", SUMMARY) == []
        assert query("step_latency", "SELECT * FROM molprof_step_latency") == []


def test_one_source_and_the_outermost_steps_count(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#1", 0, 1000),
        annotation("execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk8sqsq2sqsk8)", 0, 100),
        annotation("step[DECODE bs=2]", 10, 90),
        annotation("step[EXTEND bs=1 toks=7]", 200, 50),
    ]
    with events_loaded(tmp_path, events) as query:
        assert query("steps", "SELECT ts, dur, source, kind, tokens FROM molprof_any_step") == [
            (0, 100_000, "sglang", "decode", 2),
            (200_000, 50_000, "sglang", "prefill", None),
        ]


def test_launches_per_token_and_what_lies_outside(tmp_path: Path) -> None:
    events = [
        annotation("step[EXTEND bs=1 toks=7]", 0, 100),
        annotation("step[DECODE bs=4]", 100, 50),
        annotation("step[DECODE bs=2]", 150, 50),
        slice_("cuda_runtime", "cudaLaunchKernel", 10, 5, correlation=1),
        # A graph launched in the second step: its kernels run when the third has begun.
        slice_("cuda_runtime", "cudaGraphLaunch", 110, 5, correlation=2),
        # Another thread of the process, in the third step.
        slice_("cuda_runtime", "cudaLaunchKernel", 160, 5, tid=101, correlation=3),
        slice_("cuda_runtime", "cudaStreamSynchronize", 170, 25, correlation=4),
        slice_("cuda_runtime", "cudaLaunchKernel", 250, 5, correlation=5),
        slice_("cpu_op", "aten::mm", 5, 20),
        work("kernel", "a", 50, 10, 1),
        work("kernel", "b", 155, 10, 2),
        work("kernel", "b", 165, 10, 2),
        work("kernel", "c", 180, 5, 3),
        work("kernel", "d", 260, 5, 5),
        work("kernel", "e", 190, 5, 99),
    ]
    with events_loaded(tmp_path, events) as query:
        sql = """
        SELECT step.ts, fact.launches, fact.graph_launches, fact.kernels, fact.gpu_ns, fact.syncs, fact.sync_ns,
          fact.leaf_operators
        FROM molprof_step_launch AS fact LEFT JOIN molprof_any_step AS step ON step.id = fact.step_id
        """
        assert query("step_launches", sql) == [
            (0, 1, 0, 1, 10_000, 0, 0, None),
            (100_000, 0, 1, 2, 20_000, 0, 0, None),
            (150_000, 1, 0, 1, 5_000, 1, 25_000, None),
            (None, 1, 0, 2, 10_000, 0, 0, None),
        ]
        assert query("step_launches", SUMMARY) == [
            ("sglang", "decode", 2, 6, 0, 1, 1, 3, 1 / 6),
            ("sglang", "prefill", 1, None, 7, 1, 0, 1, None),
            (None, None, 0, None, None, 1, 0, 2, None),
        ]
        per_step = "SELECT launches_per_step, kernels_per_step, kernels_per_token FROM molprof_step_launch_summary"
        assert query("step_launches", per_step) == [(0.5, 1.5, 0.5), (1.0, 1.0, None), (None, None, None)]


def test_steps_on_several_threads_take_their_own_threads_calls(tmp_path: Path) -> None:
    events = [
        annotation("step[DECODE bs=1]", 0, 100, tid=100),
        annotation("step[DECODE bs=1]", 20, 100, tid=101),
        slice_("cuda_runtime", "cudaLaunchKernel", 30, 5, tid=100, correlation=1),
        slice_("cuda_runtime", "cudaLaunchKernel", 40, 5, tid=101, correlation=2),
        slice_("cuda_runtime", "cudaLaunchKernel", 50, 5, tid=102, correlation=3),
    ]
    with events_loaded(tmp_path, events) as query:
        sql = """
        SELECT slice.ts, step.tid FROM molprof_call_step AS place
        JOIN slice USING (id) JOIN molprof_any_step AS step ON step.id = place.step_id
        """
        assert query("step_placement", sql) == [(30_000, 100), (40_000, 101)]


def test_without_a_gpu_launches_are_not_recorded(tmp_path: Path) -> None:
    events = [annotation("ProfilerStep#1", 0, 100), slice_("cpu_op", "aten::mm", 5, 20)]
    with events_loaded(tmp_path, events) as query:
        sql = "SELECT source, steps, launches, kernels, syncs, leaf_operators FROM molprof_step_launch_summary"
        assert query("step_launches", sql) == [("profiler", 1, None, None, None, 1), (None, 0, None, None, None, 0)]


def test_latency_percentiles_by_nearest_rank(tmp_path: Path) -> None:
    # 100 steps of 1 to 100 us, 200 us apart.
    events = [annotation(f"ProfilerStep#{number}", 200 * number, number) for number in range(1, 101)]
    with events_loaded(tmp_path, events) as query:
        assert query("step_latency", "SELECT * FROM molprof_step_latency") == [
            ("duration", "profiler", None, 100, 50_500.0, 1_000, 50_000, 90_000, 99_000, 100_000),
            ("period", "profiler", None, 99, 200_000.0, 200_000, 200_000, 200_000, 200_000, 200_000),
        ]


def test_steps_of_a_captured_run(captured: Rows) -> None:
    assert captured("steps", STEPS) == [
        ("molprof", "decode", 1, None, None, 2),
        ("molprof", "decode", 2, None, None, 1),
    ]
    assert captured("step_launches", SUMMARY) == [
        ("molprof", "decode", 2, 3, None, 4, 1, 5, 4 / 3),
        (None, None, 0, None, None, 0, 0, 1, None),
    ]
    assert captured("sync_phases", "SELECT * FROM molprof_host_sync_phase") == [
        ("sampling", "cudaStreamSynchronize", "aten::_local_scalar_dense", 1, 6_000, 6_000),
        ("sampling", "cudaMemcpyAsync", "aten::_local_scalar_dense", 1, 2_000, 2_000),
    ]


def test_counted_operators_are_the_leaf_operators(tmp_path: Path) -> None:
    events = [
        slice_("cpu_op", "aten::add", 0, 10),
        slice_("user_annotation", "range", 1, 5),
        slice_("user_annotation", "inner range", 2, 3),
        slice_("cpu_op", "aten::mul", 3, 1),
        slice_("cpu_op", "aten::linear", 20, 10),
        slice_("cpu_op", "aten::mm", 20, 10),
        slice_("cpu_op", "moved to a lane", 25, 10),
        slice_("user_annotation", "range", 26, 2),
        slice_("cpu_op", "aten::empty", 40, 0),
        {"ph": "B", "cat": "cpu_op", "name": "without an end", "pid": 100, "tid": 100, "ts": 50},  # not counted
        slice_("cpu_op", "aten::copy_", 51, 1),
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("operators", "SELECT name FROM molprof_leaf_operator") == [
            ("aten::mul",),
            ("aten::mm",),
            ("moved to a lane",),
            ("aten::empty",),
            ("aten::copy_",),
        ]
        counted = rows("operators", "SELECT id, ts FROM _molprof_counted_operator")
        assert counted == rows("operators", "SELECT id, ts FROM molprof_leaf_operator")


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("b200_vllm_eager", [("vllm", "prefill", 1, None, 888, 768, 0, 768, None)]),
        ("h100_qwen1.5_0.5b", [("profiler", None, 1, None, None, 1029, 0, 1029, None)]),
        ("mi300x_sglang_qwen3_8b_decode", [("sglang", "decode", 1, 32, 0, 11, 1, 555, 11 / 32)]),
        ("mi300x_vllm_decode_graph", [("vllm", "decode", 1, 32, 0, 4, 1, 425, 4 / 32)]),
        ("mi300x_vllm_piecewise_graph", [("vllm", "mixed", 1, 37, 8155, 52, 25, 413, 52 / 37)]),
        ("torch_compile_triton", []),
        ("v100_resnet_ddp", [("profiler", None, 5, None, None, 4350, 0, 4350, None)]),
    ],
)
def test_steps_of_public_traces(name: str, expected: list[tuple[Any, ...]]) -> None:
    with open_engine() as engine:
        load_trace(Path(str(CORPUS), "traces", f"{name}.json.gz"), engine)
        engine.register_package(PACKAGE, modules())
        found = rows(engine, "step_launches", SUMMARY)
    assert [row for row in found if row[0]] == expected
