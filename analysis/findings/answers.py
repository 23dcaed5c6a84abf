"""Finding on answers that are invalid although a constraint should have kept them valid."""

from __future__ import annotations

from molprof.analysis.figures.model import ServedTimes
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.remedy import constraining
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.common.values import counted

_SHOWN = 2


@rule(
    id="invalid_answers",
    title="Constrained answers are not valid",
    fix=(
        "Look for warnings of what makes the masks: it ignores a part of this constraint, as xgrammar lookaheads and"
        " outlines minimum. Take another one, or write the constraint without that part."
    ),
    explanation="A backend that leaves out what it cannot enforce is faster than one that enforces it.",
    query="SELECT category, COUNT() AS events FROM slice GROUP BY category ORDER BY category",
    warning=True,
)
def invalid_answers(known: TraceFacts) -> FindingEvidence | None:
    """Fire where answers under a constraint are not valid, though no token limit ended them. Without gain."""
    judged, invalid = _of_served(known) if isinstance(known.report.served, ServedTimes) else _of_run(known)
    if not invalid:
        return None
    shown = "; ".join(invalid[:_SHOWN])
    more = f"; {len(invalid) - _SHOWN} more" if len(invalid) > _SHOWN else ""
    return FindingEvidence(
        f"{len(invalid)} of {counted(judged, 'answer')} that no token limit ended: {shown}{more}",
        {"invalid": len(invalid), "judged": judged},
    )


def _of_served(known: TraceFacts) -> tuple[int, list[str]]:
    served = known.report.served
    assert isinstance(served, ServedTimes)
    return (served.judged, list(served.invalid)) if served.run == "constrained" else (0, [])


def _of_run(known: TraceFacts) -> tuple[int, list[str]]:
    """Return the count of judged answers, and the invalid ones; none of molecules, whose validity is chemistry too."""
    run = known.report.run
    if run is None or run.of_molecules or constraining(run) is None:
        return 0, []
    judged = [item for item in run.sequences if item.valid is not None and not item.cut]
    return len(judged), [f"answer {item.sequence}: {item.problem}" for item in judged if item.valid is False]
