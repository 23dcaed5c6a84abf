"""Findings: what is worth doing about a trace, each from its evidence. One line per rule below.

A rule is a function of the engine, the report and the time that gains are ratios of; it gives nothing where its
evidence is missing or not recorded.
"""

from __future__ import annotations

from collections.abc import Callable

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
from molprof.analysis.findings.scope import Scope, read_scope

RULES: tuple[Callable[[Engine, Report, Scope | None], tuple[Finding, ...]], ...] = (
    launch_bound.find,
    graphs.find,
    gpu_idle.find,
    processor.find,
    vocabulary_copies.find,
    cache_concatenation.find,
    attention.find,
    compiling.find,
    rows.find,
    templates.find,
    host_copies.find,
    profiling.find,
)


def find_all(engine: Engine, report: Report) -> tuple[Finding, ...]:
    """What all rules find in the trace that `engine` holds, the largest gain first, unbounded ones last."""
    scope = read_scope(engine, report)
    found = [finding for rule in RULES for finding in rule(engine, report, scope)]
    return tuple(
        sorted(found, key=lambda finding: -1.0 if finding.gain_ratio is None else finding.gain_ratio, reverse=True)
    )
