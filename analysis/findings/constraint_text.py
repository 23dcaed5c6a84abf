"""Effects of a constraint on the texts: tokens that it forces, tokenizes otherwise, or that lead nowhere."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from molprof.analysis.figures.run_model import Run
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.remedy import ConstraintContext
from molprof.common.values import count_text, counted, percent_text


class EvidencePart(Struct):
    """Clauses of a finding's evidence, and their figures."""

    clauses: list[str]
    figures: dict[str, int | float]


def done_to_text(known: TraceFacts, run: Run, course: ConstraintContext) -> EvidencePart:
    """Return the text on the effects of the constraint on the answers."""
    part, tokens = EvidencePart([], {}), run.generated_tokens
    if run.setup.random or not tokens:
        return part

    def add(key: str, count: int, text: str) -> None:
        if count > 0:
            part.figures[key] = count
            part.clauses.append(text)

    if run.masked is not None:
        forced = tokens - run.masked.free_choices
        course.forced = max(0.0, forced / tokens)
        add("forced_tokens", forced, f"{count_text(forced)} of {counted(tokens, 'token')} were forced")
    if run.needed_tokens is not None:
        ends = sum(item.tokens - item.free - item.copy - item.junk - item.filler for item in run.sequences)
        surplus = tokens - ends - run.needed_tokens
        text = f"{count_text(tokens - ends)} tokens spell what the tokenizer writes in {count_text(run.needed_tokens)}"
        add("surplus_tokens", surplus, text)
    if run.disagreement is not None and (ratio := run.disagreement.all.forbidden_ratio):
        part.figures["forbidden_ratio"] = ratio
        part.clauses.append(f"the model's first choice was forbidden at {percent_text(ratio)} of tokens")
    runaway: Any = known.report.table("runaway").to_json()
    causes = ", ".join(f"{row['cause']} {count_text(row['tokens'])}" for row in runaway)
    add("runaway_tokens", sum(row["tokens"] for row in runaway), f"tokens that lead nowhere: {causes}")
    add("junk_tokens", run.junk_tokens, f"{counted(run.junk_tokens, 'junk token')}")
    add("filler_tokens", run.filler_tokens, f"{counted(run.filler_tokens, 'filler token')}")
    return part
