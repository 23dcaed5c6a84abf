"""Check: graph launches have their kernels."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row
from molprof.analysis.figures.certificate.model import Bound, Check, Doubt, Facts
from molprof.analysis.reader import TraceInfo
from molprof.common.values import count_text, counted

_GRAPHS = Query(
    "certificate_graphs",
    "SELECT (SELECT SUM(without_work) FROM molprof_graph_without_work) AS without_work, SUM(kernels) AS kernels"
    " FROM molprof_graph_launch",
)


def _find(engine: Engine, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    row = query_row(engine, _GRAPHS)
    without, all_launches = row["without_work"], facts.graph_launches
    if not without:
        return
    evidence = {"graph_launches": all_launches, "without_work": without}
    reason = f"{counted(without, 'graph launch', 'es')} of {count_text(all_launches)} without GPU work"
    if without == all_launches:
        yield Doubt("graphs", "not_to_be_had", reason, (), evidence)
    else:
        mean = row["kernels"] / all_launches  # graphs differ, so nothing limits what is missing
        bound = Bound("graphs.kernels_per_graph", mean, mean, None)
        yield Doubt("graphs", "bounded", reason, (bound,), evidence)
    if not facts.devices:
        for group in ("gpu_work", "gpu_time", "gpu_idle"):
            yield Doubt(group, "not_to_be_had", reason, (), evidence)
        return
    kernels, time_ns = facts.kernels, facts.kernel_time_ns
    yield Doubt("gpu_work", "bounded", reason, (Bound("counts.kernels", kernels, kernels, None),), evidence)
    yield Doubt("gpu_time", "bounded", reason, (Bound("counts.kernel_time_ns", time_ns, time_ns, None),), evidence)
    idle = (Bound(f"devices.{name}.idle_ns", 0, idle_ns, None) for name, (_, idle_ns) in facts.devices.items())
    yield Doubt("gpu_idle", "bounded", reason, tuple(idle), evidence)
    if facts.steps:
        yield Doubt("steps", "bounded", reason, (facts.per_step(more=None),), evidence)


CHECK = Check("graphs", "graph launches have their kernels", (_GRAPHS,), _find)
