"""Findings: each rule fires on a trace built for it, with exact figures, and not beside its threshold."""

from __future__ import annotations

import os
import re
from pathlib import Path

import plain_kernels
import pytest
from decoding_trace import Event, decoding, launched
from finding_data import GEMM, busy, findings, gemms, op
from tiny_trace import slice_, work

from molprof import api
from molprof.analysis.figures.model import Gain
from molprof.analysis.findings import RULES

CORPUS = os.environ.get("MOLPROF_CORPUS")


def test_launch_bound_without_graphs(tmp_path: Path) -> None:
    # Per step 10 kernels of 5 us, 50 us apart: gaps of 45 us, and one of 545 us to the next step.
    found = findings(tmp_path, decoding(lambda start: gemms(start, 50, 5, 10)))
    gap_ns = 1000 * (4 * 9 * 45 + 3 * 545)
    assert found["launch_bound"].gain_ratio == pytest.approx(gap_ns / 4_000_000)
    assert found["launch_bound"].figures == {
        "gap_count": 39,
        "gap_ns": gap_ns,
        "recorded_ns": 4_000_000,
        "launches": 40,
        "graph_launches": 0,
        "kernels_by_graph": 0,
    }
    assert found["limits"].figures["gpu_ns"] == 200_000
    assert sum(found["limits"].figures.values()) == 4_000_000
    assert found["limits"].evidence.endswith("; what takes most of a step: the CPU (4 steps)")
    assert set(found) == {"launch_bound", "limits"}


def test_without_the_profiler_the_gpu_waits_less(tmp_path: Path) -> None:
    # The same work; unprofiled a step takes a tenth, in which the GPU works half of the time.
    found = findings(tmp_path, decoding(lambda start: gemms(start, 50, 5, 10), profiled_ratio=10))
    gap_ns = 1000 * (4 * 9 * 45 + 3 * 545)
    assert found["launch_bound"].gain_ratio == pytest.approx(0.5 * gap_ns / 3_800_000)
    assert found["profiler_cost"].gain_ratio is None
    assert found["profiler_cost"].figures == {"profiled_ratio": 10.0}
    found = findings(tmp_path, decoding(lambda start: gemms(start, 50, 5, 10), profiled_ratio=20))
    assert "launch_bound" not in found


def test_a_busy_gpu_is_neither_idle_nor_launch_bound(tmp_path: Path) -> None:
    found = findings(tmp_path, decoding(busy))
    assert {item.id for item in found.values() if not item.note} == {"dominant_kernel"}
    assert found["limits"].evidence.startswith("GPU work 99.0 %")


def test_one_long_gap_is_no_launch(tmp_path: Path) -> None:
    def per_step(start: int) -> list[Event]:
        return launched("kernel", GEMM, start, start + 2, 5) if start in (1000, 4000) else []

    found = findings(tmp_path, decoding(per_step))
    assert {item.id for item in found.values() if not item.note} == {"host_work"}
    # From the end of the first kernel to the launch of the second.
    assert found["host_work"].figures["idle_ns"] == 2_993_000


def test_long_calls_are_no_work_of_the_cpu(tmp_path: Path) -> None:
    # 2 ms between two kernels: 0.3 ms in an allocation, 0.6 ms in the launch; then 1.5 ms in which a graph is captured.
    events = [
        *launched("kernel", GEMM, 0, 2, 10),
        slice_("cuda_runtime", "cudaMalloc", 500, 300),
        slice_("cuda_runtime", "cudaLaunchKernel", 1412, 600, correlation=1),
        work("kernel", GEMM, 2012, 10, 1),
        slice_("cuda_runtime", "cudaLaunchKernel", 2500, 5, correlation=2),
        slice_("cuda_runtime", "cudaGraphInstantiate", 3400, 100),
    ]
    found = findings(tmp_path, {"traceEvents": events})
    assert found["long_calls"].figures == {"idle_ns": 1_000_000, "calls": 3}
    assert found["long_calls"].evidence.startswith(
        "1.00 ms in gaps longer than 1 ms and at the ends: cudaLaunchKernel 600"
    )
    # Of 1.4 ms before the second launch and 1.478 ms after the last kernel all but two of the calls.
    assert found["host_work"].figures["idle_ns"] == 1_100_000 + 1_378_000
    assert found["graph_capture"].figures["without_work"] == 1
    assert {item.id: item.part_of for item in found.values() if item.part_of} == {
        "long_calls": "graph_capture",
        "host_work": "graph_capture",
    }


