"""Sizes of the inputs of operators, where the trace records shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows

# Inputs by number. The trace processor keeps the order of a list.
_SIZES = Query(
    "origin",
    """
SELECT slice.id, CAST(SUBSTR(args.key, LENGTH('args.Input Dims[') + 1) AS INT) AS input, args.int_value
FROM slice JOIN args USING (arg_set_id)
WHERE slice.category = 'cpu_op' AND args.flat_key = 'args.Input Dims' AND args.int_value IS NOT NULL
ORDER BY slice.id, input, args.id
""",
)

Shapes = tuple[tuple[int, ...], ...]  # of each input of an operator; () for one without sizes, such as a number


def input_shapes(engine: TraceProcessor) -> dict[int, Shapes]:
    """Return sizes of operators' inputs by slice; a list of tensors counts as one tensor after the other."""
    sizes: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for slice_id, number, size in query_rows(engine, _SIZES)[1]:
        sizes[slice_id][number].append(size)
    return {
        slice_id: tuple(tuple(inputs.get(number, ())) for number in range(max(inputs) + 1))
        for slice_id, inputs in sizes.items()
    }


def shapes_text(shapes: Iterable[Sequence[int]]) -> str:
    """Return sizes of inputs as text, such as `16x559x1024, 1024x1024`, without inputs that have none."""
    return ", ".join("x".join(map(str, sizes)) for sizes in shapes if sizes)
