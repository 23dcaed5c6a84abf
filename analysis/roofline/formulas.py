"""FLOPs and least bytes of operators by the shapes and types of their arguments: one formula for each operator.

FLOPs of products, convolutions and attention are counted as torch.utils.flop_counter counts them, two for each
multiplication and addition; causal attention as FlashAttention's authors do, half of it (`benchmark_flash_attention.py`
of Dao-AILab/flash-attention). Elementwise operators and reductions count one for each element; of others FLOPs are not
counted. Bytes are the least that an operator which is alone can move: each element of an input is read once, each of an
output written once. An operator without a formula has no figures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from molprof.analysis.roofline import serving
from molprof.analysis.roofline.operands import ELEMENT_BYTES, Operands
from molprof.analysis.roofline.paged import PAGED, Batch
from molprof.analysis.roofline.products import (
    Formula,
    LeastWork,
    attention,
    convolution,
    convolution_backward,
    linear,
    product,
    scaled,
)

NORM, SOFTMAX, POINTWISE, COPY = "normalization", "softmax", "elementwise", "copy"
REDUCTION, LOOKUP, CHOICE, FUSED = "reduction", "lookup", "sort or choice", "fused by inductor"
_INDEX_BYTES = 8
_MOST = 1 << 63  # FLOPs or bytes; more is of shapes that no call had
_FLOATS = ("double", "float", "c10::BFloat16", "c10::Half")
_ORDER = ("bool", "unsigned char", "signed char", "short int", "int", "long int", "c10::Half", "c10::BFloat16", "float")
# Of operators that touch a part of a tensor, in the name that inductor gives a kernel of several.
_PARTLY = re.compile(r"_(?:index|embedding|gather|scatter|slice|select|narrow|split)(?:_|$)")
# The number that SGLang's profile of shapes gives a name.
_NUMBERED = re.compile(r"^(sglang_profiler::\w+?)_\d+$")
_RANK = {name: rank for rank, name in enumerate((*_ORDER, "double"))}


def is_paged(operator: str) -> bool:
    """Return True for attention over a cache in pages, whose work depends on the sequences of its step."""
    return _NUMBERED.sub(r"\1", operator) in PAGED


def work_of(
    operator: str, operands: Operands, listed_bytes: int | None = None, batch: Batch | None = None
) -> LeastWork | None:
    """Return the least work of a call with these arguments; None without a formula for the operator, or without shapes.

    listed_bytes: bytes of an element of listed tensors, whose type is not recorded. batch: the sequences of its step,
    which attention over a cache in pages needs.
    """
    operator = _NUMBERED.sub(r"\1", operator)
    paged = PAGED.get(operator)
    formula = FORMULAS.get(operator) or _by_prefix(operator)
    work: LeastWork | None = None
    try:
        if paged is not None:
            work = paged(operands, batch) if batch is not None else None
        elif operator in LISTED:
            work = None if listed_bytes is None else _cat(operands, listed_bytes)
        elif formula is not None:
            work = formula(operands)
    # Other arguments than the operator has, or without shapes or types.
    except (IndexError, KeyError, ValueError, ZeroDivisionError):
        return None
    return None if work is None or max(work.flops or 0, work.bytes) >= _MOST else work


# What reads and writes each element once


def _wider(types: Iterable[str]) -> str:
    return max(types, key=lambda name: _RANK[name])


def _result_type(operands: Operands) -> str:
    """Return the type by torch's promotion: tensors without dimensions count only if they are of a higher kind."""
    tensors = [item for item in operands if item.is_tensor]
    full = [item.type for item in tensors if item.shape] or [item.type for item in tensors]
    widest = _wider(full)
    # A Python float beside integers makes the default type.
    if widest not in _FLOATS and any(item.type in _FLOATS for item in tensors):
        return "float"
    return widest


def _broadcast(shapes: Iterable[tuple[int, ...]]) -> int:
    """Return the number of elements of the result. Raises ValueError where the shapes do not fit."""
    sizes: list[int] = []
    for shape in shapes:
        sizes = [1] * (len(shape) - len(sizes)) + sizes
        for index, size in enumerate(shape, len(sizes) - len(shape)):
            if size != 1 and sizes[index] not in (1, size):
                raise ValueError("shapes that do not fit")
            sizes[index] = sizes[index] if size == 1 else size
    return math.prod(sizes)


def _pointwise(out: str | None = None, *, in_place: bool = False, floating: bool = False, flops: int = 1) -> Formula:
    """Return a formula. out: the type of the result, if not that of the arguments. floating: integers give floats."""

    def formula(operands: Operands) -> LeastWork:
        tensors = [item for item in operands if item.is_tensor]
        count = _broadcast(item.shape for item in tensors)
        kind = out or (tensors[0].type if in_place else _result_type(operands))
        if floating and kind not in _FLOATS:
            kind = "float"
        read = sum(item.bytes for item in tensors)
        return LeastWork(POINTWISE, flops * count, read, count * ELEMENT_BYTES[kind])

    return formula


