"""Sizes of the inputs of operators, where the trace records shapes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows

_SIZES = Query(
    "origin",
    """
SELECT slice.id, args.key, args.int_value
FROM slice JOIN args USING (arg_set_id)
WHERE slice.category = 'cpu_op' AND args.flat_key = 'args.Input Dims' AND args.int_value IS NOT NULL
ORDER BY slice.id, args.id
""",
)
_PLACES = re.compile(r"\[(\d+)\]")

Shapes = tuple[tuple[int, ...], ...]  # of each input of an operator; () for one without sizes, such as a number


def input_shapes(engine: TraceProcessor) -> dict[int, Shapes]:
    """Sizes of the inputs of operators, by slice."""
    sizes: defaultdict[int, dict[tuple[int, ...], int]] = defaultdict(dict)
    for slice_id, key, size in query_rows(engine, _SIZES)[1]:
        sizes[slice_id][tuple(map(int, _PLACES.findall(key)))] = size
    return {slice_id: _nested(found) for slice_id, found in sizes.items()}


def _nested(sizes: dict[tuple[int, ...], int]) -> Shapes:
    """Inputs in order; of an input that is a list of tensors, their sizes one after the other."""
    inputs: list[list[int]] = [[] for _ in range(max(place[0] for place in sizes) + 1)]
    for place in sorted(sizes):
        inputs[place[0]].append(sizes[place])
    return tuple(map(tuple, inputs))


def shapes_text(shapes: Iterable[Sequence[int]]) -> str:
    """Sizes of inputs, such as `16x559x1024, 1024x1024`; those without left out."""
    return ", ".join("x".join(map(str, sizes)) for sizes in shapes if sizes)
