"""Findings: each rule fires on a trace built for it, with exact figures and gain, and not just below its threshold.

The findings of public traces, in their order, are in `tests/goldens`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import plain_kernels
import pytest
import tiny_trace
from decoding_trace import GEMM, Event, PerStep, decoding, gemms, launched, op
from finding_cases import Case, findings, plain
from tiny_trace import slice_, work

from molprof import api
from molprof.analysis.figures.model import Gain
from molprof.analysis.findings import RULES

CORPUS = os.environ.get("MOLPROF_CORPUS")
FLASH, CUTLASS = "flash_fwd_kernel_bf16", "fmha_cutlassF_bf16_aligned_64x64_rf_sm80"
ADD, SOFTMAX = "vectorized_elementwise_kernel", "softmax_warp_forward"
ROTARY, CACHE_WRITE = "vllm::rotary_embedding_kernel<float>", "vllm::reshape_and_cache_kernel<float>"


def sparse(start: int) -> list[Event]:
    """10 kernels of 5 us, 50 us apart: gaps of 45 us, and one of 545 us to the next step."""
    return gemms(start, 50, 5, 10)


def broken_graph(start: int) -> list[Event]:
    return [*launched("graph", GEMM, start, start + 4, 6), *gemms(start, 20, 5, 25, first=20)]


def waiting(phase: int) -> PerStep:
    """A kernel of 500 us, and a host sync of 100 us that begins so late in the step."""
    return lambda start: [
        *launched("kernel", GEMM, start, start + 2, 500),
        slice_("cuda_runtime", "cudaStreamSynchronize", start + phase, 100, correlation=5),
    ]


def by_row(rows: int) -> PerStep:
    """Two operators for each row in the processor."""
    return lambda start: [
        event
        for row in range(rows)
        for event in (op("aten::select", start + 600 + 20 * row, 2), op("aten::fill_", start + 605 + 20 * row, 3))
    ]


def by_row_on_gpu(start: int) -> list[Event]:
    return [*(op("aten::select", start + 600 + 20 * row, 2) for row in range(8)), *gemms(start, 20, 10, 8, first=605)]


def copying(name: str, count: int) -> PerStep:
    """Copies of 4 us to the device, each with a call of 2 us."""

    def per_step(start: int) -> list[Event]:
        copies = [launched("gpu_memcpy", name, at := start + 10 * n, at + 3, 4, bytes=100) for n in range(count)]
        return [event for copy in copies for event in copy]

    return per_step


def once(per_step: PerStep) -> PerStep:
    return lambda start: per_step(start) if start == 2000 else []


def vocabulary_copy(gpu_us: float) -> PerStep:
    return lambda start: [
        op("aten::clone", start + 800, 12), op("aten::copy_", start + 801, 10),
        *launched("kernel", tiny_trace.COPY, start + 802, start + 804, gpu_us),
    ]  # fmt: skip


def attention(operator: str, kernel: str, gpu_us: float) -> PerStep:
    """A step of which attention takes so much of the GPU's 990 us."""
    return lambda start: [
        op(f"aten::{operator}", start, 20),
        *launched("kernel", kernel, start + 5, start + 7, gpu_us),
        *launched("kernel", GEMM, start + 30, start + 7 + gpu_us, 990 - gpu_us),
    ]


def flash(gpu_us: float) -> PerStep:
    return attention("_scaled_dot_product_flash_attention", FLASH, gpu_us)


def masked(operator: str = "_scaled_dot_product_efficient_attention", **model: str) -> dict[str, Any]:
    return decoding(attention(operator, CUTLASS, 200), model=model)


def cpu_attention(dur: float) -> PerStep:
    return lambda start: [
        op("aten::scaled_dot_product_attention", start, dur),
        op("aten::_scaled_dot_product_flash_attention_for_cpu", start + 5, dur - 10),
    ]


def layer(cats: int) -> PerStep:
    """So many concatenations of 10 us, 5 us of them on the GPU, then attention."""
    return lambda start: [
        op("aten::scaled_dot_product_attention", start + 100, 20),
        *(
            event
            for at in range(start, start + 20 * cats, 20)
            for event in (op("aten::cat", at, 10), *launched("kernel", tiny_trace.CAT, at + 2, at + 4, 5))
        ),
    ]