def _copy(operands: Operands) -> LeastWork:
    """Return the least work of `copy_(out, source)`."""
    out, source = operands[:2]
    return LeastWork(COPY, None, source.bytes, out.elements * out.element_bytes)


def _cat(operands: Operands, element_bytes: int = 0) -> LeastWork:
    """Return the least work of `cat(tensors, dim)`."""
    count = sum(map(math.prod, operands[0].parts)) * element_bytes
    if not count:
        raise ValueError("the type of the tensors is not recorded")
    return LeastWork(COPY, None, count, count)


def _filled(operands: Operands) -> LeastWork:
    return LeastWork(POINTWISE, None, 0, operands[0].bytes)


def _random(operands: Operands) -> LeastWork:
    return LeastWork(POINTWISE, operands[0].elements, 0, operands[0].bytes)


def _where(operands: Operands) -> LeastWork:
    condition, *values = [item for item in operands if item.is_tensor]
    count = _broadcast(item.shape for item in (condition, *values))
    kind = _wider(item.type for item in values)
    read = condition.bytes + sum(item.bytes for item in values)
    return LeastWork(POINTWISE, count, read, count * ELEMENT_BYTES[kind])


def _layer_norm(operands: Operands) -> LeastWork:
    """Return the least work of `native_layer_norm(x, shape, weight, bias, eps)`, and others with the same weights."""
    x = operands[0]
    weights = sum(item.bytes for item in operands[1:] if item.is_tensor)
    return LeastWork(NORM, None, x.bytes + weights, x.bytes, must_bytes=weights)


def _norm_backward(operands: Operands) -> LeastWork:
    """Return the least work of a norm's backward: it reads gradient and input, the first two, and writes a gradient."""
    first, second = operands[:2]
    return LeastWork(NORM, None, first.bytes + second.bytes, first.bytes)


def _norm_into(operands: Operands) -> LeastWork:
    """Return the least work of `rms_norm(out, x, weight, eps)`."""
    out, x, weight = operands[:3]
    return LeastWork(NORM, None, x.bytes + weight.bytes, out.bytes, must_bytes=weight.bytes)


def _add_norm(operands: Operands) -> LeastWork:
    """Return the least work of `fused_add_rms_norm(x, residual, weight, eps)`: it reads and writes x and residual."""
    x, residual, weight = operands[:3]
    both = x.bytes + residual.bytes
    return LeastWork(NORM, None, both + weight.bytes, both, must_bytes=weight.bytes)


def _gated(operands: Operands) -> LeastWork:
    """Return the least work of `silu_and_mul(out, x)`: it reads twice as many elements as it writes."""
    out, x = operands[:2]
    if x.elements != 2 * out.elements:
        raise ValueError("not one gate for each element")
    return LeastWork(POINTWISE, None, x.bytes, out.bytes)


def _rotary(operands: Operands) -> LeastWork:
    """Return the work of `rotary_embedding(positions, query, key, head_size, cos_sin, ...)`: both change."""
    positions, *turned = operands[:3]
    both = sum(item.bytes for item in turned)
    return LeastWork(POINTWISE, None, both + positions.bytes, both)


def _into_cache(operands: Operands) -> LeastWork:
    """Return the work of `reshape_and_cache_flash(key, value, key_cache, value_cache, slots, ...)`: it writes rows."""
    key, value, key_cache = operands[:3]
    return LeastWork(COPY, None, key.bytes + value.bytes, (key.elements + value.elements) * key_cache.element_bytes)


def _add_norm_into(operands: Operands) -> LeastWork:
    """Return the least work of `add_rmsnorm(out, x, residual, new residual, weight, eps)`."""
    out, x, residual, new, weight = operands[:5]
    read = x.bytes + residual.bytes + weight.bytes
    return LeastWork(NORM, None, read, out.bytes + new.bytes, must_bytes=weight.bytes)


def _quantized(operands: Operands) -> LeastWork:
    """Return the least work of `static_scaled_fp8_quant(out, x, scale)`."""
    out, x = operands[:2]
    return LeastWork(POINTWISE, x.elements, x.bytes, out.bytes)


def _softmax(operands: Operands) -> LeastWork:
    """Return the least work of `_softmax(x, dim, half_to_float)`."""
    x = operands[0]
    wide = 4 if operands[2].value.lower() == "true" else x.element_bytes
    return LeastWork(SOFTMAX, None, x.bytes, x.elements * wide)


