"""Findings: what is worth doing about a trace, each from its evidence. One line per rule below."""

from __future__ import annotations

from molprof.analysis.figures.model import Finding
from molprof.analysis.findings import attention, copies, gpu_idle, origin, processor, profiling, rows
from molprof.analysis.findings.rule import Known, Rule
from molprof.analysis.findings.scope import SPAN
from molprof.analysis.trace_processor.package import Query

__all__ = ["RULES", "Known", "find_all", "queries"]

RULES = (
    gpu_idle.launch_bound,
    gpu_idle.graphs_unused,
    gpu_idle.graphs_broken,
    gpu_idle.gpu_idle,
    processor.processor_share,
    processor.row_masking,
    processor.processor_syncs,
    copies.vocabulary_copies,
    copies.cache_concatenation,
    attention.attention_small,
    attention.mask_rules_out_flash,
    profiling.compiling,
    rows.idle_rows,
    rows.junk_tokens,
    processor.templates,
    copies.host_copies,
    profiling.profiler_cost,
    origin.layer_launches,
    origin.launches_by_function,
    origin.copies_by_place,
    origin.syncs_by_place,
)


def queries(has_run: bool) -> tuple[Query, ...]:
    """What rules may ask of any foreign trace, or of any captured run."""
    asked = (query for rule in RULES for query in (*rule.queries, *(rule.run_queries if has_run else ())))
    return (*asked, *(() if has_run else (SPAN,)))


def find_all(known: Known) -> tuple[Finding, ...]:
    """What all rules find in a trace, the largest gain first, those without a bound last."""
    found = [finding for rule in RULES if (finding := _finding(rule, known)) is not None]
    return tuple(
        sorted(found, key=lambda finding: -1.0 if finding.gain_ratio is None else finding.gain_ratio, reverse=True)
    )


def _finding(rule: Rule, known: Known) -> Finding | None:
    if (found := rule.applied(known)) is None:
        return None
    return Finding(
        id=rule.id,
        title=rule.title,
        evidence=found.evidence,
        gain=found.gain,
        fix=found.fix or rule.fix,
        explanation=found.explanation or rule.explanation,
        query=rule.query,
        figures=found.figures,
        uncertain=known.doubts_on(rule.rests_on),
    )