def test_a_sync_gains_no_more_than_it_takes(tmp_path: Path) -> None:
    # The GPU is busy until 20; the CPU waits for it until 22, then works for 2 ms.
    events = [
        *launched("kernel", GEMM, 0, 2, 18),
        slice_("cuda_runtime", "cudaStreamSynchronize", 12, 10),
        op("aten::mul", 30, 1900),
        *launched("kernel", GEMM, 2000, 2002, 18),
    ]
    found = findings(tmp_path, {"traceEvents": events})
    assert "host_syncs" not in found  # 10 us of 2 ms
    events[2] = slice_("cuda_runtime", "cudaStreamSynchronize", 12, 100)
    syncs = findings(tmp_path, {"traceEvents": events})["host_syncs"]
    assert syncs.figures == {"gaps": 1, "idle_ns": 1_982_000, "sync_ns": 100_000, "waited_ns": 92_000}
    span = 100_000 / 2_020_000
    assert syncs.gain == Gain(0, span, "recorded span", "gaps that begin in a host sync, and these syncs", 2_020_000)
    assert syncs.part_of == "host_work"


def test_launches_besides_graphs(tmp_path: Path) -> None:
    def per_step(start: int, plain: int = 25) -> list[Event]:
        graph = launched("graph", GEMM, start, start + 4, 6)
        return [*graph, *(gemms(start, 20, 5, plain, first=20))]

    broken = findings(tmp_path, decoding(per_step))["launch_bound"]
    assert (broken.figures["graph_launches"], broken.figures["kernels_by_graph"]) == (4, 4)
    assert "100 run outside graphs" in broken.evidence
    assert "TORCH_LOGS=graph_breaks" in broken.fix


def kernels(*names: str) -> list[Event]:
    """Kernels of 10 us, one after the other."""
    return [
        event
        for place, name in enumerate(names)
        for event in launched("kernel", name, 10 + 10 * place, 12 + 10 * place, 10)
    ]


GEMM_FP32, SOFTMAX, ADD = "ampere_sgemm_128x64_tn", "softmax_warp_forward", "vectorized_elementwise_kernel"


@pytest.mark.parametrize(
    ("names", "figures"),
    [
        # Of each chain all but the longest kernel is saved; one kernel alone is no chain.
        ([GEMM, ADD, ADD, ADD, GEMM, ADD], {"elementwise_chains": ("saved_ns", 20_000)}),
        ([GEMM, ADD, SOFTMAX, ADD, GEMM], {"unfused_attention": ("between_ns", 30_000)}),
        # A router's softmax goes into a sort, and one at the end is not between two products.
        ([GEMM, SOFTMAX, "gatherTopK", GEMM, SOFTMAX], {"unfused_attention": None}),
        ([GEMM_FP32, GEMM], {"fp32_matmul": ("time_ns", 10_000)}),
        ([f"{GEMM}_align2", GEMM], {"odd_shapes": ("time_ns", 10_000), "fp32_matmul": None}),
        (["ncclDevKernel_AllReduce", GEMM], {"communication": ("exposed_ns", 10_000)}),
        (["Memcpy", "some_new_kernel", GEMM], {"unknown_kernels": ("time_ns", 20_000)}),
    ],
)
def test_what_the_gpu_computes(tmp_path: Path, names: list[str], figures: dict[str, tuple[str, int] | None]) -> None:
    found = findings(tmp_path, {"traceEvents": kernels(*names)})
    for name, expected in figures.items():
        assert (name in found) is (expected is not None)
        if expected is not None:
            assert found[name].figures[expected[0]] == expected[1]


def test_compiling_in_timed_passes(tmp_path: Path) -> None:
    passes = (
        {"compiles": 2, "compile_ns": 400_000},
        {"compiles": 1, "compile_ns": 200_000},
        {"compiles": 0, "compile_ns": 0},
    )
    region = lambda start: [op("Torch-Compiled Region: 0/0", start, 500)]  # noqa: E731
    compiling = findings(tmp_path, decoding(region, repeats=passes))["compiling"]
    assert compiling.gain_ratio == pytest.approx(0.05)
    assert compiling.figures == {"compiles": 3, "recorded_frames": 0, "recorded_ns": 0}
    assert compiling.evidence == "frames compiled in each timed pass: 2, 1, 0"
    # A region that runs is compiled before.
    none = ({"compiles": 0, "compile_ns": 0},) * 3
    assert "compiling" not in findings(tmp_path, decoding(region, repeats=none))


def test_compiling_in_recorded_steps(tmp_path: Path) -> None:
    def per_step(start: int) -> list[Event]:
        if start != 2000:
            return []
        return [op("_compile.compile_inner (dynamo_timed)", start, 400), op("gc (dynamo_timed)", start + 350, 100)]

    compiling = findings(tmp_path, decoding(per_step))["compiling"]
    assert compiling.gain_ratio == pytest.approx(0.45 / 4)
    assert compiling.figures == {"compiles": 0, "recorded_frames": 1, "recorded_ns": 450_000}