def _reduction(dim: int | None = 1, out: str | None = None, pairs: bool = False) -> Formula:
    """Return the formula of a reduction over the dimensions in argument `dim`, or over all. pairs: with indices."""

    def formula(operands: Operands) -> LeastWork:
        x = operands[0]
        dims = operands[dim].numbers() if dim is not None and len(operands) > dim else ()
        kept = list(x.shape)
        for index in dims:
            kept[index] = 1
        count = math.prod(kept) if dims else 1
        size = ELEMENT_BYTES[out] if out else x.element_bytes
        if pairs and dims:
            size += _INDEX_BYTES
        return LeastWork(REDUCTION, x.elements, x.bytes, count * size)

    return formula


# Rows of tables, and order


def _index_fill(operands: Operands) -> LeastWork:
    """Return the least work of `index_fill_(target, dim, index, value)`: it writes one number at the given indices."""
    target, dim, index = operands[:3]
    (axis,) = dim.numbers()
    count = target.elements // target.shape[axis] * index.elements
    return LeastWork(POINTWISE, None, index.bytes, count * ELEMENT_BYTES[target.type])


def _index_copy(operands: Operands) -> LeastWork:
    """Return the least work of `index_copy_(target, dim, index, source)`."""
    target, _, index, source = operands[:4]
    return LeastWork(COPY, None, source.bytes + index.bytes, source.elements * target.element_bytes)


def _index_select(operands: Operands) -> LeastWork:
    """Return the least work of `index_select(table, dim, index)`."""
    table, dim, index = operands[:3]
    (axis,) = dim.numbers()
    count = table.elements // table.shape[axis] * index.elements * table.element_bytes
    return LeastWork(LOOKUP, None, count + index.bytes, count, must_bytes=count)


def _embedding(operands: Operands) -> LeastWork:
    """Return the least work of `embedding(table, index, ...)`."""
    table, index = operands[:2]
    count = index.elements * table.shape[-1] * table.element_bytes
    return LeastWork(LOOKUP, None, count + index.bytes, count, must_bytes=count)


def _gather(operands: Operands) -> LeastWork:
    """Return the least work of `gather(x, dim, index)`."""
    x, _, index = operands[:3]
    count = index.elements * x.element_bytes
    return LeastWork(LOOKUP, None, count + index.bytes, count)


def _sort(operands: Operands) -> LeastWork:
    (x, *_) = [item for item in operands if item.is_tensor]
    return LeastWork(CHOICE, None, x.bytes, x.elements * (x.element_bytes + _INDEX_BYTES))


def _topk(operands: Operands) -> LeastWork:
    """Return the least work of `topk(x, k, dim, ...)`."""
    x = operands[0]
    ((count,), (axis,)) = operands[1].numbers(), operands[2].numbers()
    chosen = x.elements // x.shape[axis] * count
    return LeastWork(CHOICE, None, x.bytes, chosen * (x.element_bytes + _INDEX_BYTES))


def _scan(operands: Operands) -> LeastWork:
    """Return the least work of `cumsum(x, dim, dtype)`: sums of integers have 64 bits."""
    x = operands[0]
    wide = x.element_bytes if x.type in _FLOATS else _INDEX_BYTES
    return LeastWork(CHOICE, None, x.bytes, x.elements * wide)


