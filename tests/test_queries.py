"""The SQL package: exact rows of a tiny captured run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_trace
from sql_rows import events_loaded, rows
from tiny_trace import slice_, work

from molprof.analysis.query import find_statement
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.queries import PACKAGE, modules
from molprof.queries.catalog import catalog

MODULES = modules()
CATALOG = catalog()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceProcessor]:
    """The tiny captured run, with the package."""
    path = tiny_trace.write(tmp_path_factory.mktemp("trace") / "tiny.json", tiny_trace.document())
    with open_engine() as opened:
        load_trace(path, opened)
        opened.register_package(PACKAGE, MODULES)
        yield opened


@pytest.mark.parametrize("name", CATALOG)
def test_every_example_runs(engine: TraceProcessor, name: str) -> None:
    statement = find_statement(name, {})
    assert isinstance(rows(engine, name, statement.sql), list)


def test_counts(engine: TraceProcessor) -> None:
    assert rows(engine, "launches", "SELECT * FROM molprof_launch_count") == [(4, 1, 6, 71_000, 6, 1, 5, 1)]


def test_calls_and_the_work_they_started(engine: TraceProcessor) -> None:
    assert rows(engine, "gpu_calls", "SELECT ts, dur, name, kind, correlation FROM molprof_gpu_call") == [
        (10_000, 5_000, "cudaLaunchKernel", "launch", 1),
        (35_000, 4_000, "cudaLaunchKernelExC", "launch", 2),
        (64_000, 3_000, "cudaLaunchKernel", "launch", 3),
        (81_000, 2_000, "cudaMemcpyAsync", None, 4),
        (84_000, 6_000, "cudaStreamSynchronize", None, 5),
        (105_000, 5_000, "cudaGraphLaunch", "graph_launch", 6),
        (176_000, 1_000, "cuLaunchKernel", "launch", 7),
    ]
    sql = """
    SELECT work.correlation, link.delay FROM molprof_gpu_work_call AS link
    JOIN molprof_gpu_work AS work ON work.id = link.work_id ORDER BY work.ts
    """
    assert rows(engine, "work_calls", sql) == [
        (1, 20_000),
        (2, 37_000),
        (3, 21_000),
        (4, 7_000),
        (6, 10_000),
        (6, 15_000),
    ]


def test_launches_by_name(engine: TraceProcessor) -> None:
    assert rows(engine, "launches", "SELECT * FROM molprof_launch_summary") == [
        ("cudaLaunchKernel", "launch", 2, 8_000, 2, 20_500.0),
        ("cuLaunchKernel", "launch", 1, 1_000, 0, None),
        ("cudaGraphLaunch", "graph_launch", 1, 5_000, 2, 10_000.0),
        ("cudaLaunchKernelExC", "launch", 1, 4_000, 1, 37_000.0),
    ]


def test_devices_are_busy_for_the_union_of_their_work(engine: TraceProcessor) -> None:
    assert rows(engine, "devices", "SELECT * FROM molprof_device") == [("0", 149_000, 67_000, 82_000, 7)]
    assert rows(engine, "devices", "SELECT * FROM molprof_device_idle") == [
        ("0", 130_000, 48_000),
        ("0", 89_000, 26_000),
        ("0", 80_000, 5_000),
        ("0", 70_000, 2_000),
        ("0", 87_000, 1_000),
    ]


def test_memory_operations(engine: TraceProcessor) -> None:
    assert rows(engine, "memory_operations", "SELECT * FROM molprof_memory_operation") == [
        ("Memcpy DtoH", 1, 1_000, 16, 16e6)
    ]


def test_host_syncs_are_the_wait_and_the_pageable_copy(engine: TraceProcessor) -> None:
    assert rows(engine, "host_syncs", "SELECT ts, dur, name, operator FROM molprof_host_sync") == [
        (81_000, 2_000, "cudaMemcpyAsync", "aten::_local_scalar_dense"),
        (84_000, 6_000, "cudaStreamSynchronize", "aten::_local_scalar_dense"),
    ]
    assert rows(engine, "host_syncs", "SELECT name, count, longest_ns FROM molprof_host_sync_summary") == [
        ("cudaStreamSynchronize", 1, 6_000),
        ("cudaMemcpyAsync", 1, 2_000),
    ]


def test_leaf_operators_call_no_other(engine: TraceProcessor) -> None:
    assert rows(engine, "operators", "SELECT name, ts FROM molprof_leaf_operator") == [
        ("aten::mm", 5_000),
        ("aten::addmm", 32_000),
        ("aten::index_put_", 62_000),
        ("aten::_local_scalar_dense", 80_500),
    ]


def test_phases_and_steps(engine: TraceProcessor) -> None:
    assert rows(engine, "phases", "SELECT ts, dur, phase, batch, step FROM molprof_phase") == [
        (0, 60_000, "forward", 0, 1),
        (60_000, 20_000, "processor", 0, 1),
        (80_000, 15_000, "sampling", 0, 1),
        (95_000, 5_000, "bookkeeping", 0, 1),
        (100_000, 50_000, "forward", 0, 2),
        (150_000, 10_000, "processor", 0, 2),
        (160_000, 15_000, "sampling", 0, 2),
        (175_000, 5_000, "bookkeeping", 0, 2),
    ]
    assert rows(engine, "phases", "SELECT ts, dur, batch, step FROM molprof_step") == [
        (0, 100_000, 0, 1),
        (100_000, 80_000, 0, 2),
    ]


def test_work_belongs_to_the_phase_of_its_call(engine: TraceProcessor) -> None:
    """The attention kernel runs while the processor phase does, but the forward phase launched it."""
    sql = """
    SELECT slice.name, phase.phase, phase.step FROM molprof_work_phase AS place
    JOIN slice USING (id) LEFT JOIN molprof_phase AS phase ON phase.id = place.phase_id ORDER BY slice.ts
    """
    assert rows(engine, "placement", sql) == [
        ("sm90_xmma_gemm_bf16", "forward", 1),
        ("fmha_cutlassF_bf16", "forward", 1),
        (tiny_trace.INDEX, "processor", 1),
        ("Memcpy DtoH (Device -> Pageable)", "sampling", 1),
        (tiny_trace.COPY, "forward", 2),
        (tiny_trace.CAT, "forward", 2),
        ("mystery", None, None),
    ]


def test_calls_and_operators_belong_to_the_phase_they_began_in(engine: TraceProcessor) -> None:
    sql = """
    SELECT phase.phase, phase.step, COUNT() FROM molprof_call_phase AS place
    JOIN molprof_phase AS phase ON phase.id = place.phase_id GROUP BY phase.id ORDER BY phase.ts
    """
    assert rows(engine, "call_phases", sql) == [
        ("forward", 1, 5),
        ("processor", 1, 2),
        ("sampling", 1, 3),
        ("forward", 2, 1),
        ("bookkeeping", 2, 1),
    ]
    sql = "SELECT phase, step, host_ns, kernels, gpu_ns FROM molprof_phase_work WHERE kernels > 0"
    assert rows(engine, "phase_work", sql) == [
        ("forward", 1, 60_000, 2, 48_000),
        ("processor", 1, 20_000, 1, 2_000),
        ("forward", 2, 50_000, 2, 20_000),
        (None, None, None, 1, 1_000),
    ]


def test_phase_summary(engine: TraceProcessor) -> None:
    # phase, count, host, launches, graph launches, kernels, GPU time, syncs, sync time, leaf operators
    assert rows(engine, "phase_work", "SELECT * FROM molprof_phase_summary") == [
        ("forward", 2, 110_000, 2, 1, 4, 68_000, 0, 0, 2),
        ("processor", 2, 30_000, 1, 0, 1, 2_000, 0, 0, 1),
        ("sampling", 2, 30_000, 0, 0, 0, 1_000, 2, 8_000, 1),
        ("bookkeeping", 2, 10_000, 1, 0, 0, 0, 0, 0, 0),
        (None, 0, None, 0, 0, 1, 1_000, 0, 0, 0),
    ]


def test_classes(engine: TraceProcessor) -> None:
    assert rows(engine, "kernel_classes", "SELECT class, count, time_ns FROM molprof_class_summary") == [
        ("matmul", 1, 40_000),
        ("cat", 1, 10_000),
        ("copy", 1, 10_000),
        ("attention", 1, 8_000),
        ("index/scatter/gather", 1, 2_000),
        ("memcpy DtoH", 1, 1_000),
        ("other", 1, 1_000),
    ]
    sql = "SELECT category, class FROM molprof_work_class WHERE class IN ('copy', 'memcpy DtoH', 'other')"
    assert rows(engine, "kernel_classes", sql) == [
        ("gpu_memcpy", "memcpy DtoH"),
        ("kernel", "other"),
        ("kernel", "copy"),
    ]
    # The kernel without a call is in no step.
    assert ("other", 1, 1_000) not in rows(engine, "step_work", "SELECT * FROM molprof_step_class")


def test_an_operator_tells_what_a_kernel_of_unknown_name_does(tmp_path: Path) -> None:
    events = [
        slice_("cpu_op", "aten::native_group_norm", 0, 20),
        slice_("cpu_op", "aten::empty", 1, 1),
        slice_("cuda_runtime", "cudaLaunchKernel", 5, 2, correlation=1),
        work("kernel", "ComputeFusedParams", 10, 5, 1),
        slice_("cuda_runtime", "cudaLaunchKernel", 25, 2, correlation=2),
        work("kernel", "ComputeFusedParams", 30, 5, 2),
        work("kernel", "spin", 40, 5, 3),
    ]
    with events_loaded(tmp_path, events) as found:
        sql = "SELECT class, count FROM molprof_class_summary ORDER BY class"
        assert found("kernel_classes", sql) == [("norm", 2), ("other", 1)]


def test_pattern_priorities_name_one_class_each(engine: TraceProcessor) -> None:
    sql = """
    SELECT priority FROM molprof_kernel_pattern GROUP BY priority HAVING COUNT(DISTINCT class) > 1
    """
    assert rows(engine, "kernel_patterns", sql) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::(anonymous namespace)::softmax_warp_forward<float>(float*)", "softmax"),
        ("void pytorch_flash::flash_fwd_kernel<cutlass::bfloat16_t>(Params)", "attention"),
        ("void vllm::reshape_and_cache_flash_kernel<short>(short const*)", "cache-write"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", "collective"),
        ("triton_red_fused_add_mean_mul_pow_rsqrt_1", "norm"),
        ("triton_poi_fused__to_copy_3", "copy"),
        ("triton_poi_fused__to_copy_add_3", "elementwise"),
        ("void at::native::elementwise_kernel<masked_fill_kernel(int)>(int)", "fill"),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int>(float*)", "sort/top-k"),
        ("void at::native::vectorized_gather_kernel<16, long>(char*)", "index/scatter/gather"),
        ("void at::native::reduce_kernel<512, 1, ArgMaxOps<float> >(float)", "reduce"),
        ("void rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "embedding/rotary"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA", "matmul"),
        ("something nobody knows", "other"),
    ],
)
def test_class_of_a_kernel(engine: TraceProcessor, name: str, expected: str) -> None:
    sql = f"""
    SELECT IFNULL((
      SELECT class FROM molprof_kernel_pattern WHERE '{name.lower()}' GLOB pattern ORDER BY priority LIMIT 1
    ), 'other')
    """
    assert rows(engine, "kernel_patterns", sql) == [(expected,)]


def test_attention_and_masking(engine: TraceProcessor) -> None:
    assert rows(engine, "attention", "SELECT kind, name, count, time_ns FROM molprof_attention") == [
        ("kernel", "fmha_cutlassF_bf16", 1, 8_000)
    ]
    assert rows(engine, "masking", "SELECT * FROM molprof_masking_step") == [
        (0, 1, 20_000, 2_000, 1, 1, 0, 1),
        (0, 2, 10_000, 0, 0, 0, 0, 0),
    ]
    assert rows(engine, "masking", "SELECT * FROM molprof_masking_candidate") == [
        ("kernel", tiny_trace.INDEX, 1, 2_000),
        ("operator", "aten::index_put_", 1, 10_000),
    ]


def test_tokens_recorded_or_not(engine: TraceProcessor) -> None:
    sql = "SELECT sequence, batch, position, token_id, text, kind, block, ts, dur FROM molprof_token"
    assert rows(engine, "tokens", sql) == [
        (0, 0, 0, 5, "[C]<", "copy", -1, None, None),
        (0, 0, 1, 6, "1.0,2.0,3.0", "free", 0, 0, 100_000),
        (0, 0, 2, 7, "abra", "junk", 0, 100_000, 80_000),
        (1, 0, 0, 8, "[O]", "copy", -1, None, None),
        (1, 0, 1, 9, "</s>", "eos", -1, 0, 100_000),
    ]


def test_sequences(engine: TraceProcessor) -> None:
    assert rows(engine, "tokens", "SELECT sequence, batch, row, smiles, tokens FROM molprof_sequence") == [
        (0, 0, 0, "C", 3),
        (1, 0, 1, "O", 2),
    ]


def test_drift(engine: TraceProcessor) -> None:
    sql = "SELECT sequence, block, tokens, free, junk, filler, drift, text FROM molprof_block"
    assert rows(engine, "drift", sql) == [(0, 0, 2, 1, 1, 0, None, "1.0,2.0,3.0abra")]
    assert rows(engine, "drift", "SELECT * FROM molprof_sequence_drift") == [
        (0, "C", 3, 1, 1, 1, 0, 0, 1, 1),
        (1, "O", 2, 0, 1, 0, 0, 1, 0, 0),
    ]
    assert rows(engine, "drift", "SELECT * FROM molprof_surplus_histogram") == [(1, 1)]


def test_top_and_small_operations(engine: TraceProcessor) -> None:
    assert rows(engine, "top_operations", "SELECT * FROM molprof_top_gpu_operation LIMIT 1") == [
        ("sm90_xmma_gemm_bf16", "matmul", 1, 40_000, 40 / 72, 40_000.0)
    ]
    sql = "SELECT name, own_ns, time_ns FROM molprof_top_cpu_operation WHERE name GLOB 'aten::[la][id][nd]*'"
    assert rows(engine, "cpu_operations", sql) == [
        ("aten::addmm", 10_000, 10_000),
        ("aten::linear", 10_000, 20_000),
    ]
    small = "SELECT category, name, count FROM molprof_small_operations({}, 1)"
    assert rows(engine, "small_operations", small.format(5_000)) == [("cuda_runtime", "cudaLaunchKernel", 2)]
    assert rows(engine, "small_operations", small.format(4_000)) == []


def test_operation_totals_are_sums_by_category_and_name(engine: TraceProcessor) -> None:
    expected: dict[tuple[str, str], list[int]] = {}
    for event in tiny_trace.EVENTS:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset", "cpu_op", "cuda_runtime", "cuda_driver"):
            row = expected.setdefault((event["cat"], event["name"]), [0, 0])
            row[0] += 1
            row[1] += round(event["dur"] * 1000)
    assert len(expected) > 10
    everything = [(*key, *expected[key]) for key in sorted(expected)]
    assert rows(engine, "operation_totals", "SELECT * FROM molprof_operation_total") == everything
    host = [row for row in everything if row[0] in ("cpu_op", "cuda_runtime", "cuda_driver")]
    assert rows(engine, "host_totals", "SELECT * FROM molprof_host_total") == host
    assert rows(engine, "work_totals", "SELECT * FROM molprof_work_total") == [
        row for row in everything if row not in host
    ]