def test_idle_rows(tmp_path: Path) -> None:
    lengths = [10, 2, 10, 2]
    idle = findings(tmp_path, decoding(lengths=lengths, batch_size=2, setup={"text": 1_000_000}))["idle_rows"]
    assert idle.figures == {
        "idle_row_steps": 16,
        "row_steps": 40,
        "idle_ratio": 0.4,
        "steps": 20,
        "steps_by_length": 12,
    }
    # A fifth of the time is not in steps.
    assert idle.gain_ratio == pytest.approx(0.4 * 0.8)
    assert "12 steps instead of 20" in idle.evidence
    one_batch = findings(tmp_path, decoding(lengths=lengths, batch_size=4))["idle_rows"]
    assert "all rows are in one batch" in one_batch.evidence
    sorted_rows = findings(tmp_path, decoding(lengths=[10, 10, 9, 2], batch_size=2))["idle_rows"]
    assert "saves no steps" in sorted_rows.evidence
    assert "--sort" not in sorted_rows.fix
    assert "idle_rows" not in findings(tmp_path, decoding(lengths=[10, 9], batch_size=2))


def test_idle_rows_of_a_run_that_is_sorted_and_drops_rows(tmp_path: Path) -> None:
    content = decoding(lengths=[10, 2, 10, 2], batch_size=2)
    content["molprof"]["generation"].update(sorted=True, drop_finished=True)
    idle = findings(tmp_path, content)["idle_rows"]
    assert "the batches are sorted by expected length" in idle.evidence
    assert idle.fix == "Refill finished rows, as servers do."


def test_junk_tokens(tmp_path: Path) -> None:
    junk = findings(tmp_path, decoding(kinds=["fffjj", "ffffl"], lengths=[5, 5], batch_size=2))["junk_tokens"]
    assert junk.figures == {"junk_tokens": 2, "filler_tokens": 1, "token_ratio": 0.3, "steps": 5, "steps_without": 4}
    # All of the time is in steps. Steps cost the same however many rows they have, and so for row-steps.
    fifth = pytest.approx(0.2)
    assert junk.gain == Gain(fifth, fifth, "unprofiled wall time", "steps that are saved", 4_000_000)
    few = ["f" * 199 + "j", "f" * 200]
    assert "junk_tokens" not in findings(tmp_path, decoding(kinds=few, lengths=[200, 200], batch_size=2))


def test_templates(tmp_path: Path) -> None:
    templates = findings(tmp_path, decoding(setup={"template": 1_000_000}))["templates"]
    assert templates.gain_ratio == pytest.approx(0.2)
    assert templates.figures == {"template_ns": 1_000_000, "wall_ns": 5_000_000, "molecules": 8}
    assert "templates" not in findings(tmp_path, decoding(setup={"template": 50_000}))


def test_the_profiler_costs_too_much(tmp_path: Path) -> None:
    assert findings(tmp_path, decoding(profiled_ratio=1.6))["profiler_cost"].figures == {"profiled_ratio": 1.6}
    assert "profiler_cost" not in findings(tmp_path, decoding(profiled_ratio=1.25))


