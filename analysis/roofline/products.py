"""FLOPs and least bytes of matrix products, convolutions and attention; `LeastWork`, the result of all formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from molprof.analysis.roofline.operands import Operand, Operands
from molprof.analysis.roofline.peaks import KINDS, VECTOR

MATMUL, CONVOLUTION, ATTENTION = "matrix product", "convolution", "attention"


class LeastWork(Struct, frozen=True):
    """The least work of one call of an operator."""

    family: str
    flops: int | None  # None: not counted, as memory bounds it
    read_bytes: int
    written_bytes: int
    kind: str = VECTOR  # of the numbers that are multiplied (`peaks.KINDS`)
    # Of the bytes, those of second operands of products (weights), of keys and values, and of rows of tables: no fusion
    # spares them.
    must_bytes: int = 0

    @property
    def bytes(self) -> int:
        """The bytes that are read and written."""
        return self.read_bytes + self.written_bytes


Formula = Callable[[Operands], LeastWork]


# Products of matrices


def product(first: Operand, second: Operand, others: Iterable[Operand] = (), out_bytes: int | None = None) -> LeastWork:
    """Return the work of [..., m, k] x [..., k, n]. others: added tensors. out_bytes: per element, else as `first`."""
    *batch, rows, inner = first.shape
    columns = second.shape[-1]
    if second.shape[-2] != inner or list(second.shape[:-2]) != batch:
        raise ValueError("no product of matrices")
    count = math.prod(batch) * rows * columns
    return LeastWork(
        MATMUL,
        2 * count * inner,
        first.bytes + second.bytes + sum(other.bytes for other in others),
        count * (out_bytes or first.element_bytes),
        KINDS[first.type],
        must_bytes=second.bytes,
    )


def scaled(operands: Operands) -> LeastWork:
    """Return the work of _scaled_mm(a, b, scale_a, scale_b, bias, scale_result, out_dtype, ...): a 16-bit output."""
    scales = [item for item in operands[2:6] if item.is_tensor]
    return product(operands[0], operands[1], scales, out_bytes=2)


def linear(operands: Operands) -> LeastWork:
    """Return the least work of `linear(x, weight, bias)`."""
    first, weight = operands[0], operands[1]
    turned = weight._replace(shape=weight.shape[::-1], strides=weight.strides[::-1])
    flat = first._replace(shape=(math.prod(first.shape[:-1]), first.shape[-1]), strides=())
    return product(flat, turned, [item for item in operands[2:3] if item.is_tensor])


# Convolutions: input, weight, bias where the operator has one, then padding, stride, dilation, groups


def convolution(first: int, groups: int, order: Sequence[int]) -> Formula:
    """Return a formula. first: index of the first list. order: offsets of padding, stride and dilation from it."""

    def formula(operands: Operands) -> LeastWork:
        x, weight = operands[0], operands[1]
        padding, stride, dilation = (operands[first + offset].numbers() for offset in order)
        sizes = [
            (size + 2 * pad - step * (kernel - 1) - 1) // jump + 1
            for size, kernel, pad, jump, step in zip(
                x.shape[2:], weight.shape[2:], padding, stride, dilation, strict=True
            )
        ]
        if operands[groups].numbers() != (x.shape[1] // weight.shape[1],):
            raise ValueError("transposed, or no convolution")
        count = x.shape[0] * weight.shape[0] * math.prod(sizes)
        bias = [item for item in operands[2:first] if item.is_tensor]
        return LeastWork(
            CONVOLUTION,
            2 * count * math.prod(weight.shape[1:]),
            x.bytes + weight.bytes + sum(item.bytes for item in bias),
            count * x.element_bytes,
            KINDS[x.type],
            must_bytes=weight.bytes,
        )

    return formula


def convolution_backward(operands: Operands) -> LeastWork:
    """Return the least work of `convolution_backward(grad, input, weight, ..., output_mask)`.

    It is a product for each gradient that is asked for.
    """
    grad, x, weight = operands[:3]
    is_asked = [word.strip(" []").lower() in ("true", "1") for word in operands[10].value.split(",")]
    products = sum(is_asked[:2])
    written = [item.bytes for item, wanted in zip((x, weight), is_asked, strict=False) if wanted]
    flops = 2 * grad.elements * math.prod(weight.shape[1:]) * products
    return LeastWork(CONVOLUTION, flops, grad.bytes + x.bytes + weight.bytes, sum(written), KINDS[x.type], weight.bytes)


# Attention: queries, keys and values of [batch, heads, positions, size], or positions before heads


def attention(causal: int, *, positions: int = 2, lengths: int | None = None, masks: Sequence[int] = ()) -> Formula:
    """Return a formula. causal: index of the argument that says so. positions: index of the positions in a shape.

    lengths: index of the argument that holds the lengths of sequences in one row, whose FLOPs are not known.
    """

    def formula(operands: Operands) -> LeastWork:
        query, key, value = operands[:3]
        if len(query.shape) != 4 or (lengths is not None and operands[lengths].is_tensor):
            raise ValueError("sequences of several lengths in one row")
        heads = query.shape[3 - positions]
        queries, keys = query.shape[positions], key.shape[positions]
        pairs = query.shape[0] * heads * queries * keys
        flops = 2 * pairs * (query.shape[3] + value.shape[3])
        is_causal = operands[causal].value.lower() not in ("false", "0", "")
        read = sum(item.bytes for item in (query, key, value))
        read += sum(operands[index].bytes for index in masks if operands[index].is_tensor)
        out = query.elements // query.shape[3] * value.shape[3] * query.element_bytes
        cache = key.bytes + value.bytes
        return LeastWork(
            ATTENTION, flops // 2 if is_causal and queries == keys else flops, read, out, KINDS[query.type], cache
        )

    return formula
