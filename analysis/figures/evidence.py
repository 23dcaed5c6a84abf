"""What a figure rests on: the SQL that gives it, and whether the trace makes it exact, bounded or not to be had."""

from __future__ import annotations

import re
from dataclasses import dataclass

from molprof.analysis.figures.certificate.model import Certified, Group, Verdict, worst
from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.work import KINDS, marked

_COUNTS: dict[str, Group] = {
    "launches": "launches",
    "graph_launches": "graphs",
    "launches_without_gpu_work": "links",
    "kernels": "gpu_work",
    "kernels_without_call": "links",
    "kernel_names": "gpu_work",
    "kernel_time_ns": "gpu_time",
}
_DEVICES: dict[str, tuple[Group, str]] = {
    "device_span_ns": ("gpu_time", "MAX(span_ns)"),
    "busy_ratio": ("gpu_idle", "SUM(busy_ns) * 1.0 / SUM(span_ns)"),
}
# Columns of molprof_phase_work, for figures of the processor's phase.
_PROCESSOR = {
    "masking_launches": "launches",
    "masking_gpu_ns": "gpu_ns",
    "masking_operators": "leaf_operators",
    "masking_syncs": "syncs",
}
_PER = re.compile(r"(?P<column>\w+)_per_(?P<unit>step|token|molecule)")
_KIND = re.compile(r"(?P<kind>\w+?)(?:_kernels|_candidates)?(?P<measure>_per_step|_ns)?")
_STEPS = "(SELECT SUM(steps) FROM molprof_step_launch_summary WHERE steps > 0)"
_TOKENS = "(SELECT SUM(tokens) FROM molprof_step_launch_summary WHERE steps > 0)"
_EACH_STEP = (
    "SELECT batch, step, SUM({}) AS count FROM molprof_phase_work WHERE step IS NOT NULL GROUP BY batch, step ORDER BY"
    " batch, step"
)


@dataclass(frozen=True)
class Evidence:
    """The SQL that gives a figure, and its certainty; bounds in the figure's unit."""

    sql: str | None  # None: the file or its manifest gives it
    verdict: Verdict
    reason: str | None = None  # None: exact
    low: float | None = None
    high: float | None = None  # None with a verdict of bounded: no limit is known


def evidence_of(figure: Figure, report: Report) -> Evidence:
    sql = sql_of(figure, report)
    if figure.value(report) is None:
        return Evidence(sql, "not_to_be_had", "not recorded")
    if samples := figure.samples(report):
        reason = f"lowest and highest of {len(samples)} timed passes"
        return Evidence(sql, "bounded", reason, min(samples), max(samples))
    total = None if report.run is None else (report.run.totals or {}).get(figure.id.removeprefix("run_"))
    if figure.id.startswith("run_") and total is not None and not total.exact:
        reason = f"estimated from {total.recorded_steps} of {total.steps} steps"
        return Evidence(sql, "bounded", reason, total.low, total.high)
    groups = groups_of(figure)
    doubted = () if report.certificate is None else report.certificate.uncertain
    doubted = tuple(item for item in doubted if item.group in groups)
    if not doubted:
        return Evidence(sql, "exact")
    verdict = worst(item.verdict for item in doubted)
    reason = "; ".join(f"{item.title}: {item.reason}" for item in doubted)
    low, high = _bounds(figure, doubted) if verdict == "bounded" else (None, None)
    return Evidence(sql, verdict, reason, low, high)


def sql_of(figure: Figure, report: Report) -> str | None:
    """The query whose result is the figure; of figures per molecule, and estimates, what they are worked out from."""
    if figure.id in _COUNTS:
        return f"SELECT {figure.id} FROM molprof_launch_count"
    if figure.id in _DEVICES:
        return f"SELECT {_DEVICES[figure.id][1]} AS {figure.id} FROM molprof_device"
    if figure.id in _PROCESSOR:
        phase = f"SUM({_PROCESSOR[figure.id]}) * 1.0 / {_STEPS}"
        return f"SELECT {phase} AS {figure.id} FROM molprof_phase_work WHERE phase = 'processor'"
    if figure.id.startswith("run_"):
        return _EACH_STEP.format(figure.id.removeprefix("run_"))
    if KINDS in figure.tables:
        return _of_kind(figure, report)
    if (found := _PER.fullmatch(figure.id)) and figure.tables and figure.group in ("Launches", "Kernels"):
        return _of_steps(found["column"], found["unit"])
    return figure.tables[-1].sql if figure.tables else None


def _of_steps(column: str, unit: str) -> str:
    table = "molprof_step_launch_summary WHERE steps > 0"
    if column == "leaf_operators":
        table = "molprof_phase_work WHERE step IS NOT NULL"
    return f"SELECT SUM({column}) * 1.0 / {_TOKENS if unit == 'token' else _STEPS} AS {column}_per_{unit} FROM {table}"


def _of_kind(figure: Figure, report: Report) -> str:
    table = "FROM molprof_work_kind WHERE kind ="
    if figure.id == "elementwise_to_attention":
        steps = report.run is not None or marked(report, "steps") is not None
        column = "step_count" if steps else "count"
        return f"SELECT {column} * 1.0 / (SELECT {column} {table} 'attention') AS {figure.id} {table} 'elementwise'"
    found = _KIND.fullmatch(figure.id)
    kind = figure.id if found is None else found["kind"]
    kind = re.sub("memcpy_(.)to(.)", lambda name: f"memcpy {name[1].upper()}to{name[2].upper()}", kind)
    measure = None if found is None else found["measure"]
    value = {"_per_step": f"step_count * 1.0 / {_STEPS}", "_ns": "time_ns"}.get(measure or "", "count")
    return f"SELECT {value} AS {figure.id} {table} '{kind}'"


def groups_of(figure: Figure) -> tuple[Group, ...]:
    """The groups of the certificate that a figure rests on; none: on the file and its manifest alone."""
    if figure.id in _COUNTS:
        return (_COUNTS[figure.id],)
    if figure.id in _DEVICES:
        return (_DEVICES[figure.id][0],)
    if figure.id in _PROCESSOR:
        return ("launches", "links", "gpu_time") if figure.id == "masking_gpu_ns" else ("launches",)
    if figure.id.startswith("run_"):
        return ("steps", "gpu_work", "launches")
    if not figure.tables or figure.group == "GPU counters":
        return ()
    of_gpu: Group = "gpu_time" if "_ns" in figure.id else "gpu_work"
    base: Group = "launches" if figure.group == "Launches" else of_gpu
    return (base, "links", "steps") if "_per_" in figure.id else (base,)


def _bounds(figure: Figure, doubted: tuple[Certified, ...]) -> tuple[float | None, float | None]:
    paths = (f"counts.{figure.id}", f"steps.{figure.id}")
    found = [bound for item in doubted for bound in item.bounds if bound.figure in paths]
    return (found[0].low, found[0].high) if found else (None, None)
