"""Findings: what is worth doing about a trace, each from its evidence."""

from __future__ import annotations

from molprof.analysis.figures.model import Finding
from molprof.analysis.findings import cpu, idle, kernels, processor, run
from molprof.analysis.findings.known import FOREIGN_IDLE, RUN_IDLE, SPAN, Known, has_few_stacks
from molprof.analysis.findings.places import PLACES
from molprof.analysis.findings.rule import Rule
from molprof.analysis.trace_processor.package import Query

__all__ = ["RULES", "Known", "find_all", "has_few_stacks", "queries"]

_MODULES = (idle, kernels, cpu, processor, run)
# In the order in which they are defined: that of findings of equal gain.
RULES = tuple(item for module in _MODULES for item in vars(module).values() if isinstance(item, Rule))


def queries(has_run: bool, has_stacks: bool) -> tuple[Query, ...]:
    """What rules may ask of any foreign trace, or of any captured run; with stacks, places are asked elsewhere."""
    asked = (query for rule in RULES for query in (*rule.queries, *(rule.run_queries if has_run else ())))
    return (*asked, *((RUN_IDLE,) if has_run else (SPAN, *FOREIGN_IDLE)), *(() if has_stacks else PLACES))


def find_all(known: Known) -> tuple[Finding, ...]:
    """All findings of a trace: the largest gain first that can be had, those without a bound last, then notes."""
    findings = [
        Finding(
            id=rule.id,
            title=rule.title,
            evidence=found.evidence,
            gain=found.gain,
            fix=found.fix or rule.fix,
            explanation=found.explanation or rule.explanation,
            query=rule.query,
            figures=found.figures,
            uncertain=known.doubts_on(rule.rests_on),
            place=found.place,
            certain=rule.certain,
            note=rule.note,
        )
        for rule in RULES
        if (found := rule.applied(known)) is not None
    ]
    weights = {rule.id: rule.weight for rule in RULES}

    def order(item: Finding) -> tuple[bool, float]:
        return item.note, -1 * (-1.0 if item.gain_ratio is None else item.gain_ratio * weights[item.id])

    return tuple(sorted(findings, key=order))
