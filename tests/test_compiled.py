"""Names of kernels and slices show what torch.compile generated, and the number type of products."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_trace import slice_, work, write

from molprof import api
from molprof.analysis.facts.compiled import AROUND, FUNCTION, GRAPH, REGION, compiled_code, kind_of
from molprof.analysis.facts.number_types import number_type


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Torch-Compiled Region: 0/0", REGION),
        ("CompiledFunctionBackward", FUNCTION),
        ("autograd::engine::evaluate_function: CompiledFunctionBackward", FUNCTION),
        ("## Call CompiledFxGraph fqv3 ##", GRAPH),
        ("TorchDynamo Cache Lookup", AROUND),
        ("AOTDispatcher Runtime Wrapper Prologue", AROUND),
        ("aten::mm", None),
    ],
)
def test_code_by_its_name(name: str, kind: int | None) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("code", "kernels", "used", "by_inductor", "only_traced"),
    [
        ((), (), False, False, False),
        ((), ("triton_add_kernel",), False, False, False),  # a user's own
        ((), ("triton_poi_fused_add_0",), True, True, False),  # replayed in a graph
        ((), ("triton_tem_fused_mm_0",), True, True, False),
        ((), ("triton_red_0",), True, True, False),  # without descriptive names
        ((AROUND,), (), True, False, False),
        ((REGION,), (), True, False, True),
        ((FUNCTION,), ("triton__0d1d2d",), True, False, True),
        ((REGION,), ("triton__0d1d2d",), True, True, False),
        ((REGION, GRAPH), (), True, True, False),
    ],
)
def test_what_made_the_code(
    code: tuple[int, ...], kernels: tuple[str, ...], used: bool, by_inductor: bool, only_traced: bool
) -> None:
    found = compiled_code(code, kernels)
    assert (found.is_used, found.by_inductor, found.only_traced) == (used, by_inductor, only_traced)


@pytest.mark.parametrize(("name", "says"), [("Torch-Compiled Region: 0/0", "yes"), ("aten::mm", "no")])
def test_reports_say_whether_the_program_is_compiled(tmp_path: Path, name: str, says: str) -> None:
    events = [slice_("cpu_op", name, 0, 20), slice_("cuda_runtime", "cudaLaunchKernel", 5, 2, correlation=1)]
    path = write(tmp_path / "a.json", {"traceEvents": [*events, work("kernel", "a", 10, 5, 1)]})
    assert api.report(path).trace.program["torch.compile"] == says


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("ampere_fp16_sgemm_fp16_128x64_tn", "float16"),  # without tensor cores, and of 16 bits
        ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false>(Params)", "float32"),
        ("void splitKreduce_kernel<32, 16, int, float, float, float>(cublasSplitKParams<float>)", None),
        ("void splitKreduce_kernel<float, float, float, float>(cublasSplitKParams<float>)", "float32"),  # before TF32
        ("void splitKreduce_kernel<32, 16, int, float, __half, float>(cublasSplitKParams<float>)", "float16"),
        ("void cutlass::Kernel<cutlass_80_s1688gemm_128x64_16x6_tn_align4>(Params)", "TF32"),
        ("Cijk_Alik_Bljk_S_B_Bias_xf32_MT16x16x128", "TF32"),
        ("void gemm<float, tfloat32_t>(Params)", "TF32"),
    ],
)
def test_types_of_products(kernel: str, kind: str | None) -> None:
    assert number_type(kernel) == kind
