"""Least work of engines' operators, against TraceLens' performance models: FLOPs and bytes of the same arguments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from molprof import api
from molprof.analysis.roofline.formulas import FORMULAS, work_of
from molprof.analysis.roofline.operands import Operand, Operands
from molprof.analysis.roofline.paged import PAGED, Batch

CORPUS = os.environ.get("MOLPROF_CORPUS")
BF16, FP8, FP4, BYTE = "c10::BFloat16", "c10::Float8_e4m3fn", "c10::Float4_e2m1fn_x2", "unsigned char"
NONE = Operand()
# execute_40_context_2(sq36sk60sqsq656sqsk1100)_generation_4(sq4sk400sqsq4sqsk400)
BATCH = Batch(36, 60, 656, 1100, 4, 400, 400)
DECODE = BATCH.generating


def of(kind: str, *shape: int) -> Operand:
    return Operand(kind, shape)


def number(value: int) -> Operand:
    return Operand("Scalar", value=str(value))


X = of(BF16, 32, 64)
ROWS = (of(BF16, 40, 8, 16), of(BF16, 40, 2, 16), of(BF16, 40, 2, 16), of(BF16, 40, 8, 16))
FP8_ROWS = (of(FP8, 4, 256), of(FP8, 128, 256), of("float", 4, 2), of("float", 1, 2))
FP8_SCALES = 4 * (8 + 2)
GLUON = (of(BF16, 4, 8, 16), of(BF16, 4, 8, 16), of(FP8, 99, 2, 1, 16, 16), of(FP8, 99, 2, 16, 16), *[NONE] * 15)
FMOE = (X, of(FP8, 32, 64), of(FP8, 8, 96, 64), of(FP8, 8, 64, 48), *[NONE] * 4, number(2))
EXPERTS = (X, of(BF16, 8, 96, 64), of(BF16, 8, 64, 48), of("float", 32, 2), of("int", 32, 2))
MAMBA2 = (
    of(BF16, 2, 512, 100), of(BF16, 64, 4), of(BF16, 64), of("float", 4), of("float", 4), of(BF16, 4), number(128),
    *[NONE] * 8, number(8), number(1),
)  # fmt: skip
# What TraceLens counts (its `flops()` and `bytes()`), and the bytes of scales, which it leaves out of most.
SAME: list[tuple[str, Operands, int | None, float, int]] = [
    ("vllm::unified_attention_with_output", ROWS, 600_064, 79_360, 0),
    ("aiter::mha_batch_prefill", ROWS, 600_064, 79_360, 0),
    ("sglang_profiler::attention_paged_attention_ragged_17",
     (ROWS[0], of(BYTE, 99), ROWS[0], of(BF16, 99, 1, 2, 16), of(BF16, 99, 1, 2, 16)), 600_064, 79_360, 0),
    ("aiter::pa_decode_gluon", (*GLUON, number(-1)), 204_800, 27_904, 0),
    ("aiter::pa_decode_gluon", (*GLUON, number(50)), 102_400, 15_104, 0),
    ("vllm::gdn_attention_core",
     (of(BF16, 40, 96), of(BF16, 40, 4), of(BF16, 40, 4), of(BF16, 40, 4, 16)), 143_360, 13_440, 0),
    ("aiter::fmoe_g1u1", FMOE, 1_185_792, 79_864.594, 0),
    ("aiter::fmoe_fp8_blockscale_g1u1", FMOE, 1_185_792, 79_864.594, 0),
    ("vllm::fused_experts", EXPERTS, 1_185_792, 155_633.188, 0),
    ("sglang::outplace_fused_experts", EXPERTS, 1_185_792, 155_633.188, 0),
    # TraceLens counts as many results as tokens here, and each has two experts.
    ("aiter::ck_moe_stage1", (*EXPERTS[:3], *[NONE] * 3, of(BF16, 32, 2, 48)), 786_432, 108_534.125, 0),
    ("aiter::gemm_a8w8_blockscale_ck", (*FP8_ROWS, of(BF16, 4, 128)), 262_144, 34_816, FP8_SCALES),
    ("vllm::rocm_aiter_triton_gemm_a8w8_blockscale", (*FP8_ROWS, number(15)), 262_144, 34_816, FP8_SCALES),
    ("_C::cutlass_scaled_mm",
     (of(BF16, 4, 128), FP8_ROWS[0], of(FP8, 256, 128), *FP8_ROWS[2:], NONE), 262_144, 34_816, FP8_SCALES),
    ("aiter::gemm_a4w4",
     (of(FP4, 4, 32), of(FP4, 8, 32), of("c10::Float8_e8m0fnu", 4, 2), of("c10::Float8_e8m0fnu", 8, 2), NONE),
     4096, 472, 0),
    ("aiter::gemm_afp4wfp4_",
     (of(BYTE, 4, 32), of(BYTE, 8, 32), of(BYTE, 4, 2), of(BYTE, 8, 2), NONE, of(BF16, 4, 8)), 4096, 448, 24),
    ("aiter::batched_gemm_a16wfp4_",
     (of(BF16, 3, 4, 64), of(BYTE, 3, 8, 32), of(BYTE, 3, 8, 2)), 12_288, 2496, 48),
    ("vllm::rocm_unquantized_gemm", (of(BF16, 4, 64), of(BF16, 8, 64), of(BF16, 8)), 4128 - 4 * 8, 1616, 0),
    ("_rocm_C::wvSplitK", (of(BF16, 8, 64), of(BF16, 4, 64), of(BF16, 8), number(80)), 4128 - 4 * 8, 1616, 0),
    ("DaoAILab::_causal_conv1d_fwd_cpp", (of(BF16, 2, 24, 10), of(BF16, 24, 4), of(BF16, 24)), 3840, 2160, 0),
    ("MambaSplitConv1dScanCombinedFn", MAMBA2, 15_204_352, 271_016, 0),
    ("aiter::dynamic_per_token_scaled_quant", (of(FP8, 4, 64), of(BF16, 4, 64), of("float", 4, 1)), None, 784, 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "flops", "moved", "scales"), SAME)
def test_figures_of_tracelens(name: str, operands: Operands, flops: int | None, moved: float, scales: int) -> None:
    work = work_of(name, operands, batch=BATCH)
    assert work is not None
    assert flops in (None, work.flops)
    assert work.bytes == round(moved) + scales


def test_the_type_of_the_cache_is_that_of_what_is_written_to_it() -> None:
    work = work_of("vllm::unified_attention_with_output", ROWS, batch=BATCH._replace(cache_bytes=1))
    assert work is not None
    assert (work.flops, work.bytes) == (600_064, 52_480)
    # Lengths are not recorded by a shape.
    assert work_of("vllm::unified_attention_with_output", ROWS) is None


# 4 tokens with 2 heads attend to 400 positions: keys of 8 + 4 numbers, whose first 8 are the values.
QUERY, LATENT, OUT = of(BF16, 4, 2, 12), of(BF16, 99, 1, 12), of(BF16, 4, 2, 8)
MLA = (2 * 2 * 400 * (12 + 8), 2 * (4 * 2 * 12 + 400 * 12), 2 * 4 * 2 * 8, 2 * 400 * 12)
OTHERS: list[tuple[str, Operands, Batch, tuple[int | None, int, int, int]]] = [
    ("vllm::rocm_aiter_mla_decode_fwd", (QUERY, LATENT, OUT), BATCH, MLA),
    ("_flashmla_C::fwd_kvcache_mla", (of(BF16, 4, 1, 2, 12), LATENT, number(8)), BATCH, MLA),
    ("_C::sm100_cutlass_mla_decode", (OUT, NONE, of(BF16, 4, 2, 8), of(BF16, 4, 2, 4), LATENT), BATCH, MLA),
    ("sgl_kernel::cutlass_mla_decode", (OUT, of(BF16, 4, 2, 8), of(BF16, 4, 2, 4), LATENT), BATCH, MLA),
    ("vllm::unified_mla_attention_with_output",
     (of(BF16, 4, 2, 7), of(BF16, 4, 8), of(BF16, 4, 1, 4), of(BF16, 4, 6)), DECODE, MLA),
    # A prompt of 36 tokens, of two heads, with keys of 7 and values of 3.
    ("vllm::unified_mla_attention_with_output",
     (of(BF16, 36, 2, 7), of(BF16, 36, 8), of(BF16, 36, 1, 4), of(BF16, 36, 6)),
     BATCH._replace(tokens=0, length=0, pairs=0),
     (2 * 10 * (2 * 1100 - 656), 2 * 2 * (36 * 7 + 60 * 10), 2 * 36 * 2 * 3, 2 * 2 * 60 * 10)),
    # Caches in blocks: [blocks, heads, size / x, block, x].
    ("_C::paged_attention_v1",
     (of(BF16, 4, 8, 16), of(BF16, 4, 8, 16), of(BF16, 99, 2, 2, 16, 8), of(BF16, 99, 2, 16, 16), number(2)),
     BATCH, (8 * 32 * 2 * 400, 2 * (4 * 8 * 16 + 2 * 32 * 400), 2 * 4 * 8 * 16, 2 * 2 * 32 * 400)),
    # Four numbers of four bits in two elements; blocks' scales.
    ("_C::cutlass_scaled_fp4_mm",
     (of(BF16, 4, 8), of(BYTE, 4, 32), of(BYTE, 8, 32), of(FP8, 128, 4), of(FP8, 128, 4), of("float")),
     BATCH, (2 * 4 * 8 * 64, 128 + 256 + 512 + 512 + 4, 64, 256)),
    ("_C::marlin_gemm",
     (of(BF16, 4, 64), NONE, of("int", 4, 128), NONE, of(BF16, 1, 8), *[NONE] * 5, of("int", 99),
      *map(number, (12345, 4, 8, 64)), Operand("Scalar", value="True")),
     BATCH, (2 * 4 * 8 * 64, 512 + 2048 + 16, 64, 2048)),
    # Of 4 rows that choose among 2 experts, each is chosen unless none chooses it.
    ("_C::cutlass_moe_mm", (of(BF16, 4, 8), of(FP8, 4, 16), of(FP8, 2, 16, 8)),
     BATCH, (2 * 4 * 16 * 8, 64 + 240, 64, 240)),
    # 10 positions of 3 sequences, 6 channels with a state of 4; D, and no z.
    ("_C::selective_scan_fwd",
     (of(BF16, 6, 10), of(BF16, 6, 10), of("float", 6, 4), *[of(BF16, 1, 4, 10)] * 2, of("float", 6), NONE, NONE,
      number(1), of("int", 4), of("int", 3), of("bool", 3), of(BF16, 99, 6, 4)),
     BATCH, (9 * 60 * 4 + 60, 2 * 120 + 96 + 2 * 80 + 24, 120 + 3 * 24 * 2, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "batch", "expected"), OTHERS)
def test_by_hand(name: str, operands: Operands, batch: Batch, expected: tuple[int | None, int, int, int]) -> None:
    work = work_of(name, operands, batch=batch)
    assert work is not None
    assert (work.flops, work.read_bytes, work.written_bytes, work.must_bytes) == expected


@pytest.mark.parametrize("name", sorted(PAGED))
@pytest.mark.parametrize("batch", [Batch(*[0] * 7), Batch(5, 3, 9, 1, 5, 2, 1), BATCH])
def test_arguments_and_lengths_that_do_not_fit_have_no_figures(name: str, batch: Batch) -> None:
    odd = of("no type", 4, 10)
    for operands in ((), (odd,), (NONE,) * 30, (of(BF16, 0, 3), of(BF16, 7, 0)) * 15, (of(BF16, 2, 0, 3),) * 30):
        found = work_of(name, operands, batch=batch)
        assert found is None or min(found.flops or 0, found.read_bytes, found.written_bytes) >= 0
    assert name not in FORMULAS


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
def test_a_public_trace_with_its_capture() -> None:
    """SGLang's decode step of 32 sequences, 32,785 positions in all: TraceLens' report has the same row."""
    folder = Path(str(CORPUS))
    replay = folder / "traces" / "mi300x_sglang_qwen3_8b_decode.json.gz"
    found, _ = api.roofline(replay, capture=folder / "graphs" / "mi300x_sglang_qwen3_8b_capture_bs32.json.gz")
    (group,) = (item for item in found.groups if item.family == "attention")
    assert group.work is not None
    assert group.operator == "sglang_profiler::attention_paged_attention_ragged_100"
    assert (group.kernels, group.work.flops, group.work.bytes) == (72, 537_149_440, 134_811_648)