def _multinomial(operands: Operands) -> LeastWork:
    x = operands[0]
    return LeastWork(CHOICE, None, x.bytes, x.elements // x.shape[-1] * _INDEX_BYTES)


def _touched(operands: Operands) -> LeastWork:
    """Return the least work of a kernel of inductor: it reads or writes each given tensor at least once."""
    return LeastWork(FUSED, None, sum(item.bytes for item in operands if item.is_tensor), 0)


_SAME = (
    "add sub rsub mul neg abs relu gelu silu hardtanh leaky_relu clamp clamp_min clamp_max maximum minimum remainder "
    "floor_divide bitwise_and bitwise_or bitwise_xor bitwise_not __and__ __or__ __lshift__ __rshift__ addcmul addcdiv "
    "lerp pow square sign floor ceil round trunc masked_fill threshold threshold_backward gelu_backward silu_backward "
    "tanh_backward sigmoid_backward fill_diagonal"
)
_FLOATING = "div exp exp2 expm1 log log2 log1p sqrt rsqrt reciprocal sin cos tan tanh sigmoid erf true_divide"
_TRUTH = "eq ne lt le gt ge logical_and logical_or logical_xor logical_not isnan isinf isfinite isin"


def _declared() -> dict[str, Formula]:
    formulas: dict[str, Formula] = {}
    for names, out, floating in ((_SAME, None, False), (_FLOATING, None, True), (_TRUTH, "bool", False)):
        for name in names.split():
            formulas[name] = _pointwise(out, floating=floating)
            formulas[f"{name}_"] = _pointwise(in_place=True)
    formulas |= {
        "mm": lambda operands: product(operands[0], operands[1]),
        "bmm": lambda operands: product(operands[0], operands[1]),
        "_int_mm": lambda operands: product(operands[0], operands[1], out_bytes=4),
        "addmm": lambda operands: product(operands[1], operands[2], operands[:1]),
        "addmm_": lambda operands: product(operands[1], operands[2], operands[:1]),
        "_addmm_activation": lambda operands: product(operands[1], operands[2], operands[:1]),
        "baddbmm": lambda operands: product(operands[1], operands[2], operands[:1]),
        "baddbmm_": lambda operands: product(operands[1], operands[2], operands[:1]),
        "_scaled_mm": scaled,
        "linear": linear,
        "cudnn_convolution": convolution(2, 5, (0, 1, 2)),
        "miopen_convolution": convolution(3, 6, (0, 1, 2)),
        "miopen_depthwise_convolution": convolution(3, 6, (0, 1, 2)),
        "_conv_depthwise2d": convolution(3, 7, (2, 1, 3)),
        "convolution": convolution(3, 8, (1, 0, 2)),
        "convolution_backward": convolution_backward,
        "scaled_dot_product_attention": attention(5, masks=(3,)),
        "_scaled_dot_product_flash_attention": attention(4),
        "_scaled_dot_product_efficient_attention": attention(6, masks=(3,)),
        "_scaled_dot_product_cudnn_attention": attention(6, masks=(3,)),
        "_flash_attention_forward": attention(8, positions=1, lengths=3),
        "_efficient_attention_forward": attention(9, positions=1, lengths=4, masks=(3,)),
        "native_layer_norm": _layer_norm,
        "batch_norm": _layer_norm,
        "native_group_norm": _layer_norm,
        "_fused_rms_norm": _layer_norm,
        "cudnn_batch_norm": _layer_norm,
        "miopen_batch_norm": _layer_norm,
        "native_batch_norm": _layer_norm,
        "cudnn_batch_norm_backward": _norm_backward,
        "miopen_batch_norm_backward": _norm_backward,
        "native_layer_norm_backward": _norm_backward,
        "_softmax": _softmax,
        "_log_softmax": _softmax,
        "copy_": _copy,
        "cat": _cat,
        "fill_": _filled,
        "index_fill_": _index_fill,
        "index_copy_": _index_copy,
        "zero_": _filled,
        "uniform_": _random,
        "normal_": _random,
        "exponential_": _random,
        "where": _where,
        "sum": _reduction(),
        "mean": _reduction(),
        "prod": _reduction(),
        "amax": _reduction(),
        "amin": _reduction(),
        "std": _reduction(),
        "var": _reduction(),
        "logsumexp": _reduction(),
        "linalg_vector_norm": _reduction(2),
        "argmax": _reduction(out="long int"),
        "argmin": _reduction(out="long int"),
        "all": _reduction(out="bool"),
        "any": _reduction(out="bool"),
        "max": _reduction(pairs=True),
        "min": _reduction(pairs=True),
        "index_select": _index_select,
        "embedding": _embedding,
        "gather": _gather,
        "sort": _sort,
        "topk": _topk,
        "cumsum": _scan,
        "multinomial": _multinomial,
    }
    # Arguments in the order of their schemas: vLLM csrc/torch_bindings.cpp, sgl-kernel csrc/common_extension.cc, aiter.
    engines: dict[str, Formula] = {
        "_C::rms_norm": _norm_into,
        "_C::fused_add_rms_norm": _add_norm,
        "_C::static_scaled_fp8_quant": _quantized,
        "_C_cache_ops::reshape_and_cache": _into_cache,
        "_C_cache_ops::reshape_and_cache_flash": _into_cache,
        "_C_cache_ops::concat_and_cache_mla": _into_cache,
        "sgl_kernel::rmsnorm": _norm_into,
        "sgl_kernel::fused_add_rmsnorm": _add_norm,
        "sglang::store_cache": _into_cache,
        "aiter::rmsnorm": _norm_into,
        "aiter::add_rmsnorm": _add_norm_into,
        "aiter::rmsnorm2d_fwd_with_add_ck": _add_norm_into,
        "aiter::rms_norm": _layer_norm,
        "aiter::gemm_a16w16": linear,
    }
    for library in ("_C", "sgl_kernel"):
        engines |= {f"{library}::{name}_and_mul": _gated for name in ("silu", "gelu", "gelu_tanh")}
        engines[f"{library}::rotary_embedding"] = _rotary
    return {**{f"aten::{name}": formula for name, formula in formulas.items()}, **engines, **serving.FORMULAS}


FORMULAS = _declared()
LISTED = frozenset({"aten::cat"})


def _by_prefix(operator: str) -> Formula | None:
    """Return the formula of an operator whose name has a program's suffix."""
    if not operator.startswith(("triton_poi_", "triton_red_", "triton_per_")):
        return None
    return None if _PARTLY.search(operator) else _touched
