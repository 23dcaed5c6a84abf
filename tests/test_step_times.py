"""Steps are timed with their GPU work, and traces compared by step and by class of work."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tiny_trace import slice_, write

from molprof import api
from molprof.analysis.compare.recorded import class_times, step_counts
from molprof.analysis.documents.comparison import comparison_document
from molprof.analysis.facts.number_types import number_type
from molprof.analysis.facts.step_times import done
from molprof.analysis.render import render

CORPUS = os.environ.get("MOLPROF_CORPUS")
needs_traces = pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to compare")
MOMENTS = st.integers(0, 30)
Step = tuple[int, int, int]  # process, start, duration
Work = tuple[int, int]  # number of the step, from -1 for none, and end


def plain(steps: list[Step], work: list[Work]) -> list[tuple[int, int]]:
    """When each step is done, and its time: each step against all that began before it in its process."""
    ends = [max([start + dur, *(end for number, end in work if number == place)])
            for place, (_, start, dur) in enumerate(steps)]  # fmt: skip
    found = []
    for place, (process, start, _) in enumerate(steps):
        before = [ends[other] for other in range(place) if steps[other][0] == process]
        found.append((ends[place], max(0, ends[place] - max([start, *before]))))
    return found


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 1), MOMENTS, st.integers(0, 9)), max_size=6).map(
        lambda found: sorted(found, key=lambda step: step[1])
    ),
    st.lists(st.tuples(st.integers(-1, 5), MOMENTS), max_size=8),
)
def test_steps_end_with_their_work_and_never_overlap(steps: list[Step], work: list[Work]) -> None:
    work = [item for item in work if item[0] < len(steps)]
    process, start, dur = np.array(steps, dtype=np.int64).reshape(-1, 3).T
    of, ends = np.array(work, dtype=np.int64).reshape(-1, 2).T
    done_ts, times = done(start, start + dur, process, of, ends)
    assert list(zip(done_ts.tolist(), times.tolist(), strict=True)) == plain(steps, work)


@pytest.mark.parametrize(("kernel", "expected"), [
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x128x64_warpgroupsize1x1x1_cublas", "bfloat16"),
    ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_cublas", "TF32"),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>(Params)", "TF32"),
    ("ampere_fp16_s1688gemm_fp16_128x128_ldg8_relu_f2f_stages_32x1_tn", "float16"),
    ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)", "float32"),
    ("volta_sgemm_64x64_nt", "float32"),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64", "bfloat16"),
    ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x128", "bfloat16"),
    ("Cijk_Alik_Bljk_HHS_BH_MT64x64x32", "float16"),
    ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128", "float32"),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", "FP4"),
    ("void cutlass::device_kernel<deep_gemm::fp8_gemm_kernel>(Params)", "FP8"),
    ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", None),
])  # fmt: skip
def test_types_of_products_by_names(kernel: str, expected: str | None) -> None:
    assert number_type(kernel) == expected


def trace(path: Path, steps: int, copies: int, *, graphs: bool, gemm: str) -> Path:
    """Steps of 100 us that start a product and so many copies; of graphs one launch does both."""
    events, number = [], 0
    for step in range(steps):
        at = 100 * step
        events.append(slice_("user_annotation", f"ProfilerStep#{step + 1}", at, 100))
        work = [("kernel", gemm, 30), *[("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 2)] * copies]
        for place, (category, name, dur) in enumerate(work):
            if place == 0 or not graphs:
                number += 1
                call = "cudaGraphLaunch" if graphs else "cudaLaunchKernel" if place == 0 else "cudaMemcpyAsync"
                events.append(slice_("cuda_runtime", call, at + 5 + place, 0.5, correlation=number))
            args = {"device": 0, "stream": 7, "correlation": number} | ({"graph id": 1} if graphs else {})
            events.append(slice_(category, name, at + 20 + 35 * bool(place) + 3 * place, dur, 0, 7, **args))
    job = {"rank": 0, "world_size": 2 if graphs else 1}
    return write(path, {"traceEvents": events, "distributedInfo": job})


def test_compare_divides_by_steps_and_names_classes_and_settings(tmp_path: Path) -> None:
    """Five steps against three: whole traces would differ most by their number of steps."""
    eager = trace(tmp_path / "eager.json", 5, 1, graphs=False, gemm="volta_sgemm_64x64_nt")
    graphed = trace(tmp_path / "graphed.json", 3, 6, graphs=True, gemm="ampere_bf16_s16816gemm_bf16_64x64_nn")
    found = api.compare(eager, graphed)
    first, other = found.runs
    assert step_counts(first, other) == (5, 3)
    (item,) = found.trace_differences
    assert item is not None
    assert item.per_step is not None
    assert item.per_step.parts["busy"] == 10_000
    assert item.per_step.span_ns == pytest.approx(sum(item.per_step.parts.values()))
    copies = next(item for item in class_times(first, other, (5, 3)) if item.name == "memcpy DtoD")
    assert (copies.counts, copies.times_ns) == ((1, 6), (2_000, 12_000))
    text = render(comparison_document(found), whole=False)
    for line in ("world size       1 -> 2", "GPU graphs       none -> replayed", "float32 -> bfloat16", "per step",
                 "graphed replays graphs, whose inputs are copied"):  # fmt: skip
        assert line in text


def test_the_median_of_an_even_number_of_steps_is_the_mean_of_the_middle_two(tmp_path: Path) -> None:
    ends = [10, 30, 60, 100]
    marks = [slice_("user_annotation", f"ProfilerStep#{end}", start, end - start)
             for start, end in zip([0, *ends], ends, strict=False)]  # fmt: skip
    work = [slice_("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
            slice_("kernel", "k", 3, 1, 0, 7, device=0, stream=7, correlation=1)]  # fmt: skip
    step = api.report(write(tmp_path / "even.json", {"traceEvents": [*marks, *work]})).typical_step
    assert step is not None
    assert step.time_ns == 25_000


@needs_traces
def test_work_that_goes_on_after_a_step_is_its_time() -> None:
    """The host has left the step 7 ms before its GPU work has ended."""
    assert CORPUS is not None
    step = api.report(Path(CORPUS, "traces/h100_qwen1.5_0.5b.json.gz")).typical_step
    assert step is not None
    assert step.time_ns is not None
    assert step.time_ns > step.dur_ns