def test_copies_to_the_device_in_every_step(tmp_path: Path) -> None:
    name = "Memcpy HtoD (Pageable -> Device)"

    def per_step(start: int) -> list[Event]:
        copies = [launched("gpu_memcpy", name, start + 10 * at, start + 10 * at + 3, 4, bytes=100) for at in range(3)]
        return [event for copy in copies for event in copy]

    copies = findings(tmp_path, decoding(per_step))["host_copies"]
    # 3 x 4 us on the GPU; 3 x 2 us in the calls, in which the GPU is idle, but for the first, before any GPU work.
    assert copies.figures == {
        "count": 12,
        "gpu_ns": 48_000,
        "host_ns": 24_000,
        "bytes": 1200,
        "steps": 4,
        "idle_ns": 22_000,
    }
    assert copies.gain_ratio == pytest.approx((48 + 22) / 4000)
    pinned = decoding(
        lambda start: launched("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start, start + 3, 4, bytes=9)
    )
    assert "host_copies" not in findings(tmp_path, pinned)
    once = decoding(lambda start: per_step(start) if start == 1000 else [])
    assert "host_copies" not in findings(tmp_path, once)


def test_time_outside_operators_without_a_gpu(tmp_path: Path) -> None:
    # 400 us between two operators of a thread; during 100 of them another thread runs one.
    events = [op("aten::mm", 0, 100), slice_("user_annotation", "fill", 100, 400), op("aten::mm", 500, 100)]
    events.append(slice_("cpu_op", "aten::add", 300, 100, tid=101))
    outside = findings(tmp_path, {"traceEvents": events})["host_functions"]
    assert outside.place == "fill"
    assert outside.figures == {"time_ns": 300_000, "outside_ns": 300_000}
    assert outside.gain_ratio == pytest.approx(0.5)


def test_a_trace_without_anything_timed_has_no_findings(tmp_path: Path) -> None:
    assert findings(tmp_path, {"traceEvents": [slice_("user_annotation", "x", 0, 5)]}) == {}


# What an expert says first of each, read from its raw events, with the place.
FIRST = [
    # One eager prefill: 768 launches 0.1 ms apart, the GPU works 13 % of the time; 216 launches in the fused MoE.
    ("traces/b200_vllm_eager", "launch_bound", "trtllm_fp4_block_scale_moe_op"),
    # The GPU works 92 % of the time, half of it element by element: RMSNorm in Python is the largest part.
    ("traces/h100_qwen1.5_0.5b", "elementwise_chains", "forward in Qwen2RMSNorm"),
    ("pairs/mi300_qwen1.5_0.5b", "elementwise_chains", "forward in Qwen2RMSNorm"),
    # 463 of 474 ms between two kernels; the second was launched, behind hipStreamWaitEvent, before the gap.
    ("traces/mi300x_sglang_qwen3_8b_decode", "device_waits", None),
    # Graphs keep the GPU busy for 99.8 % of the time, two thirds and 90 % of it with MoE products in MXFP4.
    ("traces/mi300x_vllm_decode_graph", "dominant_kernel", "cuda_graph.py"),
    ("traces/mi300x_vllm_piecewise_graph", "dominant_kernel", "cuda_graph.py"),
    # Compiled: GEMM takes 64 %, attention 29 % of a GPU that is busy for 97 % of the time.
    ("traces/torch_compile_triton", "dominant_kernel", "aten::mm"),
    # Training with 32-bit convolutions on a GPU that is busy for 95 % of the time.
    ("traces/v100_resnet_ddp", "fp32_matmul", None),
    # Small models, one row: kernels of 5 to 11 us, 40 to 60 us apart.
    ("pairs/h100_bert_small", "launch_bound", "forward in Linear"),
    ("pairs/mi300_bert_small", "launch_bound", "forward in Linear"),
    ("pairs/h100_vit_base", "launch_bound", "forward in Linear"),
    ("pairs/mi300_vit_base", "launch_bound", "forward in Linear"),
    # This rank is late: its GPU is idle for a third of the time, while the others wait in all-reduce.
    ("ranks/megatron_tp8_rank0", "host_work", None),
    # A graph is captured, and nothing runs.
    ("graphs/mi300x_sglang_qwen3_8b_capture_bs32", "graph_capture", None),
    # On CPUs: matrix products; with a grammar the filling of masks, 185 of 566 ms in 24 steps.
    ("engines/vllm_plain", "host_operators", "onednn_mm"),
    ("engines/vllm_json_xgrammar", "host_functions", "fill_next_token_bitmask"),
]


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
@pytest.mark.parametrize(("name", "first", "place"), FIRST)
def test_the_first_finding_of_a_public_trace(name: str, first: str, place: str | None) -> None:
    found = api.report(Path(str(CORPUS), f"{name}.json.gz")).findings[0]
    assert found.id == first
    if place is not None:
        assert place in (found.place or "")


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
@pytest.mark.parametrize("name", ["traces/h100_qwen1.5_0.5b", "traces/v100_resnet_ddp", "ranks/megatron_tp8_rank0"])
def test_what_kernels_could_save_is_what_a_plain_recount_finds(name: str) -> None:
    path = Path(str(CORPUS), f"{name}.json.gz")
    with api.load(path) as trace:
        found = {item.id: item.figures for item in trace.findings}
        sql = "INCLUDE PERFETTO MODULE molprof.kernel_classes; SELECT category, name, class FROM molprof_work_class"
        classes = {(category, name): kind for category, name, kind in trace.query(sql).rows()}
    plain = {rule: figures for rule, figures in plain_kernels.figures(path, classes).items() if rule in found}
    assert plain
    assert all(found[rule].items() >= figures.items() for rule, figures in plain.items())


def test_every_rule_is_documented() -> None:
    page = (Path(__file__).parent.parent / "docs" / "findings.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(documented) == sorted(rule.id for rule in RULES)
