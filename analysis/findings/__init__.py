"""Findings: what is worth doing about a trace, each from its evidence."""

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
    "run",
    "ends",
    "cold",
)
# The finding that tells what a verdict says; those of the others have their whole weight.
_OF_VERDICT = {"communication": "communication"}
_MODULES = [import_module(f"{__name__}.{name}") for name in _SUBJECTS]
RULES = tuple(item for module in _MODULES for item in vars(module).values() if isinstance(item, Rule))


def find_all(known: TraceFacts) -> tuple[Finding, ...]:
    """All findings of a trace: warnings, what leads, the largest gain that can be had, those without a bound, notes.

    Of notes those about most of the time come first. What is part of another finding comes right after it. The finding
    that tells what the verdict says counts whole, however little of it a fix reaches as a rule.
    """
    verdict = bottleneck_of(known)
    led = None if verdict is None else _OF_VERDICT.get(verdict.bound or "")
    applied = [(rule, found) for rule in RULES if (found := rule.applied(known)) is not None]

    def order(item: tuple[Rule, FindingEvidence]) -> tuple[bool, bool, bool, float]:
        rule, found = item
        is_note = rule.note or found.note
        last = 1.0 if found.gain is None else -found.gain.high * (1.0 if rule.id == led else rule.weight)
        return not rule.warning, not rule.leads, is_note, -(found.share or 0.0) if is_note else last

    applied.sort(key=order)
    gains = {rule.id: found.gain.high for rule, found in applied if found.gain is not None}
    # The first that may hold it and gains as much.
    holder = {
        rule.id: next((name for name in found.part_of if gains.get(name, -1.0) >= gains.get(rule.id, 0.0)), None)
        for rule, found in applied
    }

    def whole(name: str) -> str:
        outer = holder[name]
        return name if outer is None else whole(outer)

    findings = [
        Finding(
            id=rule.id,
            title=found.title or rule.title,
            evidence=found.evidence,
            gain=found.gain,
            fix=found.fix or rule.fix,
            explanation=found.explanation or rule.explanation,
            query=found.query or rule.query,
            figures=found.figures,
            uncertain=known.doubts_on(rule.rests_on),
            place=found.place,
            place_ratio=found.place_ratio,
            certain=rule.certain,
            note=rule.note or found.note,
            time_ratio=found.share,
            warning=rule.warning,
            part_of=None if holder[rule.id] is None else whole(rule.id),
        )
        for rule, found in applied
    ]
    places = {item.id: index for index, item in enumerate(findings)}
    return tuple(sorted(findings, key=lambda item: (places[item.part_of or item.id], item.part_of is not None)))
