"""Gains and fixes of findings are right: bounded for the named fix, and suited to the device and program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from certificate_data import needs_traces, whole
from decoding_trace import GEMM, Event, launched, op
from finding_cases import findings, plain
from tiny_trace import slice_, work

from molprof import api
from molprof.analysis.documents.report import report_document
from molprof.analysis.figures.model import Finding

ADD, SOFTMAX, BACKWARD = "vectorized_elementwise_kernel", "softmax_warp_forward", "softmax_warp_backward"
FILL = "vectorized_elementwise_kernel<4, at::native::FillFunctor<float>"
SUM, ODD = "void splitKreduce_kernel<float>()", f"{GEMM}_align1"
SGEMM = "ampere_sgemm_128x64_tn"
V100 = {"name": "Tesla V100-SXM2-32GB", "computeMajor": 7, "computeMinor": 0}
A100 = {"name": "NVIDIA A100-SXM4-40GB", "computeMajor": 8, "computeMinor": 0}
MI300X = {"name": "", "computeMajor": 9, "computeMinor": 4}


def kernels(*names: str, gpu_us: float = 10) -> list[Event]:
    """Kernels one right after the other, each launched before it."""
    return [
        event
        for n, name in enumerate(names)
        for event in launched("kernel", name, 10 + gpu_us * n, 12 + gpu_us * n, gpu_us)
    ]


def on(events: list[Event], device: dict[str, Any], calls: str = "cuda", **keys: Any) -> dict[str, Any]:
    """A trace of a device, with calls of its runtime."""
    named = [{**event, "name": event["name"].replace("cuda", calls, 1)} for event in events]
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, **device}], **keys, **plain(named)}


def real(name: str) -> dict[str, Finding]:
    return {item.id: item for item in whole(name).findings}


# Attention


def attention(tmp_path: Path, *names: str) -> Finding | None:
    return findings(tmp_path, plain(kernels(*names))).get("unfused_attention")


def test_attention_that_is_not_fused_is_softmax_and_both_products(tmp_path: Path) -> None:
    found = attention(tmp_path, GEMM, GEMM, ADD, SOFTMAX, ADD, GEMM, GEMM)
    assert found is not None
    assert found.figures == {
        "attention_calls": 1, "kernels": 3, "between_ns": 30_000, "products": 2, "products_ns": 20_000,
    }  # fmt: skip
    assert found.gain_ratio == pytest.approx(50 / 72)  # two more products are of something else


def test_a_backward_of_attention_has_two_products_on_each_side(tmp_path: Path) -> None:
    found = attention(tmp_path, GEMM, GEMM, GEMM, BACKWARD, ADD, GEMM, GEMM, GEMM)
    assert found is not None
    assert (found.figures["products"], found.figures["products_ns"]) == (4, 40_000)


def test_a_product_that_adds_up_its_parts_has_two_kernels(tmp_path: Path) -> None:
    found = attention(tmp_path, GEMM, GEMM, SUM, SOFTMAX, GEMM, SUM, GEMM)
    assert found is not None
    assert found.figures["products"] == 4


def test_a_loss_is_no_attention(tmp_path: Path) -> None:
    assert attention(tmp_path, GEMM, SOFTMAX, ADD, BACKWARD, GEMM) is None


@needs_traces
def test_attention_of_real_traces() -> None:
    # 40 times a product of 294 us, a softmax of 426 us and a product of 184 us.
    found = real("ranks/megatron_tp8_rank0")["unfused_attention"]
    assert (found.figures["kernels"], found.figures["products"]) == (40, 80)
    assert found.gain_ratio == pytest.approx((17_025_000 + 19_133_000) / 603_298_000)
    assert real("more/h100_one_layer")["unfused_attention"].figures["products_ns"] == 39_000


# Products


def product(kernel: str, name: str, *sizes: list[int], at: float = 10) -> list[Event]:
    """An operator with its sizes, and its kernel of 10 us."""
    args = {"Input Dims": list(sizes), "Input type": ["c10::Half"] * len(sizes)}
    return [slice_("cpu_op", name, at - 2, 6, **args), *launched("kernel", kernel, at, at + 2, 10)]


@pytest.mark.parametrize(
    ("events", "said", "fix"),
    [
        # Scores of 5,185 tokens by 5,185, heads of 64.
        (
            product(ODD, "aten::bmm", [16, 5185, 64], [16, 64, 5185]),
            "5,185 (rows, columns), most in 16x5185x64 by 16x64x5185",
            "Pad the number of tokens or samples, 5,185, to a multiple of 8.",
        ),
        (
            product(ODD, "aten::addmm", [50257], [512, 768], [768, 50257]),
            "50,257 (columns), most in 512x768 by 768x50257",
            "Pad 50,257, a size of the weights (vocabulary, hidden size, head), to a multiple of 8, of 64 where it is",
        ),
        (kernels(ODD), "sizes are not recorded", "record_shapes=True"),
    ],
)
def test_odd_sizes_are_named(tmp_path: Path, events: list[Event], said: str, fix: str) -> None:
    found = findings(tmp_path, on(events, A100))["odd_shapes"]
    assert said in found.evidence
    assert fix in found.fix
    assert found.figures == {"runs": 1, "time_ns": 10_000}


def test_sizes_that_are_aligned_are_not_odd_and_other_units_have_any_size(tmp_path: Path) -> None:
    aligned = product(ODD, "aten::mm", [512, 768], [768, 1024])
    assert "odd_shapes" not in findings(tmp_path, on(aligned, A100))
    simt = kernels("cutlass_80_simt_sgemm_128x32_8x5_nn_align1")
    assert "odd_shapes" not in findings(tmp_path, on(simt, A100))


def test_odd_sizes_of_attention_are_part_of_it(tmp_path: Path) -> None:
    scores = product(ODD, "aten::bmm", [16, 5185, 64], [16, 64, 5185])
    values = product(ODD, "aten::bmm", [16, 5185, 5185], [16, 5185, 64], at=30)
    content = on([*scores, *launched("kernel", SOFTMAX, 20, 22, 10), *values], A100)
    found = findings(tmp_path, content)
    assert found["odd_shapes"].part_of == "unfused_attention"
    assert found["odd_shapes"].figures["runs"] == 2


@needs_traces
def test_products_of_a_real_trace_are_not_odd_by_the_name_of_their_kernel() -> None:
    # Of 8x1024 by 1024x256 numbers.
    assert "odd_shapes" not in real("more/a100_moe_rank0")


# Devices


@pytest.mark.parametrize(
    ("device", "calls", "says", "never"),
    [
        (V100, "cuda", "float16 (autocast and a GradScaler)", "Use bfloat16"),
        ({"name": "Tesla T4"}, "cuda", "neither bfloat16 nor TF32", "set_float32"),
        (A100, "cuda", "or TF32 (torch.set_float32_matmul_precision('high'))", "from A100 on"),
        (MI300X, "hip", "Use bfloat16 or float16 (autocast).", "TF32"),
        ({"name": "Intel(R) Data Center GPU Max 1550"}, "ur", "Use bfloat16 or float16 (autocast).", "TF32"),
        ({}, "cuda", "TF32", "GradScaler"),
    ],
)
def test_a_fix_fits_the_device(tmp_path: Path, device: dict[str, Any], calls: str, says: str, never: str) -> None:
    events = [*kernels(SGEMM)]
    if calls == "ur":  # which has calls of its own names
        events = [
            {**event, "name": event["name"].replace("cudaLaunchKernel", "urEnqueueKernelLaunch")} for event in events
        ]
    found = findings(tmp_path, on(events, device, calls))["fp32_matmul"]
    assert says in found.fix
    assert never not in found.fix


def test_without_tensor_cores_there_is_nothing_to_use(tmp_path: Path) -> None:
    old = {"name": "Tesla P100-PCIE-16GB", "computeMajor": 6, "computeMinor": 0}
    assert "fp32_matmul" not in findings(tmp_path, on(kernels(SGEMM), old))


def test_no_flash_attention_on_devices_that_have_none(tmp_path: Path) -> None:
    events = [
        op("aten::_scaled_dot_product_efficient_attention", 8, 8),
        *launched("kernel", "fmha_cutlassF_bf16_aligned_64x64_rf_sm80", 10, 12, 90),
    ]
    assert "mask_rules_out_flash" in findings(tmp_path, on(events, A100))
    assert "mask_rules_out_flash" not in findings(tmp_path, on(events, V100))
    unfused = findings(tmp_path, on(kernels(GEMM, SOFTMAX, GEMM), V100))["unfused_attention"]
    assert "flash" not in unfused.fix


@pytest.mark.parametrize(("calls", "library"), [("cuda", "FlashInfer"), ("hip", "AITER")])
def test_a_fused_kernel_runs_on_the_platform(tmp_path: Path, calls: str, library: str) -> None:
    names = ("vllm::rotary_embedding_kernel<float>", "vllm::reshape_and_cache_kernel<float>")
    found = findings(tmp_path, on(kernels(GEMM, *names), {"name": ""}, calls))["library_chains"]
    assert f"less in one ({library}:" in found.evidence
    # No library for ROCm does it, as far as is known.
    only_cuda = kernels(GEMM, "softmax_forward", "multinomial")
    assert ("library_chains" in findings(tmp_path, on(only_cuda, {"name": ""}, calls))) == (calls == "cuda")


@needs_traces
def test_fixes_of_real_traces_fit_their_devices() -> None:
    for name in ("more/v100_resnet50_dataloader", "traces/v100_resnet_ddp"):
        found = real(name)["fp32_matmul"]
        assert "Use float16" in found.fix
        assert "TF32" not in found.explanation
    chains = real("pairs/mi300_qwen1.5_0.5b")["library_chains"]
    assert "(Liger; vLLM:" in chains.evidence


# What the program does already


@pytest.mark.parametrize("kind", ["Pageable", "Pinned"])
def test_memory_that_is_pinned_is_not_advised(tmp_path: Path, kind: str) -> None:
    content = plain(
        launched("kernel", GEMM, 0, 2, 500),
        op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 600, 3000),
        launched("gpu_memcpy", f"Memcpy HtoD ({kind} -> Device)", 3700, 3702, 30, bytes=1000),
        launched("kernel", GEMM, 3800, 3802, 500),
    )
    fix = findings(tmp_path, content)["host_work"].fix
    assert "num_workers" in fix
    assert ("pinned memory" in fix) == (kind == "Pageable")


def small(*more: Event, name: str = GEMM) -> dict[str, Any]:
    """Kernels of 5 us, 50 us apart."""
    each = [launched("kernel", name, at, at + 2, 5) for at in range(1000, 2000, 50)]
    return plain(list(more), *each)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (small(), "mode='reduce-overhead'"),
        (small(op("CompiledFunction", 990, 1000)), "fuses nothing: use its backend inductor"),
        (small(op("Torch-Compiled Region: 0/0", 990, 1000)), "fuses nothing: use its backend inductor"),
        (small(op("Torch-Compiled Region: 0/0", 990, 1000), name="triton_poi_fused_add_0"), "The model is compiled"),
        (small(op("Torch-Compiled Region: 0/0", 990, 1000), name="triton__0d1d2d"), "The model is compiled"),
    ],
)
def test_graphs_are_advised_where_something_is_fused(tmp_path: Path, content: dict[str, Any], says: str) -> None:
    assert says in findings(tmp_path, content)["launch_bound"].fix


# Training


def train(zeroing: int = 0, stepping: int = 0, name: str = ADD) -> dict[str, Any]:
    """Calls of zero_grad and step, each with so many kernels of 4 us, 20 us apart, between two products."""
    events = [*launched("kernel", GEMM, 0, 2, 500)]
    at = 600
    for mark, count, kernel in (("zero_grad#SGD.zero_grad", zeroing, FILL), ("step#SGD.step", stepping, name)):
        events.append(slice_("user_annotation", f"Optimizer.{mark}", at, 20 * count + 10))
        events += [event for n in range(count) for event in launched("kernel", kernel, at + 20 * n, at + 20 * n + 2, 4)]
        at += 20 * count + 10
    return plain(events, launched("kernel", GEMM, at, at + 2, 500))


def test_zero_grad_costs_its_launches_and_kernels(tmp_path: Path) -> None:
    found = findings(tmp_path, train(zeroing=10))["zero_grad"]
    # 100 us from the first product to the first kernel, then 9 gaps of 16 us: no more than the 210 us of the call.
    idle_ns = 100_000 + 9 * 16_000
    assert found.figures == {
        "kernels": 10, "gpu_ns": 40_000, "gaps": 10, "idle_ns": idle_ns, "host_ns": 210_000, "calls": 1,
    }  # fmt: skip
    assert found.gain_ratio == pytest.approx((210 + 40) / (2 + 820 + 500), rel=0.01)
    assert found.location == "Optimizer.zero_grad#SGD.zero_grad"
    assert found.part_of == "launch_bound"
    assert "set_to_none=True" in found.fix
    assert "zero_grad" not in findings(tmp_path, train())


def test_an_optimizer_that_loops_over_tensors(tmp_path: Path) -> None:
    found = findings(tmp_path, train(stepping=20))["optimizer_loop"]
    assert found.figures["kernels"] == 20
    assert "most for one tensor each" in found.evidence
    assert "fused=True" in found.fix
    assert "optimizer_loop" not in findings(tmp_path, train(stepping=19))
    fused = "multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>"
    assert "optimizer_loop" not in findings(tmp_path, train(stepping=20, name=fused))
    many = findings(tmp_path, train(stepping=20, name="multi_tensor_apply_kernel<BinaryOpListAlphaFunctor>"))
    assert "each for many tensors" in many["optimizer_loop"].evidence


def test_kernels_of_an_optimizer_and_fills_are_no_chain(tmp_path: Path) -> None:
    events = kernels(GEMM, *[ADD] * 8, GEMM)
    assert findings(tmp_path, plain(events))["elementwise_chains"].figures["saved_ns"] == 70_000
    step = slice_("user_annotation", "Optimizer.step#AdamW.step", 15, 80)
    assert "elementwise_chains" not in findings(tmp_path, plain(events, step))
    assert "elementwise_chains" not in findings(tmp_path, plain(kernels(GEMM, *[FILL] * 8, GEMM)))
    masked = findings(tmp_path, plain(kernels(GEMM, *["masked_fill_kernel"] * 8, GEMM)))
    assert masked["elementwise_chains"].figures["saved_ns"] == 70_000


@needs_traces
def test_training_of_a_real_trace() -> None:
    found = real("more/v100_resnet50_dataloader")
    zero = found["zero_grad"]
    # 161 parameters, 6 steps; of the 95.4 ms for which the GPU waits for launches.
    assert (zero.figures["kernels"], zero.figures["calls"], zero.figures["idle_ns"]) == (966, 6, 36_470_000)
    assert zero.part_of == "launch_bound"
    # The longest chain was 484: all kernels of an optimizer's step.
    assert "of up to 9:" in found["elementwise_chains"].evidence
    assert "zero_grad" not in real("traces/v100_resnet_ddp")  # which launches nothing there


# Many small all-reduces


def reduced(between: str | None, gpu_us: float = 8, count: int = 24) -> dict[str, Any]:
    """All-reduces in a row on a stream of their own, with kernels between them."""
    events = [*launched("kernel", GEMM, 0, 2, 100)]
    for n in range(count):
        at = 200 + 40 * n
        call, kernel = launched("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at, at + 2, gpu_us)
        events += [call, {**kernel, "tid": 9, "args": {**kernel["args"], "stream": 9}}]
        events += launched("kernel", between, at + 20, at + 22, 5) if between else []
    return plain(events)


def test_small_all_reduces_that_follow_each_other(tmp_path: Path) -> None:
    found = findings(tmp_path, reduced(ADD))["small_all_reduces"]
    assert found.figures["all_reduces"] == 24
    assert (found.figures["median_ns"], found.figures["exposed_ns"]) == (8_000, 24 * 8_000)
    assert "24 in a step, 24 in all, median 8.00 µs" in found.evidence
    assert "bucket_cap_mb" in found.fix
    # Results that products wait for, long ones, and few ones are no matter of buckets.
    for content in (reduced(GEMM), reduced(ADD, gpu_us=60), reduced(ADD, count=12)):
        assert "small_all_reduces" not in findings(tmp_path, content)


@needs_traces
@pytest.mark.parametrize("name", ["more/h100_vllm_tp4", "ranks/megatron_tp8_rank1"])
def test_all_reduces_of_tensor_parallel_layers_cannot_be_joined(name: str) -> None:
    assert "small_all_reduces" not in real(name)


# Recordings that are not warmed up


def late(call_us: float, kernel: str, *more: Event) -> dict[str, Any]:
    """Two kernels, the second of which is launched by a call that takes so long."""
    return plain(
        launched("kernel", GEMM, 0, 2, 500),
        op("aten::conv2d", 590, call_us + 20),
        slice_("cuda_runtime", "cudaLaunchKernel", 600, call_us, correlation=99),
        work("kernel", kernel, 600 + call_us, 500, 99),
        list(more),
    )


def test_a_first_call_is_a_warning_above_the_findings(tmp_path: Path) -> None:
    content = late(50_000, "some_convolution")
    found = findings(tmp_path, content)["cold_start"]
    assert found.warning
    assert found.gain is None
    assert found.figures["first_calls_ns"] == 50_000_000
    assert "one cudaLaunchKernel in aten::conv2d takes 50.0 ms" in found.evidence
    report = api.report(tiny_trace.write(tmp_path / "trace.json", content))
    (warning,) = report_document(report).warnings
    assert warning.startswith("the recording is not warmed up: 97.8 % of the recorded span, 51.1 ms: one cudaLaunch")
    assert report.findings[0].id == "cold_start"
    assert report.to_json()["findings"][0]["warning"] is True
    assert "warning" not in report.to_json()["findings"][1]
    # A kernel that ran before, a short call, and one during which the GPU works.
    busy = launched("kernel", GEMM, 540, 550, 50_000)
    for other in (late(50_000, GEMM), late(10_000, "some_convolution"), late(50_000, "some_convolution", *busy)):
        assert "cold_start" not in findings(tmp_path, other)


def test_long_calls_that_are_no_first_ones_are_not_warmed_up(tmp_path: Path) -> None:
    first = findings(tmp_path, late(50_000, "some_convolution"))["long_calls"]
    assert "warm up before recording" in first.fix
    again = findings(tmp_path, late(50_000, GEMM))["long_calls"]
    assert "what else runs on these cores" in again.fix
    assert "None is the first of its kind" in again.explanation


def scripted(gap_us: float, name: str = "fallback_function") -> dict[str, Any]:
    """Two kernels with a gap of which nothing is recorded, then a function of TorchScript."""
    at = 600 + gap_us
    return plain(
        op("aten::mul", 590, 10), launched("kernel", GEMM, 0, 2, 500),
        op("delta_r2", at, 200), op(name, at + 10, 180), launched("kernel", GEMM, at + 20, at + 22, 500),
    )  # fmt: skip


def test_a_gap_before_what_torchscript_specialized(tmp_path: Path) -> None:
    every = findings(tmp_path, scripted(40_000))
    found = every["jit_specialization"]
    assert found.figures == {"gaps": 1, "idle_ns": 40_000_000, "longest_ns": 40_000_000}
    assert found.location == "fallback_function in delta_r2"
    assert found.part_of == "host_work"
    assert "TorchScript specializes in its first calls" in every["host_work"].fix
    assert "TorchScript specializes for 40.0 ms before fallback_function in delta_r2" in every["cold_start"].evidence
    for quiet in (scripted(10_000), scripted(40_000, "aten::sub")):
        assert "jit_specialization" not in findings(tmp_path, quiet)


def test_compiling_of_another_program_is_a_warning(tmp_path: Path) -> None:
    compiling = op("_compile.compile_inner (dynamo_timed)", 5000, 30_000)
    content = plain(launched("kernel", GEMM, 0, 2, 500), compiling, launched("kernel", GEMM, 40_000, 40_002, 500))
    assert "torch.compile compiles for 30.0 ms" in findings(tmp_path, content)["cold_start"].evidence


@needs_traces
def test_a_real_trace_that_is_not_warmed_up() -> None:
    report = whole("more/a100_torchscript_cold")
    assert report.findings[0].evidence == (
        "94.2 % of the recorded span, 1.81 s: one cudaLaunchKernel in aten::cudnn_convolution takes 1.34 s; "
        "TorchScript specializes for 366 ms before fallback_function in delta_r2"
    )
    jit = real("more/a100_torchscript_cold")["jit_specialization"]
    assert (jit.figures["longest_ns"], jit.part_of) == (365_872_771, "host_work")
    assert not any(item.warning for item in whole("more/v100_resnet50_dataloader").findings)


# Host syncs


def test_a_copy_that_waits_and_the_sync_after_it_are_one(tmp_path: Path) -> None:
    content = plain(
        launched("kernel", GEMM, 0, 2, 50),
        op("aten::_local_scalar_dense", 90, 60),
        slice_("cuda_runtime", "cudaMemcpyAsync", 100, 20, correlation=5),
        work("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 110, 5, 5),
        slice_("cuda_runtime", "cudaStreamSynchronize", 125, 4),
        slice_("cuda_runtime", "cudaStreamSynchronize", 200, 6),
    )
    with api.load(tiny_trace.write(tmp_path / "trace.json", content)) as trace:
        rows = trace.sql(
            "INCLUDE PERFETTO MODULE molprof.host_syncs; SELECT ts, dur, name FROM molprof_host_sync"
        ).rows()
    assert rows == [(100_000, 24_000, "cudaMemcpyAsync"), (200_000, 6_000, "cudaStreamSynchronize")]


@needs_traces
def test_host_syncs_of_a_real_trace() -> None:
    rows = whole("more/h100_vllm_tp4").table("host_syncs").to_json()
    assert [(row["name"], row["count"]) for row in rows] == [("cudaMemcpyAsync", 10), ("cudaDeviceSynchronize", 1)]
