"""Checks of GPU work: streams do not overlap, graph launches have their kernels, steps of a kind are alike."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.figures.certificate.model import Bound, Check, Doubt, Facts, lost
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_dicts, query_row
from molprof.common.values import count_text, counted

_STREAMS = Query(
    "certificate_overlap",
    "SELECT device, stream, overlaps, overlap_ns, longest_ns, time_ns, union_ns"
    " FROM molprof_stream_overlap ORDER BY overlap_ns DESC, device, stream",
)
_GRAPHS = Query(
    "certificate_graphs",
    "SELECT (SELECT SUM(without_work) FROM molprof_graph_without_work) AS without_work, SUM(kernels) AS kernels"
    " FROM molprof_graph_launch",
)
_STEPS = Query(
    "certificate_steps",
    "SELECT source, kind, steps, steps_without_work, steps_with_launches_only, kernels, gpu_ns, most_kernels,"
    " most_gpu_ns FROM molprof_uneven_step ORDER BY source, kind",
)


def _overlap(engine: TraceProcessor, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    streams = query_dicts(engine, _STREAMS)
    if not streams:
        return
    overlaps, overlap_ns = (sum(stream[name] for stream in streams) for name in ("overlaps", "overlap_ns"))
    where = "a stream" if len(streams) == 1 else f"{len(streams)} streams"
    time_ns = facts.counts.kernel_time_ns
    bounds = [Bound("counts.kernel_time_ns", max(0, time_ns - overlap_ns), time_ns, time_ns)]
    for stream in streams:
        name = f"streams.{stream['device']}/{stream['stream']}.time_ns"
        bounds.append(Bound(name, stream["union_ns"], stream["time_ns"], stream["time_ns"]))
    longest_ns = max(stream["longest_ns"] for stream in streams)
    evidence = {"overlaps": overlaps, "overlap_ns": overlap_ns, "longest_ns": longest_ns}
    reason = f"{counted(overlaps, 'overlap')} of work on {where} (union against sum)"
    yield Doubt("gpu_time", "bounded", reason, tuple(bounds), evidence)


def _graphs(engine: TraceProcessor, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    row = query_row(engine, _GRAPHS)
    without, all_launches = row["without_work"], facts.counts.graph_launches
    if not without:
        return
    evidence = {"graph_launches": all_launches, "without_work": without}
    reason = f"{counted(without, 'graph launch', 'es')} of {count_text(all_launches)} without GPU work"
    if without == all_launches:
        yield from lost(("graphs",), reason, evidence)
    else:
        mean = row["kernels"] / all_launches  # graphs differ, so nothing limits what is missing
        bound = Bound("graphs.kernels_per_graph", mean, mean, None)
        yield Doubt("graphs", "bounded", reason, (bound,), evidence)
    if not facts.devices:
        yield from lost(("gpu_work", "gpu_time", "gpu_idle"), reason, evidence)
        return
    yield Doubt("gpu_work", "bounded", reason, (facts.count("kernels", more=None),), evidence)
    yield Doubt("gpu_time", "bounded", reason, (facts.count("kernel_time_ns", more=None),), evidence)
    idle = (Bound(f"devices.{name}.idle_ns", 0, device.idle_ns, None) for name, device in facts.devices.items())
    yield Doubt("gpu_idle", "bounded", reason, tuple(idle), evidence)
    if facts.steps:
        yield Doubt("steps", "bounded", reason, (facts.per_step(more=None),), evidence)


def _steps(engine: TraceProcessor, info: TraceInfo, facts: Facts) -> Iterator[Doubt]:
    """Either all steps of a kind have work or none has."""
    for row in query_dicts(engine, _STEPS):
        steps, without = row["steps"], row["steps_without_work"]
        kind = f"{row['kind']} steps" if row["kind"] else "steps"
        bounds = []
        for name, part in (("kernels_per_step", "kernels"), ("gpu_per_step_ns", "gpu_ns")):
            # At most, the steps without work were like the largest of the others.
            low, high = row[part] / steps, (row[part] + without * row[f"most_{part}"]) / steps
            bounds.append(Bound(f"steps.{row['kind'] or row['source']}.{name}", low, low, high))
        reason = f"{count_text(without)} of {count_text(steps)} {kind} without GPU work"
        yield Doubt("steps", "bounded", reason, tuple(bounds), row)


OVERLAP = Check("overlap", "work on a stream does not overlap", (_STREAMS,), _overlap)
GRAPHS = Check("graphs", "graph launches have their kernels", (_GRAPHS,), _graphs)
STEPS = Check("steps", "all steps of a kind have GPU work", (_STEPS,), _steps)
