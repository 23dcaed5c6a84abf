"""Findings: what is worth doing about a trace, each from its evidence. One line per rule below."""

from __future__ import annotations

from msgspec.structs import replace

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query
from molprof.analysis.figures.certificate.model import Group
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings import attention, copies, gpu_idle, processor, profiling, rows
from molprof.analysis.findings.scope import SPAN, read_scope

RULES = (
    gpu_idle.LAUNCH_BOUND,
    gpu_idle.GRAPHS,
    gpu_idle.GPU_IDLE,
    processor.RULE,
    copies.VOCABULARY_COPIES,
    copies.CACHE_CONCATENATION,
    attention.RULE,
    profiling.COMPILING,
    rows.RULE,
    processor.TEMPLATES,
    copies.HOST_COPIES,
    profiling.PROFILER_COST,
)


def queries(has_run: bool) -> tuple[Query, ...]:
    """What rules may ask of any foreign trace, or of any captured run."""
    rules = (query for rule in RULES for query in (*rule.queries, *(rule.run_queries if has_run else ())))
    return (*rules, *(() if has_run else (SPAN,)))


def find_all(engine: Engine, report: Report) -> tuple[Finding, ...]:
    """What all rules find in the trace that `engine` holds, the largest gain first, unbounded ones last."""
    scope = read_scope(engine, report)
    found = [
        replace(finding, uncertain=_doubts(report, rule.rests_on[finding.id]))
        for rule in RULES
        for finding in rule.find(engine, report, scope)
    ]
    return tuple(
        sorted(found, key=lambda finding: -1.0 if finding.gain_ratio is None else finding.gain_ratio, reverse=True)
    )


def _doubts(report: Report, groups: tuple[Group, ...]) -> str | None:
    """Why figures of the groups are uncertain; None where they are exact."""
    uncertain = () if report.certificate is None else report.certificate.uncertain
    return "; ".join(f"{item.title}: {item.reason}" for item in uncertain if item.group in groups) or None