def processed(per_step: PerStep = lambda start: [], processor_ns: int | None = None, **more: Any) -> dict[str, Any]:
    """A run with a logits processor."""
    content = decoding(per_step, processor="generic", **more)
    for repeat in content["molprof"]["timings"]["repeats"] if processor_ns else []:
        repeat["phases_ns"]["processor"] = processor_ns
    return content


def generated(content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    content["molprof"]["generation"].update(changes)
    return content


def without_lengths(content: dict[str, Any]) -> dict[str, Any]:
    for event in content["traceEvents"]:
        if event["cat"] == "molprof.sequence" and event["args"]["sequence"] > 1:
            del event["args"]["tokens"]
    return content


def kernels(*names: str) -> dict[str, Any]:
    """Kernels of 10 us, one after the other."""
    return plain(*(launched("kernel", name, 10 + 10 * n, 12 + 10 * n, 10) for n, name in enumerate(names)))


def two_kernels(sync_us: float) -> dict[str, Any]:
    """The GPU is busy until 20; the CPU waits for it, then works for 2 ms."""
    return plain(
        launched("kernel", GEMM, 0, 2, 18), slice_("cuda_runtime", "cudaStreamSynchronize", 12, sync_us),
        op("aten::mul", 30, 1900), launched("kernel", GEMM, 2000, 2002, 18),
    )  # fmt: skip


# 2 ms between two kernels: 0.3 ms in an allocation, 0.6 ms in the launch; then 1.5 ms in which a graph is captured.
LONG_CALLS = plain(
    launched("kernel", GEMM, 0, 2, 10),
    slice_("cuda_runtime", "cudaMalloc", 500, 300),
    slice_("cuda_runtime", "cudaLaunchKernel", 1412, 600, correlation=1),
    work("kernel", GEMM, 2012, 10, 1),
    slice_("cuda_runtime", "cudaLaunchKernel", 2500, 5, correlation=2),
    slice_("cuda_runtime", "cudaGraphInstantiate", 3400, 100),
)
# 400 us between two operators of a thread; during 100 of them another thread runs one.
OUTSIDE = plain(
    op("aten::mm", 0, 100), slice_("user_annotation", "fill", 100, 400), op("aten::mm", 500, 100),
    slice_("cpu_op", "aten::add", 300, 100, tid=101),
)  # fmt: skip


REGION = lambda start: [op("Torch-Compiled Region: 0/0", start, 500)]  # noqa: E731
COMPILING = lambda start: [  # noqa: E731
    op("_compile.compile_inner (dynamo_timed)", start, 400), op("gc (dynamo_timed)", start + 350, 100),
]  # fmt: skip
COMPILED = tuple({"compiles": n, "compile_ns": 200_000 * n} for n in (2, 1, 0))
ROWS = {"lengths": [10, 2, 10, 2], "batch_size": 2}
GAP_NS = 1000 * (4 * 9 * 45 + 3 * 545)


CASES = [
    Case("launch_bound", decoding(sparse), GAP_NS / 4_000_000, {
        "gap_count": 39, "gap_ns": GAP_NS, "recorded_ns": 4_000_000, "launches": 40, "graph_launches": 0,
        "kernels_by_graph": 0,
    }),
    # Without the profiler a step takes a tenth, in which the GPU works half of the time; or a twentieth: all of it.
    Case("launch_bound", decoding(sparse, profiled_ratio=10), 0.5 * GAP_NS / 3_800_000, {},
         quiet=(decoding(sparse, profiled_ratio=20),)),
    Case("launch_bound", decoding(broken_graph), None, {"graph_launches": 4, "kernels_by_graph": 4},
         ("100 run outside graphs", "TORCH_LOGS=graph_breaks")),
    Case("limits", decoding(sparse), None, {"gpu_ns": 200_000}, ("; what takes most of a step: the CPU (4 steps)",)),
    Case("profiler_cost", decoding(profiled_ratio=1.6), None, {"profiled_ratio": 1.6},
         quiet=(decoding(profiled_ratio=1.25),)),
    # One kernel for the whole step, launched in the step before it ends: neither idle nor launch-bound.
    Case("dominant_kernel", decoding(lambda start: launched("kernel", GEMM, start, start + 2, 990)), None, {},
         quiet=(decoding(sparse),)),
    # One long gap is no launch: from the end of the first kernel to the launch of the second.
    Case("host_work", decoding(
        lambda start: launched("kernel", GEMM, start, start + 2, 5) if start in (1000, 4000) else []
    ), None, {"idle_ns": 2_993_000}),
    # Of 1.4 ms before the second launch all but the allocation; none of the 1.478 ms after the last kernel.
    Case("host_work", LONG_CALLS, None, {"idle_ns": 1_100_000}),
    Case("recording_ends", LONG_CALLS, None, {"before_ns": 2_000, "after_ns": 1_478_000, "recorded_ns": 3_500_000},
         ("1.48 ms after the last", "which counts for no gain; in single calls: cudaGraphInstantiate 100 µs")),
    Case("graph_capture", LONG_CALLS, None, {"without_work": 1}),
    Case("long_calls", LONG_CALLS, None, {"idle_ns": 900_000, "calls": 2},
         ("900 µs in gaps longer than 1 ms: cudaLaunchKernel 600",)),
    # A sync gains no more than it takes.
    Case("host_syncs", two_kernels(100), 100_000 / 2_020_000,
         {"gaps": 1, "idle_ns": 1_982_000, "sync_ns": 100_000, "waited_ns": 92_000}, quiet=(two_kernels(10),)),
    # Of each chain all but the longest kernel is saved; one kernel alone is no chain.
    Case("elementwise_chains", kernels(GEMM, ADD, ADD, ADD, GEMM, ADD), None, {"saved_ns": 20_000}),
    # A kernel in between, and another order, are no chain.
    Case("library_chains", kernels(GEMM, ROTARY, CACHE_WRITE, GEMM), None, {"chains": 1, "saved_ns": 10_000},
         ("1 x rotary, cache write, at most 10.0 µs less in one (FlashInfer: RopeQuantize",),
         quiet=(kernels(ROTARY, GEMM, CACHE_WRITE, ROTARY),)),
    # A router's softmax goes into a sort, and one at the end is not between two products.
    Case("unfused_attention", kernels(GEMM, ADD, SOFTMAX, ADD, GEMM), None, {"between_ns": 30_000},
         quiet=(kernels(GEMM, SOFTMAX, "gatherTopK", GEMM, SOFTMAX),)),
    Case("fp32_matmul", kernels("ampere_sgemm_128x64_tn", GEMM), None, {"time_ns": 10_000},
         quiet=(kernels(f"{GEMM}_align2", GEMM),)),
    Case("odd_shapes", kernels(f"{GEMM}_align2", GEMM), None, {"time_ns": 10_000}),
    Case("communication", kernels("ncclDevKernel_AllReduce", GEMM), None, {"exposed_ns": 10_000}),
    Case("unknown_kernels", kernels("Memcpy", "some_new_kernel", GEMM), None, {"time_ns": 20_000}),
    Case("compiling", decoding(REGION, repeats=COMPILED), 0.05,
         {"compiles": 3, "recorded_frames": 0, "recorded_ns": 0}, ("frames compiled in each timed pass: 2, 1, 0",),
         quiet=(decoding(REGION, repeats=({"compiles": 0, "compile_ns": 0},) * 3),)),  # it is compiled before
    Case("compiling", decoding(once(COMPILING)), 0.45 / 4,
         {"compiles": 0, "recorded_frames": 1, "recorded_ns": 450_000}),
    # A fifth of the time is not in steps.
    Case("idle_rows", decoding(**ROWS, setup={"text": 1_000_000}), 0.4 * 0.8,
         {"idle_row_steps": 16, "row_steps": 40, "idle_ratio": 0.4, "steps": 20, "steps_by_length": 12},
         ("12 steps instead of 20",), quiet=(decoding(lengths=[10, 9], batch_size=2),)),
    Case("idle_rows", decoding(lengths=ROWS["lengths"], batch_size=4), None, {}, ("all rows are in one batch",)),
    Case("idle_rows", without_lengths(decoding(**ROWS)), None, {}, ("not all lengths are recorded",)),
    Case("idle_rows", decoding(lengths=[10, 10, 9, 2], batch_size=2), None, {}, ("saves no steps",)),
    Case("idle_rows", generated(decoding(**ROWS), sorted=True, drop_finished=True), None, {},
         ("the batches are sorted by expected length", "Refill finished rows, as servers do.")),
    Case("idle_rows", generated(decoding(**ROWS), cannot_drop="its layers slide"), None, {},
         ("Refill finished rows, as servers do. This run cannot drop them: its layers slide.",)),
    # All of the time is in steps. Steps cost the same however many rows they have, and so for row-steps.
    Case("junk_tokens", decoding(kinds=["fffjj", "ffffl"], lengths=[5, 5], batch_size=2), 0.2,
         {"junk_tokens": 2, "filler_tokens": 1, "token_ratio": 0.3, "steps": 5, "steps_without": 4},
         quiet=(decoding(kinds=["f" * 199 + "j", "f" * 200], lengths=[200, 200], batch_size=2),
                without_lengths(decoding(kinds=["fffjj"] * 3, lengths=[5] * 3, batch_size=3)))),
    Case("templates", decoding(setup={"template": 1_000_000}), 0.2,
         {"template_ns": 1_000_000, "wall_ns": 5_000_000, "molecules": 8},
         quiet=(decoding(setup={"template": 50_000}),)),
    Case("compile_phase", decoding(setup={"compile": 1_000_000}), 0.2,
         {"compile_ns": 1_000_000, "wall_ns": 5_000_000, "molecules": 8}, ("return an object whose start(rows)",),
         quiet=(decoding(setup={"compile": 50_000}),)),
    # 3 x 4 us on the GPU; 3 x 2 us in the calls, in which the GPU is idle, but for the first, before any GPU work.
    Case("host_copies", decoding(copying("Memcpy HtoD (Pageable -> Device)", 3)), (48 + 22) / 4000,
         {"count": 12, "gpu_ns": 48_000, "host_ns": 24_000, "bytes": 1200, "steps": 4, "idle_ns": 22_000},
         quiet=(decoding(copying("Memcpy HtoD (Pinned -> Device)", 1)),
                decoding(once(copying("Memcpy HtoD (Pageable -> Device)", 3))))),
    Case("host_functions", OUTSIDE, 0.5, {"time_ns": 300_000, "outside_ns": 300_000}),
    # The last two of four concatenations: the others rotate queries and keys.
    Case("cache_concatenation", decoding(layer(4)), 0.02 + 0.01,
         {"concatenations": 8, "attention_calls": 4, "host_ns": 80_000, "gpu_ns": 40_000, "kernels": 8},
         quiet=(decoding(layer(2), generation={"cache": "static"}), decoding(layer(1)))),
    Case("cache_concatenation", plain(*map(layer(4), (0, 200, 400))), None, {},
         quiet=(plain(*map(layer(2), (0, 200, 400))),)),
    Case("attention_small", decoding(flash(90)), 0.09, {"attention_ns": 360_000, "gpu_ns": 3_960_000, "kernels": 4},
         quiet=(decoding(flash(100)),)),
    # 30 of the 600 us of a forward, which is 0.6 of the time.
    Case("attention_small", decoding(cpu_attention(30)), 0.03, {}, (
        "scaled_dot_product_attention takes 120 µs of 2.40 ms recorded in forward (5.00 %), a phase that takes "
        "60.0 % of unprofiled time",
    ), quiet=(decoding(cpu_attention(120)),)),
    Case("attention_small", plain(op("aten::mm", 0, 100), work("kernel", FLASH, 100, 1, 1),
                                  work("kernel", "gemm", 180, 20, 2)), None, {},
         ("1 attention kernel takes 1.00 µs: 4.76 % of the GPU's work, 0.50 % of the recorded span, 200 µs",)),
    Case("mask_rules_out_flash", masked(), 0.2, {"calls": 4, "kernels": 4, "gpu_ns": 800_000}, quiet=(
        masked(dtype="float32"), masked(attention="sdpa-efficient"), masked("_scaled_dot_product_flash_attention"),
    )),
    # 100 of 200 us of a phase that takes a fifth of the time; the GPU is idle longer.
    Case("processor_syncs", processed(waiting(600)), 0.1, {"syncs_per_step": 1.0, "sync_ns": 400_000, "steps": 4},
         quiet=(processed(waiting(800)),)),
    Case("constraint", processed(), 0.2, {"processor_wall_ns": 800_000, "steps_wall_ns": 4_000_000},
         ("20.0 % (20.0 % to 20.0 % in 3 passes)", "--processor vectorized"), quiet=(decoding(),)),
    Case("row_masking", processed(by_row(8)), 7 / 8 * 0.2,
         {"rows": 8, "calls_per_step": 8, "least_calls_per_row": 1, "leaf_operators_per_step": 16},
         quiet=(processed(by_row(7)), processed(by_row(8), batch_size=4))),  # fewer rows prove nothing
    # The processor's host time alone: its 8 kernels of 10 us run behind it, and the GPU has time for them.
    Case("row_masking", processed(by_row_on_gpu), 7 / 8 * 0.2, {"launches_per_step": 8}),
    # 20 us on the GPU and 12 us in aten::clone, of each 1000 us.
    Case("vocabulary_copies", decoding(vocabulary_copy(20)), 0.032,
         {"copies_per_step": 1.0, "copy_ns": 80_000, "least_ns": 3_000, "rows": 8, "logits_width": 128_256},
         quiet=(decoding(vocabulary_copy(2.5)),)),
    Case("vocabulary_copies", decoding(lambda start: [op("aten::copy_", start + 620, 60)]), 0.06, {"least_ns": 50_000},
         quiet=(decoding(lambda start: [op("aten::copy_", start + 620, 49)]),
                decoding(lambda start: [op("aten::mul", start + 620, 90)]))),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case.rule}" for n, case in enumerate(CASES)])
def test_a_rule(tmp_path: Path, case: Case) -> None:
    case.check(tmp_path)


def test_findings_beside_each_other(tmp_path: Path) -> None:
    found = findings(tmp_path, decoding(sparse))
    assert set(found) == {"launch_bound", "limits"}
    assert sum(found["limits"].figures.values()) == 4_000_000
    busy = findings(tmp_path, decoding(lambda start: launched("kernel", GEMM, start, start + 2, 990)))
    assert [item.id for item in busy.values() if not item.note] == ["dominant_kernel"]
    assert busy["limits"].evidence.startswith("GPU work 99.0 %")
    slow = findings(tmp_path, decoding(sparse, profiled_ratio=10))["profiler_cost"]
    assert (slow.gain_ratio, slow.figures) == (None, {"profiled_ratio": 10.0})
    long = findings(tmp_path, LONG_CALLS)
    assert {item.id: item.part_of for item in long.values() if item.part_of} == {
        "long_calls": "graph_capture", "host_work": "graph_capture",
    }  # fmt: skip
    sync = findings(tmp_path, two_kernels(100))["host_syncs"]
    of = "gaps that begin in a host sync, and these syncs"
    assert sync.gain == Gain(0, 100_000 / 2_020_000, "recorded span", of, 2_020_000)
    assert sync.part_of == "host_work"
    assert findings(tmp_path, OUTSIDE)["host_functions"].location == "fill"
    assert "--sort" not in findings(tmp_path, decoding(lengths=[10, 10, 9, 2], batch_size=2))["idle_rows"].fix
    junk = findings(tmp_path, decoding(kinds=["fffjj", "ffffl"], lengths=[5, 5], batch_size=2))["junk_tokens"]
    fifth = pytest.approx(0.2)
    assert junk.gain == Gain(fifth, fifth, "unprofiled wall time", "steps that are saved", 4_000_000)
    assert findings(tmp_path, plain(slice_("user_annotation", "x", 0, 5))) == {}


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
@pytest.mark.parametrize("name", ["traces/h100_qwen1.5_0.5b", "ranks/megatron_tp8_rank0"])
def test_what_kernels_could_save_is_what_a_plain_recount_finds(name: str) -> None:
    path = Path(str(CORPUS), f"{name}.json.gz")
    with api.load(path) as trace:
        found = {item.id: item.figures for item in trace.findings}
        sql = "INCLUDE PERFETTO MODULE molprof.kernel_classes; SELECT category, name, class FROM molprof_work_class"
        classes = {(category, name): kind for category, name, kind in trace.sql(sql).rows()}
    plain = {rule: figures for rule, figures in plain_kernels.figures(path, classes).items() if rule in found}
    assert plain
    assert all(found[rule].items() >= figures.items() for rule, figures in plain.items())


def test_a_run_of_which_no_step_is_recorded_has_findings_of_its_times(tmp_path: Path) -> None:
    trace = tiny_trace.document()
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("cat") != "user_annotation"]
    found = api.report(tiny_trace.write(tmp_path / "trace.json", trace)).findings
    assert {item.id for item in found} >= {"idle_rows", "junk_tokens"}


def test_every_rule_is_documented() -> None:
    assert [rule.id for rule in RULES if "ire where" not in (rule.find.__doc__ or "")] == []
