"""Arguments of operators: shapes, strides, types and values, as torch.profiler records them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from contextlib import suppress
from itertools import zip_longest
from typing import NamedTuple

from molprof.analysis.reader.arguments import RecordedArguments, decode_arguments, values_in
from molprof.analysis.trace_processor import TraceProcessor

# Types as torch.profiler writes them (caffe2::TypeMeta and c10 types): torch's name, and bytes of an element.
TYPES = {
    "bool": ("bool", 1), "unsigned char": ("uint8", 1), "signed char": ("int8", 1), "short": ("int16", 2),
    "short int": ("int16", 2), "int": ("int32", 4), "long": ("int64", 8), "long int": ("int64", 8),
    "c10::Half": ("float16", 2), "c10::BFloat16": ("bfloat16", 2), "float": ("float32", 4), "double": ("float64", 8),
    "c10::complex<float>": ("complex64", 8), "c10::complex<double>": ("complex128", 16),
    "c10::Float8_e4m3fn": ("float8_e4m3fn", 1), "c10::Float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "c10::Float8_e5m2": ("float8_e5m2", 1), "c10::Float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "c10::Float8_e8m0fnu": ("float8_e8m0fnu", 1), "c10::Float4_e2m1fn_x2": ("float4_e2m1fn_x2", 1),
}  # fmt: skip
ELEMENT_BYTES = {name: size for name, (_, size) in TYPES.items()}
_LIST = "TensorList"
RECORD_SHAPES = "molprof capture --shapes and torch.profiler.profile(record_shapes=True) record them"
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")  # of 64 bits
_MOST = 1 << 40  # elements of a dimension; more is no size
_MOST_ELEMENTS = 1 << 62


class Operand(NamedTuple):
    """An argument of an operator: a tensor, tensors, or something else."""

    type: str = ""  # of elements, such as `c10::BFloat16`; `Scalar`, `ScalarList`, `TensorList`; '' for None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()  # in elements; () where not recorded
    value: str = ""  # of a number or list, as recorded
    parts: tuple[tuple[int, ...], ...] = ()  # shapes of a list of tensors

    @property
    def is_tensor(self) -> bool:
        """True if the operand is a tensor."""
        return self.type in ELEMENT_BYTES

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a tensor of one number."""
        return math.prod(self.shape)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element. Raises KeyError if the type is not one of tensors."""
        return ELEMENT_BYTES[self.type]

    @property
    def bytes(self) -> int:
        """Bytes of its elements that differ in memory; an expanded dimension counts once."""
        if len(self.strides) != len(self.shape):
            return self.elements * self.element_bytes
        return self.element_bytes * math.prod(
            size for size, stride in zip(self.shape, self.strides, strict=True) if stride or not size
        )

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of a list such as `[1, 1]`, or of one such as `-1`.

        Raises ValueError where one is not whole.
        """
        words = [item.strip() for item in self.value.strip("[] ").split(",") if item.strip()]
        if not all(map(_WHOLE.fullmatch, words)):
            raise ValueError(f"{self.value[:80]!r} is no list of whole numbers")
        return tuple(map(int, words))


Operands = tuple[Operand, ...]


def read_operands(engine: TraceProcessor, wanted: Collection[int]) -> dict[int, Operands]:
    """Return the arguments of these operators by slice, where recorded (record_shapes=True).

    An operator with a size that no tensor can have is left out too.
    """
    by_text: dict[bytes, Operands] = {}
    for text in (texts := engine.facts.arguments(wanted)).values():
        if text not in by_text:
            by_text[text] = ()
            with suppress(ValueError):
                by_text[text] = _operands(decode_arguments(text))
    return {item: by_text[text] for item, text in texts.items() if by_text[text]}


def arguments_text(operands: Operands) -> str:
    """Return shapes of tensors as text, those in lists too, such as `16x16x559x64, 1x1x559x64`."""
    shapes = (shape for item in operands for shape in (item.parts or (item.shape,)))
    return ", ".join("x".join(map(str, shape)) for shape in shapes if shape)


def _operands(recorded: RecordedArguments) -> Operands:
    """Return the operands of a call. Raises ValueError for a size that no tensor can have."""
    lists = recorded.input_dims, recorded.input_strides, recorded.input_type, recorded.concrete_inputs
    operands: list[Operand] = []
    last = 0
    for index, (dims, strides, types, values) in enumerate(zip_longest(*lists), 1):
        sizes, type_, value = list(values_in(dims)), next(values_in(types), None), next(values_in(values), None)
        if sizes or type_ is not None or value is not None or any(True for _ in values_in(strides)):
            last = index
        kind, text = ("" if item is None else str(item) for item in (type_, value))
        tensors = dims if isinstance(dims, list) else []
        if kind == _LIST or any(isinstance(item, list) and item for item in tensors):
            parts = (tuple(map(_size, values_in(item))) for item in tensors)
            operands.append(Operand(_LIST, parts=tuple(part for part in parts if part)))
        else:
            operands.append(Operand(kind, tuple(map(_size, sizes)), tuple(map(_size, values_in(strides))), text))
        if any(math.prod(filter(None, shape)) > _MOST_ELEMENTS for shape in (operands[-1].shape, *operands[-1].parts)):
            raise ValueError("more elements than a tensor can have")
    return tuple(operands[:last])


def _size(value: float | str) -> int:
    """Raise ValueError for what is no size of a tensor."""
    if not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError(f"{value!r} is no size of a tensor")
    return value
