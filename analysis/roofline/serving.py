"""Operators of engines (vLLM, SGLang, aiter): quantized products, mixtures of experts, scans of state-space models.

Arguments stand in the order of their schemas: vLLM's csrc/torch_bindings.cpp, csrc/libtorch_stable, csrc/rocm and
csrc/moe, `direct_register_custom_op` in its Python code; sgl-kernel's csrc/common_extension.cc; aiter/ops. FLOPs are
those of TraceLens' performance models (AMD-AGI/TraceLens, TraceLens/PerfModel), and so are bytes, but that the scales
of quantized tensors are read too. An operator whose arguments hold no weights, such as `vllm::moe_forward`, has none.
"""

from __future__ import annotations

import math

from molprof.analysis.roofline.operands import Operand, Operands
from molprof.analysis.roofline.peaks import FP4, KINDS
from molprof.analysis.roofline.products import MATMUL, Formula, LeastWork, linear, product

EXPERTS, SCAN, QUANTIZATION = "mixture of experts", "state-space scan", "quantization"
_FP4_BLOCKS = 2  # numbers of four bits in an element
_OUT_BYTES = 2  # of an element of a result whose type is not recorded: engines compute in 16 bits


def _tensors(operands: Operands) -> list[Operand]:
    return [item for item in operands if item.is_tensor]


def _turned(operand: Operand) -> Operand:
    """Return a weight [..., out, in] as the second operand of a product."""
    shape, strides = operand.shape, operand.strides
    swapped = (*strides[:-2], *strides[:-3:-1]) if len(strides) == len(shape) else ()
    return operand._replace(shape=(*shape[:-2], *shape[:-3:-1]), strides=swapped)


# Products of quantized numbers


def _scaled(x: int, weight: int, out: int | None = None, *, is_turned: bool = True) -> Formula:
    """Return the formula of a product whose other tensors, scales and bias, are read. is_turned: a weight [out, in]."""

    def formula(operands: Operands) -> LeastWork:
        first, second = operands[x], operands[weight]
        others = [item for index, item in enumerate(operands) if item.is_tensor and index not in (x, weight, out)]
        size = _OUT_BYTES if out is None else operands[out].element_bytes
        return product(first, _turned(second) if is_turned else second, others, size)

    return formula


def _fp4(x: int, weight: int, out: int | None = None) -> Formula:
    """Return the formula of a product of 4-bit weights [out, in / 2], two in an element, with 4 bits or more."""

    def formula(operands: Operands) -> LeastWork:
        first, second = operands[x], operands[weight]
        *batch, columns, packed = second.shape
        rows = first.elements // first.shape[-1] // math.prod(batch)
        inner = packed * _FP4_BLOCKS
        if first.shape[-1] not in (packed, inner):
            raise ValueError("no product of 4-bit numbers")
        others = [item for index, item in enumerate(operands) if item.is_tensor and index not in (x, weight, out)]
        count = math.prod(batch) * rows * columns
        read = first.bytes + second.bytes + sum(item.bytes for item in others)
        size = _OUT_BYTES if out is None else operands[out].element_bytes
        kind = FP4 if first.shape[-1] == packed else KINDS[first.type]
        return LeastWork(MATMUL, 2 * count * inner, read, count * size, kind, second.bytes)

    return formula


def _marlin(operands: Operands) -> LeastWork:
    """Return the least work of `marlin_gemm(a, ..., packed weight, ..., workspace, type, m, n, k, ...)`."""
    x, weight = operands[0], operands[2]
    numbers = [item for item in operands if item.type == "Scalar"]
    rows, columns, inner = (item.numbers()[0] for item in numbers[1:4])
    if x.elements != rows * inner or min(rows, columns, inner) <= 0:
        raise ValueError("other sizes than those of the tensor")
    # The last tensor is a workspace.
    others = [item for item in operands[3:] if item.is_tensor][:-1]
    read = x.bytes + weight.bytes + sum(item.bytes for item in others)
    out = rows * columns * x.element_bytes
    return LeastWork(MATMUL, 2 * rows * columns * inner, read, out, KINDS[x.type], weight.bytes)


def _skinny(operands: Operands) -> LeastWork:
    """Return the least work of `wvSplitK(weight, x, bias, ...)` and `LLMM1(weight, x, ...)`."""
    return linear((operands[1], operands[0], *operands[2:3]))


def _quantized(x: int, *written: int) -> Formula:
    """Return the formula of a quantization: it reads a tensor, and writes others, its scales among them."""

    def formula(operands: Operands) -> LeastWork:
        source = operands[x]
        return LeastWork(QUANTIZATION, source.elements, source.bytes, sum(operands[index].bytes for index in written))

    return formula


# Mixtures of experts


def active(experts: int, chosen: int, tokens: int) -> float:
    """Return how many experts the tokens reach if each chooses at random, which a trace does not tell."""
    if not 0 < chosen <= experts:
        raise ValueError("no choice of experts")
    return experts * (1 - ((experts - chosen) / experts) ** tokens)


