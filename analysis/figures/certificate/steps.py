"""Check: all steps of a kind have GPU work, or none has."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_rows
from molprof.analysis.figures.certificate.model import Bound, Check, Doubt, Facts
from molprof.analysis.reader import TraceInfo
from molprof.common.values import count_text

_STEPS = Query(
    "certificate_steps",
    "SELECT source, kind, steps, steps_without_work, steps_with_launches_only, kernels, gpu_ns, most_kernels,"
    " most_gpu_ns FROM molprof_uneven_step ORDER BY source, kind",
)


def _find(engine: Engine, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    columns, rows = query_rows(engine, _STEPS)
    for values in rows:
        row = dict(zip(columns, values, strict=True))
        steps, without = row["steps"], row["steps_without_work"]
        kind = f"{row['kind']} steps" if row["kind"] else "steps"
        bounds = []
        for name, part in (("kernels_per_step", "kernels"), ("gpu_per_step_ns", "gpu_ns")):
            # At most, the steps without work were like the largest of the others.
            low, high = row[part] / steps, (row[part] + without * row[f"most_{part}"]) / steps
            bounds.append(Bound(f"steps.{row['kind'] or row['source']}.{name}", low, low, high))
        reason = f"{count_text(without)} of {count_text(steps)} {kind} without GPU work"
        yield Doubt("steps", "bounded", reason, tuple(bounds), row)


CHECK = Check("steps", "all steps of a kind have GPU work", (_STEPS,), _find)
