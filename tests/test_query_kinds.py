"""SQL modules on kinds of work: exact rows of literal events, and of public traces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tiny_trace
from sql_rows import events_loaded
from sql_rows import rows as engine_rows
from tiny_trace import slice_, work

from molprof import api
from molprof.analysis.documents.figures import figure_values
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import open_engine
from molprof.queries import PACKAGE, modules

CORPUS = os.environ.get("MOLPROF_CORPUS")
ARANGE = "void at::native::elementwise_kernel_with_index<int, at::native::arange_cuda_out(int)>(int)"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"
NAMES = ("fmha_cutlassF_bf16", tiny_trace.COPY, FILL, ARANGE, tiny_trace.INDEX, tiny_trace.CAT, "compute_input")


def test_kinds_of_kernels_by_name(tmp_path: Path) -> None:
    events = [work("kernel", name, 10 * place, 1, place) for place, name in enumerate(NAMES)]
    with events_loaded(tmp_path, events) as rows:
        found = rows("kernel_kinds", "SELECT kind, name FROM molprof_kernel_kind ORDER BY kind, name")
        assert found == sorted(
            [("elementwise", name) for name in (tiny_trace.COPY, FILL, ARANGE, tiny_trace.INDEX)]
            + [("masking", name) for name in (FILL, tiny_trace.INDEX)]
        )
        kinds = "SELECT DISTINCT kind FROM molprof_kind_pattern ORDER BY kind"
        assert rows("kernel_kinds", kinds) == [("elementwise",), ("masking",)]


def test_work_by_kind_in_the_trace_and_in_its_steps(tmp_path: Path) -> None:
    events = [
        slice_("user_annotation", "decode step 1", 0, 50),
        slice_("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
        slice_("cuda_runtime", "cudaMemcpyAsync", 3, 1, correlation=2),
        slice_("cuda_runtime", "cudaLaunchKernel", 60, 1, correlation=3),
        work("kernel", tiny_trace.COPY, 70, 2, 1),
        work("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 80, 4, 2, bytes=8),
        work("kernel", tiny_trace.COPY, 90, 3, 3),
        work("kernel", tiny_trace.CAT, 95, 1, 4),
    ]
    zero = [(kind, 0, 0, 0, 0) for kind in ("attention", "masking", "memcpy DtoD", "memcpy DtoH", "memcpy HtoD")]
    wanted = [
        ("cat", 1, 1_000, 0, 0),
        ("copy", 2, 5_000, 1, 2_000),
        ("elementwise", 2, 5_000, 1, 2_000),
        ("memcpy PtoP", 1, 4_000, 1, 4_000),
        ("memset", 0, 0, 0, 0),
        *zero,
    ]
    with events_loaded(tmp_path, events) as rows:
        assert rows("work_kinds", "SELECT * FROM molprof_work_kind") == sorted(wanted)
    with events_loaded(tmp_path, events[1:]) as rows:
        without = [(kind, count, time_ns, None, None) for kind, count, time_ns, *_ in wanted]
        assert rows("work_kinds", "SELECT * FROM molprof_work_kind") == sorted(without)


@pytest.mark.skipif(CORPUS is None, reason="MOLPROF_CORPUS is not set")
def test_a_public_trace(tmp_path: Path) -> None:
    """Its ProfilerStep launched the kernels of 24 layers; the others were launched before recording began."""
    found = figure_values(api.report(Path(str(CORPUS)) / "traces" / "h100_qwen1.5_0.5b.json.gz"))
    wanted = {
        "copy_kernels": 280, "copy_kernels_per_step": 197, "cat_kernels": 69, "cat_kernels_per_step": 49,
        "attention_kernels": 34, "attention_kernels_per_step": 24, "elementwise_kernels": 1048,
        "elementwise_to_attention": 736 / 24, "masking_candidates": 1, "memcpy_dtoh": 1, "memcpy_htod_per_step": 0,
        "syncs_per_step": 2, "launches_per_token": None,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted


def test_attention_by_kernel_and_operator(tmp_path: Path) -> None:
    events = [
        slice_("cpu_op", "aten::mm", 0, 5),
        slice_("cpu_op", "aten::_flash_Attention_forward", 10, 5),
        slice_("cpu_op", "aten::scaled_dot_product_attention", 9, 10),
        work("kernel", "flash_fwd_kernel", 20, 4, 1),
        work("kernel", "gemm", 30, 4, 2),
    ]
    with events_loaded(tmp_path, events) as rows:
        operators = [("aten::scaled_dot_product_attention", 1, 10_000), ("aten::_flash_Attention_forward", 1, 5_000)]
        assert rows("host_totals", "SELECT * FROM molprof_attention_operator") == operators
        assert rows("attention", "SELECT * FROM molprof_attention") == [
            ("kernel", "flash_fwd_kernel", 1, 4_000, 0.5),
            *(("operator", *operator, None) for operator in operators),
        ]


def test_totals_are_the_same_where_the_engine_does_not_number_stacks(tmp_path: Path) -> None:
    events = [
        slice_("cpu_op", "aten::linear", 0, 20),
        slice_("cpu_op", "aten::addmm", 1, 9),
        slice_("cpu_op", "aten::addmm", 11, 2),
        slice_("user_annotation", "aten::linear", 30, 20),
        slice_("cpu_op", "aten::addmm", 31, 5),
        slice_("cpu_op", "aten::addmm", 32, 3),
        *(work("kernel", "sin", 10 * place, 1, place) for place in range(3)),
    ]
    operators = [("aten::addmm", 4, 16_000, 19_000), ("aten::linear", 1, 9_000, 20_000)]
    totals = ("cpu_operations", "SELECT name, count, own_ns, time_ns FROM molprof_top_cpu_operation ORDER BY name")
    kernels = ("work_totals", "SELECT name, count, time_ns FROM molprof_work_total")
    with events_loaded(tmp_path, events) as rows:
        assert rows(*totals) == operators
        assert rows(*kernels) == [("sin", 3, 3_000)]
    path = tiny_trace.write(tmp_path / "later.json", {"traceEvents": events})
    without = {key: sql.replace("stack_id", "no_stack_id") for key, sql in modules().items()}
    with open_engine() as engine:
        load_trace(path, engine)
        engine.register_package(PACKAGE, without)
        assert engine_rows(engine, *totals) == operators
        assert engine_rows(engine, *kernels) == [("sin", 3, 3_000)]