def _experts(x: int = 0, first: int = 1, second: int = 2, top: int = 3, out: int | None = None) -> Formula:
    """Return the formula of both products of the experts, and of the sum of what a token's experts give.

    first: weights [experts, inner or twice as many with gates, hidden]. second: [experts, hidden, inner]. top: a tensor
    [tokens, experts of a token], or their number.
    """

    def formula(operands: Operands) -> LeastWork:
        tokens_in, up, down, chosen = (operands[index] for index in (x, first, second, top))
        experts, rows, packed = up.shape
        hidden = down.shape[1]
        if down.shape[0] != experts or hidden % packed:
            raise ValueError("no weights of experts")
        inner = down.shape[2] * (hidden // packed)
        tokens = tokens_in.elements // tokens_in.shape[-1]
        if rows not in (inner, 2 * inner) or (out is not None and operands[out].elements != tokens * hidden):
            raise ValueError("no weights of experts")
        count = chosen.shape[1] if chosen.is_tensor else chosen.numbers()[0]
        flops = 2 * tokens * hidden * count * (rows + inner) + tokens * hidden * (2 * count - 1)
        weights = round(active(experts, count, tokens) * (up.bytes + down.bytes) / experts)
        size = tokens_in.element_bytes if out is None else operands[out].element_bytes
        kind = FP4 if packed != hidden and tokens_in.shape[-1] == packed else KINDS[tokens_in.type]
        return LeastWork(EXPERTS, flops, tokens_in.bytes + weights, tokens * hidden * size, kind, weights)

    return formula


def _expert_stage(operands: Operands) -> LeastWork:
    """Return the least work of `ck_moe_stage1(x, w1, w2, ..., out)`: the first product; out is [tokens, top, inner]."""
    x, up, down = operands[:3]
    out = operands[6]
    tokens, count, inner = out.shape
    experts, rows, packed = up.shape
    hidden = down.shape[1]
    if rows not in (inner, 2 * inner) or down.shape[0] != experts:
        raise ValueError("no weights of experts")
    weights = round(active(experts, count, tokens) * up.bytes / experts)
    kind = FP4 if packed != hidden and x.shape[-1] == packed else KINDS[x.type]
    return LeastWork(EXPERTS, 2 * tokens * hidden * count * rows, x.bytes + weights, out.bytes, kind, weights)


def _grouped(operands: Operands) -> LeastWork:
    """Return the least work of `cutlass_moe_mm(out, a, b, ...)`: rows of [rows, in] times one of [experts, in, out]."""
    out, x, weight = operands[:3]
    experts, inner, columns = weight.shape
    rows = x.elements // x.shape[-1]
    if x.shape[-1] != inner or out.elements != rows * columns:
        raise ValueError("no product of groups")
    weights = round(active(experts, 1, rows) * weight.bytes / experts)
    return LeastWork(EXPERTS, 2 * rows * inner * columns, x.bytes + weights, out.bytes, KINDS[x.type], weights)


# State-space models


def _selective_scan(operands: Operands) -> LeastWork:
    """Return the least work of `selective_scan_fwd(u, delta, A, B, C, D, z, bias, softplus, starts, ..., states, ...)`.

    Nine FLOPs for each number of a state at each position, two more for D and z of each (state-spaces/mamba#110). It
    writes the state of each sequence, and an output as large as u.
    """
    u, _, decay = operands[:3]
    channels, size = decay.shape
    if u.elements % channels:
        raise ValueError("no scan")
    flops = 9 * u.elements * size + u.elements * sum(item.is_tensor for item in operands[5:7])
    starts, states = operands[9], operands[12]
    sequences = max(0, starts.elements - 1) if starts.is_tensor else u.shape[0]
    read = sum(item.bytes for item in _tensors(operands[:8]))
    return LeastWork(SCAN, flops, read, u.bytes + sequences * channels * size * states.element_bytes)


def _causal_convolution(operands: Operands) -> LeastWork:
    """Return the least work of `causal_conv1d_fwd(x, weight, bias)`: x is [batch, channels, positions]."""
    x, weight = operands[:2]
    if len(x.shape) != 3 or x.shape[1] != weight.shape[0]:
        raise ValueError("no convolution of channels")
    read = x.bytes + weight.bytes + sum(item.bytes for item in operands[2:3] if item.is_tensor)
    return LeastWork(SCAN, 2 * x.elements * weight.shape[1], read, x.bytes)


def _combined_scan(operands: Operands) -> LeastWork:
    """Return the least work of Mamba 2's `MambaSplitConv1dScanCombinedFn`, chunk by chunk (arXiv 2405.21060).

    Its arguments: z, x, B, C and dt in one, weight and bias of the convolution, bias of dt, A, D, the length of a
    chunk, ..., sizes of a head (15) and number of groups (16).
    """
    x, weight, bias, dt_bias, decay, skip = operands[:6]
    (chunk,), (head,), (groups,) = (operands[index].numbers() for index in (6, 15, 16))
    batch, positions, width = x.shape
    heads = dt_bias.elements
    state, rest = divmod(width - 2 * heads * head - heads, 2 * groups)
    if rest or min(state, chunk, head, groups) <= 0 or weight.shape[0] != heads * head + 2 * groups * state:
        raise ValueError("no scan")
    places = batch * positions
    convolution = 2 * places * weight.elements
    within = 2 * places * chunk * (groups * state + heads * head)
    between = 4 * places * heads * head * state
    read = x.bytes + sum(item.bytes for item in (weight, bias, dt_bias, decay, skip))
    out = places * heads * head * x.element_bytes
    return LeastWork(SCAN, convolution + within + between, read, out, KINDS[x.type])


def _declared() -> dict[str, Formula]:
    formulas: dict[str, Formula] = {
        "_C::cutlass_scaled_mm": _scaled(1, 2, 0, is_turned=False),
        "_C::cutlass_scaled_mm_azp": _scaled(1, 2, 0, is_turned=False),
        "_C::cutlass_scaled_fp4_mm": _fp4(1, 2, 0),
        "_C::marlin_gemm": _marlin,
        "_C::gptq_marlin_gemm": _marlin,
        "_rocm_C::wvSplitK": _skinny,
        "_rocm_C::wvSplitKrc": _skinny,
        "_rocm_C::LLMM1": _skinny,
        "_rocm_C::wvSplitKQ": _scaled(1, 0, 3),
        "vllm::rocm_unquantized_gemm": linear,
        "vllm::rocm_per_tensor_float_w8a8_scaled_mm_impl": _scaled(0, 1, is_turned=False),
        "vllm::gemm_with_dynamic_quant": _fp4(0, 1),
        "sgl_kernel::fp8_scaled_mm": _scaled(0, 1, is_turned=False),
        "sgl_kernel::int8_scaled_mm": _scaled(0, 1, is_turned=False),
        "sgl_kernel::fp8_blockwise_scaled_mm": _scaled(0, 1, is_turned=False),
        "sgl_kernel::cutlass_scaled_fp4_mm": _fp4(1, 2, 0),
        "aiter::gemm_a4w4": _fp4(0, 1),
        "aiter::_gemm_a4w4_asm": _fp4(0, 1, 4),
        "aiter::gemm_afp4wfp4_": _fp4(0, 1, 5),
        "aiter::batched_gemm_a16wfp4_": _fp4(0, 1),
        "aiter::gemm_a16w16_atomic_": _scaled(0, 1, 3),
        "aiter::_gemm_a16w16_asm": _scaled(0, 1, 2),
        "_C::cutlass_moe_mm": _grouped,
        "aiter::ck_moe_stage1": _expert_stage,
        "aiter::fmoe_g1u1": _experts(1, 2, 3, 8, out=0),
        "aiter::fmoe_fp8_blockscale_g1u1": _experts(1, 2, 3, 8, out=0),
        "_C::selective_scan_fwd": _selective_scan,
        "DaoAILab::_causal_conv1d_fwd_cpp": _causal_convolution,
        "MambaSplitConv1dScanCombinedFn": _combined_scan,
        "_C::dynamic_scaled_fp8_quant": _quantized(1, 0, 2),
        "_C::dynamic_per_token_scaled_fp8_quant": _quantized(1, 0, 2),
        "_C::dynamic_scaled_int8_quant": _quantized(1, 0, 2),
        "_C::per_token_group_fp8_quant": _quantized(0, 1, 2),
        "_C::per_token_group_quant_int8": _quantized(0, 1, 2),
        "sgl_kernel::sgl_per_token_quant_fp8": _quantized(0, 1, 2),
        "aiter::dynamic_per_token_scaled_quant": _quantized(1, 0, 2),
        "aiter::dynamic_per_group_scaled_quant": _quantized(1, 0, 2),
        "aiter::dynamic_per_tensor_quant": _quantized(1, 0, 2),
    }
    weights_in_rows = (
        "vllm::rocm_aiter_gemm_a8w8_blockscale vllm::rocm_aiter_triton_gemm_a8w8_blockscale vllm::rocm_aiter_w8a8_gemm "
        "vllm::w8a8_triton_block_scaled_mm_func vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm "
        "sglang_profiler::fp8_utils_gemm_a8w8_blockscale sglang_profiler::gemm_a8w8_blockscale_gemm_a8w8_blockscale"
    )
    into_last = (
        "gemm_a8w8_ck gemm_a8w8_bpreshuffle_ck gemm_a8w8_blockscale_ck gemm_a8w8_blockscale_cktile "
        "gemm_a8w8_blockscale_bpreshuffle_ck gemm_a8w8_blockscale_bpreshuffle_cktile flatmm_a8w8_blockscale_asm"
    )
    experts = (
        "vllm::fused_experts vllm::inplace_fused_experts vllm::outplace_fused_experts vllm::rocm_aiter_fused_moe "
        "vllm::rocm_aiter_asm_moe_tkw1 sglang::inplace_fused_experts sglang::outplace_fused_experts aiter::fused_moe_"
    )
    formulas |= dict.fromkeys(weights_in_rows.split(), _scaled(0, 1))
    formulas |= {f"aiter::{name}": _scaled(0, 1, 4) for name in into_last.split()}
    return formulas | dict.fromkeys(experts.split(), _experts())


FORMULAS = _declared()
