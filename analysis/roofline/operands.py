"""Arguments of operators: shapes, strides, types and values, as torch.profiler records them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows

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
# The trace processor keeps the order of a list, and has no rows for an empty one.
_ARGUMENTS = Query(
    "origin",
    """
SELECT slice.id, args.key, args.int_value, args.string_value
FROM slice JOIN args USING (arg_set_id)
WHERE slice.category = 'cpu_op' AND args.flat_key IN
  ('args.Input Dims', 'args.Input Strides', 'args.Input type', 'args.Concrete Inputs')
ORDER BY slice.id, args.id
""",
)
_KEY = re.compile(r"args\.(Input Dims|Input Strides|Input type|Concrete Inputs)((?:\[\d+\])+)")
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

    An operator with a size that no tensor can have is left out too. The trace must be loaded with all arguments.
    """
    recorded: defaultdict[int, defaultdict[tuple[str, int], list[tuple[tuple[int, ...], int | str]]]]
    recorded, wanted = defaultdict(lambda: defaultdict(list)), frozenset(wanted)
    for slice_id, key, number, text in query_rows(engine, _ARGUMENTS)[1]:
        if slice_id in wanted and (match := _KEY.fullmatch(key)):
            first, *rest = (int(part) for part in re.findall(r"\d+", match[2]))
            recorded[slice_id][match[1], first].append((tuple(rest), text if number is None else number))
    operands: dict[int, Operands] = {}
    for slice_id, arguments in recorded.items():
        with suppress(ValueError):
            operands[slice_id] = _operands(arguments)
    return operands


def arguments_text(operands: Operands) -> str:
    """Return shapes of tensors as text, those in lists too, such as `16x16x559x64, 1x1x559x64`."""
    shapes = (shape for item in operands for shape in (item.parts or (item.shape,)))
    return ", ".join("x".join(map(str, shape)) for shape in shapes if shape)


def _operands(arguments: dict[tuple[str, int], list[tuple[tuple[int, ...], int | str]]]) -> Operands:
    """Return the operands of a call. Raises ValueError for a size that no tensor can have."""
    operands = []
    for index in range(1 + max(index for _, index in arguments)):
        type_ = next((str(value) for _, value in arguments.get(("Input type", index), ())), "")
        sizes = arguments.get(("Input Dims", index), [])
        value = next((str(value) for _, value in arguments.get(("Concrete Inputs", index), ())), "")
        if type_ == _LIST or any(len(where) > 1 for where, _ in sizes):
            parts: defaultdict[int, list[int]] = defaultdict(list)
            for where, size in sizes:
                parts[where[0]].append(_size(size))
            operands.append(Operand(_LIST, parts=tuple(tuple(parts[part]) for part in sorted(parts))))
        else:
            strides = (_size(stride) for _, stride in arguments.get(("Input Strides", index), ()))
            operands.append(Operand(type_, tuple(_size(size) for _, size in sizes), tuple(strides), value))
        if any(math.prod(filter(None, shape)) > _MOST_ELEMENTS for shape in (operands[-1].shape, *operands[-1].parts)):
            raise ValueError("more elements than a tensor can have")
    return tuple(operands)


def _size(value: int | str) -> int:
    """Return the size of a tensor's dimension. Raises ValueError for what is none."""
    if not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError(f"{value!r} is no size of a tensor")
    return value
