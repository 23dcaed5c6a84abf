"""Copies of whole logits tensors (batch x vocabulary) in the processor or while sampling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_rows
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings.operators import Operators, read_operators
from molprof.analysis.findings.rule import Rule
from molprof.analysis.findings.scope import LEAST_GAIN, Scope
from molprof.common.values import count_text, number_text, short_name, time_text

PHASES = ("processor", "sampling")
# transformers hands processors and sampling a float32 copy of the last logits.
_BYTES_PER_LOGIT = 4
# No memory is faster, so a shorter call did not copy all logits. Even an empty call takes the least time.
_FASTEST_GPU_BYTES_PER_NS, _LEAST_GPU_NS = 8000, 3_000
_FASTEST_CPU_BYTES_PER_NS, _LEAST_CPU_NS = 500, 50_000
_LEAST_PER_STEP = 0.5

_COPIES = ("aten::copy_", "aten::clone", "aten::masked_fill", "aten::where", "aten::index", "aten::index_put_")
_KERNELS = """
INCLUDE PERFETTO MODULE molprof.placement;
SELECT work.name, COUNT() AS count, SUM(work.dur) AS time_ns
FROM molprof_work_phase AS place
JOIN molprof_gpu_work AS work ON work.id = place.id
JOIN molprof_phase AS phase ON phase.id = place.phase_id
JOIN molprof_work_class AS class ON class.category = work.category AND class.name = work.name
WHERE phase.phase IN ('processor', 'sampling') AND class.class IN ('copy', 'memcpy DtoD') AND work.dur >= {least}
GROUP BY work.name
ORDER BY time_ns DESC, work.name
"""
_QUERY = (
    "SELECT phase.phase, slice.name, COUNT() AS calls, SUM(slice.dur) AS time_ns, MAX(slice.dur) AS longest_ns"
    " FROM molprof_call_phase AS place JOIN molprof_phase AS phase ON phase.id = place.phase_id"
    " JOIN slice ON slice.id = place.id WHERE phase.phase IN ('processor', 'sampling')"
    " GROUP BY phase.phase, slice.name ORDER BY time_ns DESC, slice.name"
)


def _find(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Fires where at least every second step has a copy in these phases that takes as long as the fastest memory needs
    to read and write rows x logits width x 4 bytes. Sizes are not recorded, but nothing else there is as large.

    Gain: the time of those copies on the GPU, and of copying operators on the host.
    """
    run = report.run
    if run is None or scope is None or not scope.steps:
        return
    rows = min(run.setup.batch_size, run.molecules)
    moved_bytes = 2 * rows * run.setup.logits_width * _BYTES_PER_LOGIT
    operators = read_operators(engine, *_COPIES).within(PHASES)
    if run.window.gpu_recorded:
        least_ns = max(_LEAST_GPU_NS, round(moved_bytes / _FASTEST_GPU_BYTES_PER_NS))
        _, kernels = query_rows(engine, Query("kernel_classes", _KERNELS.format(least=least_ns)))
        count, time_ns = (sum(row[column] for row in kernels) for column in (1, 2))
    else:
        least_ns = max(_LEAST_CPU_NS, round(moved_bytes / _FASTEST_CPU_BYTES_PER_NS))
        operators = operators.where(operators.ends - operators.starts >= least_ns)
        count, time_ns = len(operators), operators.host_ns()
    if count < _LEAST_PER_STEP * scope.steps:
        return
    gain = scope.host_parts(operators.host_times(PHASES)) + (scope.gpu_part(time_ns) if run.window.gpu_recorded else 0)
    if gain < LEAST_GAIN:
        return
    name = short_name(kernels[0][0]) if run.window.gpu_recorded else _longest(operators)
    figures = {
        "copies_per_step": count / scope.steps,
        "copy_ns": time_ns,
        "least_ns": least_ns,
        "rows": rows,
        "logits_width": run.setup.logits_width,
    }
    yield Finding(
        id="vocabulary_copies",
        title="Whole logits tensors are copied",
        evidence=(
            f"{number_text(count / scope.steps)} copies per step in processor and sampling take {time_text(least_ns)} "
            f"or longer, enough for {rows} x {count_text(run.setup.logits_width)} logits: {time_text(time_ns)} in all, "
            f"most of it in {name}"
        ),
        gain_ratio=min(1.0, gain),
        fix="Mask in place (masked_fill_, index_fill_) in one tensor, without a clone or a tensor of -inf per step.",
        explanation="A copy reads and writes one number per row and vocabulary entry, far more than a mask changes.",
        query=_QUERY,
        figures=figures,
    )


def _longest(operators: Operators) -> str:
    """The name that takes most of the time."""
    names, places = np.unique(operators.names.astype(str), return_inverse=True)
    return str(names[np.bincount(places, operators.ends - operators.starts).argmax()])


RULE = Rule(("vocabulary_copies",), _find)
