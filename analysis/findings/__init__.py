"""Findings: what is worth doing about a trace, each from its evidence. One line per rule below."""

from __future__ import annotations

from molprof.analysis.engine import Engine
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings import (
    attention,
    cache_concatenation,
    compiling,
    gpu_idle,
    graphs,
    host_copies,
    launch_bound,
    processor,
    profiling,
    rows,
    templates,
    vocabulary_copies,
)
from molprof.analysis.findings.scope import SPAN, read_scope

RULES = (
    launch_bound.RULE,
    graphs.RULE,
    gpu_idle.RULE,
    processor.RULE,
    vocabulary_copies.RULE,
    cache_concatenation.RULE,
    attention.RULE,
    compiling.RULE,
    rows.RULE,
    templates.RULE,
    host_copies.RULE,
    profiling.RULE,
)
QUERIES = (*(query for rule in RULES for query in rule.queries), SPAN)


def find_all(engine: Engine, report: Report) -> tuple[Finding, ...]:
    """What all rules find in the trace that `engine` holds, the largest gain first, unbounded ones last."""
    scope = read_scope(engine, report)
    found = [finding for rule in RULES for finding in rule.find(engine, report, scope)]
    return tuple(
        sorted(found, key=lambda finding: -1.0 if finding.gain_ratio is None else finding.gain_ratio, reverse=True)
    )
