"""Sizes of the inputs of operators, where the trace records shapes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from molprof.analysis.reader.arguments import decode_arguments, values_in
from molprof.analysis.trace_processor import TraceProcessor

Shapes = tuple[tuple[int, ...], ...]  # of each input of an operator; () for one without sizes, such as a number


def input_shapes(engine: TraceProcessor, wanted: Collection[int] | None = None) -> dict[int, Shapes]:
    """Sizes of the inputs of operators, by slice; of an input that is a list of tensors, one after the other.

    wanted: of these alone.
    """
    shapes: dict[bytes, Shapes] = {}
    for text in (texts := engine.facts.arguments(wanted)).values():
        if text not in shapes:
            dims = decode_arguments(text).input_dims
            inputs = [tuple(size for size in values_in(item) if isinstance(size, int)) for item in dims]
            last = max((index for index, sizes in enumerate(inputs, 1) if sizes), default=0)
            shapes[text] = tuple(inputs[:last])
    return {item: shapes[text] for item, text in texts.items() if shapes[text]}


def shapes_text(shapes: Iterable[Sequence[int]]) -> str:
    """Return sizes of inputs as text, such as `16x559x1024, 1024x1024`, without inputs that have none."""
    return ", ".join("x".join(map(str, sizes)) for sizes in shapes if sizes)
