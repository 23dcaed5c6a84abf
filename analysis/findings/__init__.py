"""Findings: advice on a trace, each with its evidence."""

from __future__ import annotations

from importlib import import_module

from molprof.analysis.figures.model import Finding
from molprof.analysis.findings.bottleneck import bottleneck_of
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.rule import FindingEvidence, Rule

__all__ = ["RULES", "TraceFacts", "bottleneck_of", "find_all"]

# In the order of findings of equal gain.
_SUBJECTS = (
    "answers",
    "constraint",
    "engine",
    "samples",
    "masks",
    "idle",
    "waits",
    "bottleneck",
    "attention",
    "kernels",
    "transfers",
    "products",
    "training",
    "buckets",
    "cpu",
    "processor",
    "forced",
    "drafts",
    "run",
    "ends",
    "cold",
)
# The finding that tells what a verdict says; those of the others have their whole weight.
_OF_VERDICT = {"communication": "communication"}
_MODULES = [import_module(f"{__name__}.{name}") for name in _SUBJECTS]
RULES = tuple(item for module in _MODULES for item in vars(module).values() if isinstance(item, Rule))


def find_all(known: TraceFacts) -> tuple[Finding, ...]:
    """Return all findings: warnings, the leading one, those by gain, those without a bound, notes.

    Of notes those about most of the time come first. What is part of another finding comes right after it. The finding
    that tells what the verdict says counts whole, however little of it a fix reaches as a rule.
    """
    verdict = bottleneck_of(known)
    led = None if verdict is None else _OF_VERDICT.get(verdict.bound or "")
    applied = [(rule, evidence) for rule in RULES if (evidence := rule.applied(known)) is not None]

    def order(item: tuple[Rule, FindingEvidence]) -> tuple[bool, bool, bool, float]:
        rule, evidence = item
        is_note = rule.note or evidence.note
        last = 1.0 if evidence.gain is None else -evidence.gain.high * (1.0 if rule.id == led else rule.weight)
        return not rule.warning, not rule.leads, is_note, -(evidence.share or 0.0) if is_note else last

    applied.sort(key=order)
    gains = {rule.id: evidence.gain.high for rule, evidence in applied if evidence.gain is not None}
    # The first that may hold it and gains as much.
    holder = {
        rule.id: next((name for name in evidence.part_of if gains.get(name, -1.0) >= gains.get(rule.id, 0.0)), None)
        for rule, evidence in applied
    }

    def whole(name: str) -> str:
        while (outer := holder[name]) is not None:
            name = outer
        return name

    findings = [
        Finding(
            id=rule.id,
            title=evidence.title or rule.title,
            evidence=evidence.evidence,
            gain=evidence.gain,
            fix=evidence.fix or rule.fix,
            explanation=evidence.explanation or rule.explanation,
            query=evidence.query or rule.query,
            figures=evidence.figures,
            uncertain=known.doubts_on(rule.rests_on),
            location=evidence.location,
            location_ratio=evidence.location_ratio,
            certain=rule.certain,
            note=rule.note or evidence.note,
            time_ratio=evidence.share,
            warning=rule.warning,
            part_of=None if holder[rule.id] is None else whole(rule.id),
        )
        for rule, evidence in applied
    ]
    rank = {item.id: index for index, item in enumerate(findings)}
    return tuple(sorted(findings, key=lambda item: (rank[item.part_of or item.id], item.part_of is not None)))
